package efdi

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/internal/ids"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// unmarshal forgets what is not described: it would only take memory.
var unmarshal = proto.UnmarshalOptions{DiscardUnknown: true}

// Fields that may be large: tasks, for the logs in them, and those logs.
const (
	taskField = 23
	logField  = 20
)

// readTaskData reads everything but the logs of tasks into memory. The error is that
// of the source.
func (r *reader) readTaskData(s section) error {
	left, elements := r.cfg.MaxMessage, r.cfg.MaxElements
	var tasks []section
	rest, err := r.gather(s, taskField, &left, func(task section) error {
		if len(tasks) == elements {
			return damaged(farmdata.KindLimit, task.offset, tooManyElements, nil)
		}
		tasks = append(tasks, task)
		return nil
	})
	if err != nil {
		return err
	}
	// A list of tasks that grew would be copied, up to 50 MB at once, while nobody asks the context.
	r.set.Tasks = make([]farmdata.Task, 0, len(tasks))
	for _, task := range tasks {
		var finding *farmdata.Finding
		if err := r.readTask(task, &left, &elements); errors.As(err, &finding) {
			r.add(finding)
			break
		} else if err != nil {
			return err
		}
	}
	var data efdipb.TaskData
	if !r.count(rest, data.ProtoReflect().Descriptor(), &elements, 0) {
		r.add(damaged(farmdata.KindLimit, s.offset, tooManyElements, nil))
	} else if r.merge(rest, &data, s.offset); r.ctx.Err() == nil {
		r.set.Header = farmdata.Header{
			Major: int(data.GetVersionMajor()), Minor: int(data.GetVersionMinor()), Origin: int(data.GetOrigin()), Software: data.GetSoftware(),
			SoftwareVersion: data.GetSoftwareVersion(), Controller: data.GetController(), ControllerVersion: data.GetControllerVersion(),
		}
		r.read(data.ProtoReflect(), objects.Root, r.set, s.offset)
	}
	for _, finding := range ids.Check(r.ctx, r.set, r.cfg.Devices) {
		r.add(finding)
	}
	for _, name := range slices.Sorted(maps.Keys(r.undescribed)) {
		r.add(damaged(farmdata.KindUnsupported, -1, fmt.Sprintf("fields that are not described, %s: %d", name, r.undescribed[name]), nil))
	}
	if r.mended > 0 {
		r.add(damaged(farmdata.KindText, -1, fmt.Sprintf("texts with bytes that are not UTF-8: %d", r.mended), nil))
	}
	return r.ctx.Err()
}

// readTask adds a task and its logs to the set. A finding as the error says that no other task is read.
func (r *reader) readTask(task section, left *int64, elements *int) error {
	var logs []section
	body, err := r.gather(task, logField, left, func(log section) error {
		if *elements--; *elements < 0 {
			return damaged(farmdata.KindLimit, log.offset, tooManyElements, nil)
		}
		logs = append(logs, log)
		return nil
	})
	if err != nil {
		return err
	}
	var message efdipb.Task
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if !r.count(body, message.ProtoReflect().Descriptor(), elements, 0) {
		return damaged(farmdata.KindLimit, task.offset, tooManyElements, nil)
	}
	if err := unmarshal.Unmarshal(body, &message); err != nil {
		r.add(damaged(farmdata.KindSyntax, task.offset, "task is malformed", nil))
		return nil
	}
	var object farmdata.Task
	r.read(message.ProtoReflect(), "TSK", &object, task.offset)
	absentZones(&object)
	for _, log := range logs {
		r.addLog(log, object.ID)
		object.LogNames = append(object.LogNames, r.set.Logs[len(r.set.Logs)-1].Name)
	}
	for _, grid := range object.Grids {
		grid.Cells = func(func(*farmdata.Cell, error) bool) {}
		r.add(damaged(farmdata.KindMissing, task.offset, "cells of the grid, which are in a file of their own", nil))
	}
	r.set.Tasks = append(r.set.Tasks, object)
	return nil
}

// merge unmarshals field by field, so that one that is malformed costs no other one.
func (r *reader) merge(b []byte, data *efdipb.TaskData, offset int64) {
	options := unmarshal
	options.Merge = true
	for len(b) > 0 && r.ctx.Err() == nil {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			n = len(b)
		}
		if options.Unmarshal(b[:n], data) != nil {
			r.add(damaged(farmdata.KindSyntax, offset, "message is malformed", nil))
		}
		b = b[n:]
	}
}

