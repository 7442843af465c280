// Package efdi reads EFDI, the protobuf form of ISO 11783-10 that machines send on
// the way: logs, device descriptions and whole TaskData, and lists of positions,
// each as it is or in a google.protobuf.Any whose type URL may be wrong or empty.
//
// Open reads what is small; logs are streams that are read when somebody ranges
// over them, with memory for one entry, however long they are. The times of EFDI
// are instants. An ID has the letters that it has in TaskData again: the number 1 of
// a device element is DET1, -1 is DET-1.
package efdi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agrimill/agrimill/farmdata"
)

// Message is the type of a message.
type Message int

// Types of messages.
const (
	// Unknown lets Open look at the fields of the message.
	Unknown Message = iota
	// TimeLog is a log (iso:11783:-10:time_log:protobuf).
	TimeLog
	// TaskData is a device description (iso:11783:-10:device_description:protobuf), or
	// more.
	TaskData
	// GPSList is a list of positions (gps:info). It becomes a log without values.
	GPSList
)

// String returns the name in Go.
func (m Message) String() string {
	switch m {
	case TimeLog:
		return "TimeLog"
	case TaskData:
		return "TaskData"
	case GPSList:
		return "GPSList"
	}
	return "Unknown"
}

// ErrNotEFDI is the error for what has no message of the type that was asked for, or
// of any type.
var ErrNotEFDI = errors.New("efdi: no such message")

// Open reads a message, until ctx ends. The error is ErrNotEFDI, or that of ctx, of the
// Config or of r; anything less is a finding. Logs read r later, without ctx, so it must
// stay as it is; Open and every loop over one of them may use it at the same time.
func Open(ctx context.Context, r io.ReaderAt, size int64, message Message, cfg Config) (*farmdata.Set, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	opened := &reader{ctx: ctx, source: r, cfg: cfg, set: &farmdata.Set{}, undescribed: map[string]int{}}
	opened.descriptions = sync.OnceValue(func() *farmdata.Descriptions { return farmdata.NewDescriptions(opened.devices()) })
	s, message, err := find(section{obedient{ctx, r}, 0, size}, message)
	if err == nil {
		err = opened.readMessage(s, message)
	}
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	return opened.set, nil
}

// Detect returns the type of message that Open reads if it is asked for an Unknown
// one. The error is ErrNotEFDI, or that of ctx or of r.
func Detect(ctx context.Context, r io.ReaderAt, size int64) (Message, error) {
	_, message, err := find(section{obedient{ctx, r}, 0, size}, Unknown)
	if err != nil {
		err = cmp.Or(ctx.Err(), err)
	}
	return message, err
}

// obedient reads until the context ends.
type obedient struct {
	ctx context.Context
	r   io.ReaderAt
}

// ReadAt reads.
func (o obedient) ReadAt(p []byte, off int64) (int, error) {
	if err := o.ctx.Err(); err != nil {
		return 0, err
	}
	return o.r.ReadAt(p, off)
}

// find returns where the message is, and of which type.
func find(whole section, message Message) (section, Message, error) {
	// An Any may hold an Any. What looks like one and holds nothing of use may be the
	// message itself, so the candidates go from the innermost to the whole.
	candidates := []section{whole}
	for range 2 {
		inner, err := unwrap(candidates[0])
		if err != nil {
			return section{}, Unknown, err
		}
		if inner == nil {
			break
		}
		candidates = append([]section{*inner}, candidates...)
	}
	asked := []Message{message}
	if message == Unknown {
		asked = []Message{GPSList, TimeLog, TaskData}
	}
	for _, candidate := range candidates {
		for _, m := range asked {
			// Who knows the type may have a newer definition of it than this library.
			fits, err := schemas[m].fits(candidate, message == Unknown)
			if err != nil {
				return section{}, Unknown, err
			}
			if fits {
				return candidate, m, nil
			}
		}
	}
	return section{}, Unknown, ErrNotEFDI
}

// unwrap returns the value of an Any: a message that has a value, at most one type
// URL, and nothing else. nil if it is not one.
func unwrap(s section) (*section, error) {
	var value *section
	urls := 0
	for w := walk(s); ; {
		f, err := w.next()
		switch {
		case errors.Is(err, io.EOF):
			return value, nil
		case err != nil:
			return nil, sourceError(err)
		case f.wire != protowire.BytesType:
			return nil, nil
		case f.number == 1 && urls == 0 && f.length < 1000:
			urls++
		case f.number == 2 && value == nil:
			value = &section{s.r, f.body, f.length}
		default:
			return nil, nil
		}
		if err := w.skip(f); err != nil {
			return nil, sourceError(err)
		}
	}
}

// sourceError distinguishes an error of the source from damage, which is reported later.
func sourceError(err error) error {
	var finding *farmdata.Finding
	if errors.As(err, &finding) && finding.Kind != farmdata.KindUnreadable {
		return nil
	}
	return fmt.Errorf("efdi: %w", err)
}

// schema is which fields a message has, of which wire types.
type schema struct {
	fields map[protowire.Number]protowire.Type
	// entry is the field whose messages have to fit entries.
	entry   protowire.Number
	entries *schema
}

