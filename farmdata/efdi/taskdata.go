package efdi

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/internal/ids"
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
		r.check(data.ProtoReflect(), s.offset)
		convertTaskData(r.set, &data)
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
	r.check(message.ProtoReflect(), task.offset)
	converted := convertTask(&message)
	for _, log := range logs {
		r.addLog(log, converted.ID)
		converted.LogNames = append(converted.LogNames, r.set.Logs[len(r.set.Logs)-1].Name)
	}
	if len(converted.Grids) > 0 {
		r.add(damaged(farmdata.KindMissing, task.offset, "cells of the grid, which are in a file of their own", nil))
	}
	r.set.Tasks = append(r.set.Tasks, converted)
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
			err = damaged(farmdata.KindLimit, f.start, "message larger than MaxMessage allows", nil)
		case f.wire == protowire.BytesType:
			*left -= f.end() - f.start
			rest = protowire.AppendTag(rest, f.number, f.wire)
			rest = protowire.AppendVarint(rest, uint64(f.length))
			rest, err = w.read(f, rest)
		default:
			*left -= f.end() - f.start
			rest = slices.Grow(rest, 16)
			number := make([]byte, f.length)
			rest = protowire.AppendTag(rest, f.number, f.wire)
			if _, err = s.r.ReadAt(number, f.body); err == nil || errors.Is(err, io.EOF) {
				err = nil
			}
			rest = append(rest, number...)
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

const tooManyElements = "more elements than MaxElements allows"

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

func convertTaskData(s *farmdata.Set, d *efdipb.TaskData) {
	s.Major, s.Minor, s.Origin = int(d.GetVersionMajor()), int(d.GetVersionMinor()), int(d.GetOrigin())
	s.Software, s.SoftwareVersion = d.GetSoftware(), d.GetSoftwareVersion()
	s.Controller, s.ControllerVersion = d.GetController(), d.GetControllerVersion()
	for _, v := range d.GetDevice() {
		s.Devices = append(s.Devices, convertDevice(v))
	}
	for _, v := range d.GetCustomer() {
		s.Customers = append(s.Customers, farmdata.Customer{ID: id("CTR", v.GetId()), LastName: v.GetLastName(), FirstName: v.GetFirstName()})
	}
	for _, v := range d.GetFarm() {
		s.Farms = append(s.Farms, farmdata.Farm{ID: id("FRM", v.GetId()), Designator: v.GetDesignator(), CustomerID: id("CTR", v.GetCustomer())})
	}
	for _, v := range d.GetWorker() {
		s.Workers = append(s.Workers, farmdata.Worker{ID: id("WKR", v.GetId()), LastName: v.GetLastName(), FirstName: v.GetFirstName()})
	}
	for _, v := range d.GetProduct() {
		s.Products = append(s.Products, convertProduct(v))
	}
	for _, v := range d.GetProductGroup() {
		s.ProductGroups = append(s.ProductGroups, farmdata.ProductGroup{ID: id("PGP", v.GetId()), Designator: v.GetDesignator()})
	}
	for _, v := range d.GetCropType() {
		crop := farmdata.CropType{ID: id("CTP", v.GetId()), Designator: v.GetDesignator()}
		for _, v := range v.GetVariety() {
			crop.Varieties = append(crop.Varieties, farmdata.CropVariety{ID: id("CVT", v.GetId()), Designator: v.GetDesignator()})
		}
		s.CropTypes = append(s.CropTypes, crop)
	}
	for _, v := range d.GetValuePresentation() {
		s.ValuePresentations = append(s.ValuePresentations, farmdata.ValuePresentation{ID: id("VPN", v.GetId()), Offset: v.GetOffset(), Scale: v.GetScale(),
			Decimals: int(v.GetDecimals()), Unit: v.GetUnit()})
	}
	for _, v := range d.GetPartfield() {
		s.Fields = append(s.Fields, convertField(v))
	}
	convertWork(s, d)
}

// ddi is called for what was checked.
func ddi(n uint32) farmdata.DDI { return farmdata.DDI(min(n, math.MaxUint16)) }