// gather returns the fields of a message, but gives those that may be large to big,
// one by one. What is damaged, or beyond the limit, ends the message with a
// finding. The error is that of the source.
func (r *reader) gather(s section, number protowire.Number, left *int64, big func(section) error) ([]byte, error) {
	var rest []byte
	for w := walk(s); ; {
		f, err := w.next()
		switch {
		case errors.Is(err, io.EOF):
			return rest, nil
		case err != nil:
		case f.number == number && f.wire == protowire.BytesType:
			if err = big(section{s.r, f.body, f.length}); err == nil {
				err = w.skip(f)
			}
		case f.end()-f.start > *left:
			err = damaged(farmdata.KindLimit, f.start, "message larger than the limit allows", nil)
		default:
			size, before := f.end()-f.start, len(rest)
			*left -= size
			if err = w.skip(f); err == nil {
				rest = append(rest, make([]byte, size)...)
				if _, err = s.r.ReadAt(rest[before:], f.start); errors.Is(err, io.EOF) { // behind the field
					err = nil
				}
			}
		}
		var finding *farmdata.Finding
		if errors.As(err, &finding) {
			r.add(finding)
			return rest, sourceError(err)
		} else if err != nil {
			return rest, err
		}
	}
}

const tooManyElements = "more elements than the limit allows"

// count reports whether a message has no more elements than are left. A message of
// two bytes takes a hundred in memory, so its length says little. It also counts fields that are not described.
func (r *reader) count(b []byte, message protoreflect.MessageDescriptor, left *int, depth int) bool {
	const deepest = 64
	if *left--; *left < 0 || depth > deepest {
		return false
	}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return true // Unmarshal will say so
		}
		length := protowire.ConsumeFieldValue(number, wire, b[n:])
		if length < 0 {
			return true
		}
		field := message.Fields().ByNumber(number)
		if number != extension && (field == nil || !wired(field, wire)) {
			r.notDescribed(message, number)
		} else if field != nil && wire == protowire.BytesType {
			if field.Message() != nil {
				body, _ := protowire.ConsumeBytes(b[n:])
				if !r.count(body, field.Message(), left, depth+1) {
					return false
				}
			} else if field.IsList() {
				if *left--; *left < 0 {
					return false
				}
			}
			if field.Kind() == protoreflect.StringKind {
				text, _ := protowire.ConsumeBytes(b[n:])
				r.mend(text)
			}
		}
		b = b[n+length:]
	}
	return true
}

// mostFields is how many fields that are not described are told apart.
const mostFields = 50

// notDescribed counts a field.
func (r *reader) notDescribed(message protoreflect.MessageDescriptor, number protowire.Number) {
	name := fmt.Sprintf("%d of %s", number, message.Name())
	if len(r.undescribed) >= mostFields && r.undescribed[name] == 0 {
		name = "of other numbers"
	}
	r.undescribed[name]++
}

// mend makes a text one that protobuf takes, at its place: with a question mark for each byte that is not UTF-8.
func (r *reader) mend(text []byte) {
	if utf8.Valid(text) {
		return
	}
	r.mended++
	for len(text) > 0 {
		c, size := utf8.DecodeRune(text)
		if c == utf8.RuneError && size == 1 {
			text[0] = '?'
		}
		text = text[size:]
	}
}

// wired reports whether a field may have a wire type.
func wired(field protoreflect.FieldDescriptor, wire protowire.Type) bool {
	switch field.Kind() {
	case protoreflect.DoubleKind:
		return wire == protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return wire == protowire.BytesType
	default:
		return wire == protowire.VarintType
	}
}

// absentZones makes codes of zones absent that are 0, unless there is such a zone: zero and absent are the same.
func absentZones(task *farmdata.Task) {
	if slices.ContainsFunc(task.Zones, func(z farmdata.TreatmentZone) bool { return z.Code == 0 }) {
		return
	}
	codes := []*int{&task.DefaultZone, &task.LostZone, &task.OutsideZone}
	for _, grid := range task.Grids {
		codes = append(codes, &grid.Zone)
	}
	for _, code := range codes {
		if *code == 0 {
			*code = -1
		}
	}
}