// Extensions are the same in every type.
const extension = 2048

// schemas are only read.
var schemas = map[Message]*schema{
	GPSList:  {fields: wires("b"), entry: 1, entries: &schema{fields: wires("dd" + "vv" + "dd" + "v" + "b" + "v")}},
	TimeLog:  {fields: wires("vbvb"), entry: 4, entries: &schema{fields: wires("bbvvbbb")}},
	TaskData: {fields: wires("vvbbbbvb" + "bbbbbbbbbbbbbbbbbbb")},
}

// wires makes the fields 1, 2, 3 ... of a message: v is a varint, d a double, b bytes.
func wires(types string) map[protowire.Number]protowire.Type {
	fields := map[protowire.Number]protowire.Type{extension: protowire.BytesType}
	for i, c := range types {
		fields[protowire.Number(i+1)] = map[rune]protowire.Type{'v': protowire.VarintType, 'd': protowire.Fixed64Type, 'b': protowire.BytesType}[c]
	}
	return fields
}

// fits reports whether a message can be of a type: what stands at its beginning, up
// to damage, has fields of the type, of the right wire types, and, if strict, no
// others. The error is that of the source.
func (s *schema) fits(message section, strict bool) (bool, error) {
	const enough = 1000 // entries of a log look alike
	w := walk(message)
	entries, own := 0, 0 // own: fields of this type
	for range enough {
		f, err := w.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return own > 0, sourceError(err)
		}
		wire, known := s.fields[f.number]
		if known && f.number != extension {
			own++
		}
		if known && wire != f.wire || !known && strict {
			return false, nil
		}
		if f.number == s.entry && entries == 0 {
			entries++
			fits, err := s.entries.fits(section{message.r, f.body, f.length}, false)
			if err != nil || !fits && f.length > 0 {
				return false, err
			}
		}
		if f.wire == protowire.BytesType {
			if err := w.skip(f); err != nil {
				return false, sourceError(err)
			}
		}
	}
	return own > 0, nil
}

func (r *reader) readMessage(s section, message Message) error {
	var err error
	switch message {
	case TaskData:
		err = r.readTaskData(s)
	case TimeLog:
		r.addLog(s, "")
		r.findTwice()
	default:
		s.r = r.source
		r.set.Logs = append(r.set.Logs, &farmdata.Log{Size: s.size, Records: r.positions(s)})
	}
	r.set.Findings = r.findings
	return err
}

// reader reads one message.
type reader struct {
	ctx      context.Context // of Open
	source   io.ReaderAt     // which logs read without it
	cfg      Config
	set      *farmdata.Set
	findings []*farmdata.Finding
	// undescribed counts fields of TaskData that this library does not know, by message and number.
	undescribed map[string]int
	mended      int // texts that were not UTF-8

	descriptions func() *farmdata.Descriptions // of the devices, for all logs
}

func (r *reader) add(finding *farmdata.Finding) {
	switch {
	case len(r.findings) < r.cfg.MaxFindings:
		r.findings = append(r.findings, finding)
	case len(r.findings) == r.cfg.MaxFindings:
		r.findings = append(r.findings, damaged(farmdata.KindLimit, -1, "more findings than the limit allows", nil))
	}
}

// devices are those of the message, then those that were known before.
func (r *reader) devices() []farmdata.Device {
	return append(r.set.Devices[:len(r.set.Devices):len(r.set.Devices)], r.cfg.Devices...)
}

// findTwice tells if devices that were known before a log have an ID twice, or several have none: the log may be of either.
func (r *reader) findTwice() {
	seen, twice := map[string]bool{}, false
	for _, d := range r.cfg.Devices {
		twice, seen[d.ID] = twice || seen[d.ID], true
		for _, e := range d.Elements {
			if e.ID != "" {
				twice, seen[e.ID] = twice || seen[e.ID], true
			}
		}
	}
	if twice {
		r.add(damaged(farmdata.KindDuplicate, -1, "two devices of the log have the same ID, or none, or two device elements have the same; the first one counts", nil))
	}
}

// addLog adds a log to the set.
func (r *reader) addLog(s section, taskID string) {
	name := logName(s)
	s.r = r.source
	r.set.Logs = append(r.set.Logs, &farmdata.Log{TaskID: taskID, Size: s.size, Name: name, Records: r.records(s)})
}

// logName returns the file name that a log begins with, without its ending.
func logName(s section) string {
	const longest = 255
	for w := walk(s); ; {
		f, err := w.next()
		if err != nil || f.number == 4 || f.number == 2 && f.length > longest {
			return ""
		}
		if f.wire != protowire.BytesType {
			continue
		}
		if f.number == 2 {
			name, err := w.read(f, nil)
			if err != nil {
				return ""
			}
			text := strings.ToValidUTF8(string(name), "")
			for _, ending := range []string{".bin", ".xml"} {
				if len(text) > 4 && strings.EqualFold(text[len(text)-4:], ending) {
					text = text[:len(text)-4]
				}
			}
			return text
		}
		if w.skip(f) != nil {
			return ""
		}
	}
}