func convertDevice(v *efdipb.Device) farmdata.Device {
	device := farmdata.Device{ID: id("DVC", v.GetId()), Designator: v.GetDesignator(), SoftwareVersion: v.GetSoftwareVersion(), Name: hexadecimal(v.GetClientName()),
		SerialNumber: v.GetSerialNumber(), StructureLabel: hexadecimal(v.GetStructureLabel()), LocalizationLabel: hexadecimal(v.GetLocalizationLabel())}
	for _, v := range v.GetElement() {
		element := farmdata.Element{ID: id("DET", v.GetId()), ObjectID: int(v.GetObjectId()), Type: int(v.GetType()), Designator: v.GetDesignator(),
			Number: int(v.GetNumber()), ParentObjectID: int(v.GetParentObjectId())}
		for _, reference := range v.GetReference() {
			element.Objects = append(element.Objects, int(reference.GetObjectId()))
		}
		device.Elements = append(device.Elements, element)
	}
	for _, v := range v.GetProcessData() {
		device.ProcessData = append(device.ProcessData, farmdata.ProcessData{ObjectID: int(v.GetObjectId()), DDI: ddi(v.GetDdi()), Property: int(v.GetProperty()),
			Triggers: int(v.GetTriggers()), Designator: v.GetDesignator(), PresentationID: int(v.GetValuePresentationObjectId())})
	}
	for _, v := range v.GetProperty() {
		device.Properties = append(device.Properties, farmdata.Property{ObjectID: int(v.GetObjectId()), DDI: ddi(v.GetDdi()), Value: v.GetValue(),
			Designator: v.GetDesignator(), PresentationID: int(v.GetValuePresentationObjectId())})
	}
	for _, v := range v.GetValuePresentation() {
		device.Presentations = append(device.Presentations, farmdata.Presentation{ObjectID: int(v.GetObjectId()), Offset: v.GetOffset(), Scale: v.GetScale(),
			Decimals: int(v.GetDecimals()), Unit: v.GetUnit()})
	}
	return device
}

// hexadecimal writes bytes as TaskData has them.
func hexadecimal(b []byte) string { return strings.ToUpper(hex.EncodeToString(b)) }

func convertField(v *efdipb.Partfield) farmdata.Field {
	field := farmdata.Field{ID: id("PFD", v.GetId()), Code: v.GetCode(), Designator: v.GetDesignator(), Area: int64(v.GetArea()),
		CustomerID: id("CTR", v.GetCustomer()), FarmID: id("FRM", v.GetFarm()), CropTypeID: id("CTP", v.GetCropType()),
		VarietyID: id("CVT", v.GetCropVariety()), ParentID: id("PFD", v.GetField()),
		Polygons: convertPolygons(v.GetPolygon()), Lines: convertLines(v.GetLineString()), Points: convertPoints(v.GetPoint())}
	for _, v := range v.GetGuidanceGroup() {
		group := farmdata.GuidanceGroup{ID: id("GGP", v.GetId()), Designator: v.GetDesignator(), Boundaries: convertPolygons(v.GetBoundary())}
		for _, v := range v.GetPattern() {
			pattern := farmdata.GuidancePattern{ID: id("GPN", v.GetId()), Designator: v.GetDesignator(), Type: int(v.GetType()), Heading: v.GetHeading(),
				Radius: int64(v.GetRadius()), Boundaries: convertPolygons(v.GetBoundary())}
			if line := v.GetLineString(); line != nil {
				pattern.Lines = convertLines([]*efdipb.LineString{line})
			}
			group.Patterns = append(group.Patterns, pattern)
		}
		field.Guidance = append(field.Guidance, group)
	}
	return field
}

func convertPolygons(list []*efdipb.Polygon) (polygons []farmdata.Polygon) {
	for _, v := range list {
		polygons = append(polygons, farmdata.Polygon{ID: id("PLN", v.GetId()), Type: int(v.GetType()), Designator: v.GetDesignator(),
			Area: int64(v.GetArea()), Rings: convertLines(v.GetLineString())})
	}
	return polygons
}

func convertLines(list []*efdipb.LineString) (lines []farmdata.LineString) {
	for _, v := range list {
		lines = append(lines, farmdata.LineString{ID: id("LSG", v.GetId()), Type: int(v.GetType()), Designator: v.GetDesignator(), Points: convertPoints(v.GetPoint())})
	}
	return lines
}

func convertPoints(list []*efdipb.Point) (points []farmdata.Point) {
	for _, v := range list {
		points = append(points, farmdata.Point{ID: id("PNT", v.GetId()), Type: int(v.GetType()), Designator: v.GetDesignator(),
			North: v.GetNorth(), East: v.GetEast(), Up: v.GetUp()})
	}
	return points
}

func convertTask(v *efdipb.Task) farmdata.Task {
	task := farmdata.Task{ID: id("TSK", v.GetId()), Designator: v.GetDesignator(), CustomerID: id("CTR", v.GetCustomer()), FarmID: id("FRM", v.GetFarm()),
		FieldID: id("PFD", v.GetPartfield()), WorkerID: id("WKR", v.GetWorker()), Status: int(v.GetStatus()),
		DefaultZone: int(v.GetDefaultZone()), LostZone: int(v.GetPositionLostZone()), OutsideZone: int(v.GetOutOfFieldZone())}
	for _, v := range v.GetTime() {
		task.Times = append(task.Times, convertTime(v))
	}
	for _, v := range v.GetTreatmentZone() {
		zone := farmdata.TreatmentZone{Code: int(v.GetCode()), Designator: v.GetDesignator(), Polygons: convertPolygons(v.GetPolygon())}
		for _, v := range v.GetValue() {
			zone.Values = append(zone.Values, farmdata.ZoneValue{DDI: ddi(v.GetDdi()), Raw: v.GetValue(), ProductID: id("PDT", v.GetProduct()),
				ElementID: id("DET", v.GetDeviceElement()), Presentation: id("VPN", v.GetValuePresentation())})
		}
		task.Zones = append(task.Zones, zone)
	}
	for _, v := range v.GetDeviceAllocation() {
		start, stop, kind := stamps(v.GetStamp())
		task.Devices = append(task.Devices, farmdata.DeviceAllocation{Name: hexadecimal(v.GetClientName()), Mask: hexadecimal(v.GetClientNameMask()),
			DeviceID: id("DVC", v.GetDevice()), Start: start, Stop: stop, TimeType: kind})
	}
	for _, v := range v.GetProductAllocation() {
		start, stop, kind := stamps(v.GetStamp())
		task.Products = append(task.Products, farmdata.ProductAllocation{ProductID: id("PDT", v.GetProduct()), ElementID: id("DET", v.GetDeviceElement()),
			Presentation: id("VPN", v.GetValuePresentation()), DDI: ddi(v.GetDdi()), Raw: v.GetValue(), Mode: int(v.GetMode()), Start: start, Stop: stop, TimeType: kind})
	}
	for _, v := range v.GetGuidanceAllocation() {
		start, stop, kind := stamps(v.GetStamp())
		task.Guidance = append(task.Guidance, farmdata.GuidanceAllocation{GroupID: id("GGP", v.GetGuidanceGroup()), Start: start, Stop: stop, TimeType: kind})
	}
	convertWorkOfTask(&task, v)
	if g := v.GetGrid(); g != nil {
		task.Grids = []*farmdata.Grid{{Type: int(g.GetType()), North: g.GetNorth(), East: g.GetEast(), CellNorth: g.GetCellNorth(), CellEast: g.GetCellEast(),
			Rows: int64(g.GetRows()), Cols: int64(g.GetColumns()), Name: id("GRD", g.GetFilename()), Zone: int(g.GetTreatmentZone()),
			Cells: func(func(*farmdata.Cell, error) bool) {}}}
	}
	absentZones(&task)
	return task
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

func stamps(v *efdipb.AllocationStamp) (start, stop farmdata.Stamp, kind int) {
	return farmdata.Stamp{Wall: instant(v.GetStart())}, farmdata.Stamp{Wall: instant(v.GetStop())}, int(v.GetType())
}

func convertTime(v *efdipb.Time) farmdata.TaskTime {
	t := farmdata.TaskTime{Start: farmdata.Stamp{Wall: instant(v.GetStart())}, Stop: farmdata.Stamp{Wall: instant(v.GetStop())}, Type: int(v.GetType()),
		Duration: time.Duration(v.GetDuration()) * time.Second}
	for _, p := range []*efdipb.Position{v.GetPositionStart(), v.GetPositionStop()} {
		if p != nil {
			position := farmdata.Position{North: p.GetNorth(), East: p.GetEast(), Up: p.GetUp(), Status: uint8(p.GetStatus()),
				PDOP: p.GetPdop(), HDOP: p.GetHdop(), Satellites: int(p.GetSatellites())}
			_ = has(&position) // was checked
			t.Positions = append(t.Positions, position)
		}
	}
	for _, v := range v.GetDataLogValue() {
		t.Totals = append(t.Totals, farmdata.Total{DDI: ddi(v.GetDdi()), ElementID: id("DET", v.GetDeviceElement()), Raw: v.GetValue()})
	}
	return t
}

// instant returns the zero time for a timestamp that is absent, out of range, or without fields.
func instant(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() || t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return time.Time{}
	}
	return t.AsTime()
}

// id makes the ID that stands in TaskData: the hyphen that some have there is a
// minus sign here.
func id(letters string, from *efdipb.UID) string {
	switch {
	case from == nil:
		return ""
	case from.GetNumber() == 0 && len(from.GetUri()) > 0:
		return from.GetUri()[0]
	case from.GetNumber() == 0:
		return ""
	}
	return letters + strconv.FormatInt(from.GetNumber(), 10)
}
