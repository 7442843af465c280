package efdi

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// decoding is a message of a TaskData that is read into an object. What has no room in the model, or is no number, is
// reported and counts as absent.
type decoding struct {
	protoreflect.Message
	*reader
	kind   string // of the object
	offset int64  // of the message
}

func (m decoding) field(letter string) protoreflect.FieldDescriptor {
	return fieldOf(m.Message, letter)
}

// fieldOf returns the field of an attribute.
func fieldOf(m protoreflect.Message, letter string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(letter[0]-'A') + 1)
}

// read reads a message into an object.
func (r *reader) read(m protoreflect.Message, kind string, object any, offset int64) {
	objects.Visit(decoding{m, r, kind, offset}, kind, object)
}

func (m decoding) find(kind farmdata.Kind, detail string) {
	m.add(damaged(kind, m.offset, detail, nil))
}

func (m decoding) wrong(kind farmdata.Kind, letter, detail string) {
	m.find(kind, string(m.field(letter).Name())+" of "+string(m.Descriptor().Name())+": "+detail)
}

// Needs does nothing: zero and absent are the same. The methods below read a field.
func (m decoding) Needs(...string) {}

func (m decoding) ID(letter string, id *string) { m.Reference(letter, "", m.kind, id) }

func (m decoding) Reference(letter, _, kind string, to *string) {
	uid, _ := m.Get(m.field(letter)).Message().Interface().(*efdipb.UID)
	*to = id(kind, uid)
}

func (m decoding) Text(letter string, text *string, _ objects.Use) {
	field := m.field(letter)
	if field.Kind() == protoreflect.BytesKind {
		*text = strings.ToUpper(hex.EncodeToString(m.Get(field).Bytes()))
		return
	}
	*text = m.Get(field).String()
}

func (m decoding) File(letter string, name *string) { m.Reference(letter, "", m.kind, name) }

func (m decoding) Whole(letter string, _ int64, use objects.Use) int64 {
	low, high := use.Range()
	n, fits := int64(0), true
	switch field := m.field(letter); field.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		u := m.Get(field).Uint()
		n, fits = int64(u), u <= math.MaxInt64
	default:
		n = m.Get(field).Int()
	}
	if n != 0 && !(fits && low <= n && n <= high) {
		m.wrong(farmdata.KindValue, letter, "out of range")
		return 0
	}
	return n
}

func (m decoding) Float(letter string, f *float64, use objects.Use) {
	if *f = m.Get(m.field(letter)).Float(); math.IsNaN(*f) || math.IsInf(*f, 0) {
		m.wrong(farmdata.KindValue, letter, "out of range")
		*f = 0
	}
	if *f == 0 && (use&objects.Scale != 0 || use == objects.Heading|objects.Required) {
		m.wrong(farmdata.KindValue, letter, "missing or zero")
	}
}

func (m decoding) DDI(letter string, ddi *farmdata.DDI, _ objects.Use) {
	n := m.Get(m.field(letter)).Uint()
	if n > math.MaxUint16 {
		m.wrong(farmdata.KindValue, letter, "out of range")
		n = uint64(farmdata.DDIUnknown)
	}
	*ddi = farmdata.DDI(n)
}

func (m decoding) Value(letter string, raw *int64, missing *bool, _ objects.Use) {
	*raw = m.Whole(letter, 0, 0)
	if missing != nil {
		*missing = false
	}
}

// Place takes half of a place for none. Points have one, others need not.
func (m decoding) Place(latitude, longitude string, north, east *float64) {
	m.Float(latitude, north, 0)
	m.Float(longitude, east, 0)
	p := farmdata.Position{North: *north, East: *east}
	finding := has(&p)
	if m.kind == "PNT" && p.North == 0 && p.East == 0 {
		finding = damaged(farmdata.KindPosition, -1, "no place", nil)
	}
	if finding != nil {
		m.find(finding.Kind, string(m.Descriptor().Name())+": "+finding.Detail)
	}
	if place := farmdata.HasNorth | farmdata.HasEast; p.Has&place != place {
		*north, *east = 0, 0
	}
}

func (m decoding) Stamp(letter string, stamp *farmdata.Stamp) {
	t, _ := m.Get(m.field(letter)).Message().Interface().(*timestamppb.Timestamp)
	at := timestamp{t != nil, t.GetSeconds(), t.GetNanos()}
	if at.outOfRange() {
		m.wrong(farmdata.KindTime, letter, "time out of range")
	}
	stamp.Wall = at.instant()
}

func (m decoding) Parts(number int, kind string, list objects.List) {
	field := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(number))
	if field == nil || !m.Has(field) {
		return
	}
	add := func(part protoreflect.Message) {
		object := objects.New(kind)
		m.read(part, kind, object, m.offset)
		list.Add(object)
	}
	if !field.IsList() {
		add(m.Get(field).Message())
		return
	}
	for i := range m.Get(field).List().Len() {
		add(m.Get(field).List().Get(i).Message())
	}
}

func (m decoding) Allocated(number int, start, stop *farmdata.Stamp, kind *int) {
	stamp := m
	stamp.Message = m.Get(m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(number))).Message()
	stamp.Stamp("A", start)
	stamp.Stamp("B", stop)
	*kind = int(stamp.Whole("D", 0, 0))
}

func (m decoding) Positions(list *[]farmdata.Position) {
	t, _ := m.Interface().(*efdipb.Time)
	for _, from := range []*efdipb.Position{t.GetPositionStart(), t.GetPositionStop()} {
		if from == nil {
			continue
		}
		at := m
		at.Message = from.ProtoReflect()
		p := farmdata.Position{Up: from.GetUp(), Status: uint8(from.GetStatus()), Satellites: int(from.GetSatellites())}
		if int32(p.Status) != from.GetStatus() {
			at.wrong(farmdata.KindValue, "D", "out of range")
			p.Status = statusUnknown
		}
		at.Float("E", &p.PDOP, 0)
		at.Float("F", &p.HDOP, 0)
		at.Place("A", "B", &p.North, &p.East)
		_ = has(&p) // which Place has told
		*list = append(*list, p)
	}
}

// id makes the ID that stands in TaskData: the hyphen that some have there is a
// minus sign here.
func id(letters string, from *efdipb.UID) string {
	switch {
	case from.GetNumber() != 0:
		return letters + strconv.FormatInt(from.GetNumber(), 10)
	case len(from.GetUri()) > 0:
		return from.GetUri()[0]
	}
	return ""
}

// encoding is a message of a TaskData that is made of an object.
type encoding struct {
	EncodeConfig
	protoreflect.Message
	kind string // of the object
}

// encode makes a message of an object.
func (c EncodeConfig) encode(m protoreflect.Message, kind string, object any) {
	objects.Visit(encoding{c, m, kind}, kind, object)
}

func (e encoding) find(kind farmdata.Kind, detail string) {
	if e.Finding != nil {
		e.Finding(damaged(kind, -1, detail, nil))
	}
}

func (e encoding) set(letter string, value protoreflect.Value) {
	e.Set(fieldOf(e.Message, letter), value)
}

// Needs does nothing. The methods below write a field.
func (e encoding) Needs(...string) {}

func (e encoding) ID(letter string, id *string) { e.Reference(letter, "", e.kind, id) }

func (e encoding) Reference(letter, _, kind string, id *string) {
	if u := uid(kind, *id); u != nil {
		e.set(letter, protoreflect.ValueOfMessage(u.ProtoReflect()))
	}
}

// Text leaves out bytes that are not hexadecimal.
func (e encoding) Text(letter string, text *string, _ objects.Use) {
	if fieldOf(e.Message, letter).Kind() != protoreflect.BytesKind {
		e.set(letter, protoreflect.ValueOfString(valid(*text)))
	} else if b, err := hex.DecodeString(*text); err == nil {
		e.set(letter, protoreflect.ValueOfBytes(b))
	} else {
		e.find(farmdata.KindValue, string(fieldOf(e.Message, letter).Name())+" of "+e.kind+": not hexadecimal")
	}
}

func (e encoding) File(letter string, name *string) { e.Reference(letter, "", e.kind, name) }

// Whole takes what is not given, which is negative, for zero, as protobuf does.
func (e encoding) Whole(letter string, n int64, _ objects.Use) int64 {
	switch fieldOf(e.Message, letter).Kind() {
	case protoreflect.Uint32Kind:
		e.set(letter, protoreflect.ValueOfUint32(uint32(min(max(n, 0), math.MaxUint32))))
	case protoreflect.Uint64Kind:
		e.set(letter, protoreflect.ValueOfUint64(uint64(max(n, 0))))
	case protoreflect.Int32Kind:
		e.set(letter, protoreflect.ValueOfInt32(int32(n)))
	default:
		e.set(letter, protoreflect.ValueOfInt64(n))
	}
	return n
}

func (e encoding) Float(letter string, f *float64, _ objects.Use) {
	e.set(letter, protoreflect.ValueOfFloat64(*f))
}

func (e encoding) DDI(letter string, ddi *farmdata.DDI, _ objects.Use) {
	e.set(letter, protoreflect.ValueOfUint32(uint32(*ddi)))
}

func (e encoding) Value(letter string, raw *int64, _ *bool, _ objects.Use) { e.Whole(letter, *raw, 0) }

func (e encoding) Place(latitude, longitude string, north, east *float64) {
	e.Float(latitude, north, 0)
	e.Float(longitude, east, 0)
}

func (e encoding) Stamp(letter string, stamp *farmdata.Stamp) {
	if t := e.instant(*stamp); t != nil {
		e.set(letter, protoreflect.ValueOfMessage(t.ProtoReflect()))
	}
}

// Parts leaves out what EFDI has no room for: lists of links, and all but the first where there is only one.
func (e encoding) Parts(number int, kind string, list objects.List) {
	field := e.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(number))
	if field == nil || list.Len() == 0 {
		e.unsupported(kind, list.Len())
		return
	}
	if !field.IsList() {
		e.unsupported(kind, list.Len()-1)
		e.encode(e.Mutable(field).Message(), kind, list.At(0))
		if kind == "GRD" {
			e.find(farmdata.KindUnsupported, "cells of GRD")
		}
		return
	}
	for i := range list.Len() {
		if part := list.At(i); !e.saysNothing(part) {
			e.encode(e.Mutable(field).List().AppendMutable().Message(), kind, part)
		}
	}
}

func (e encoding) unsupported(kind string, left int) {
	if left > 0 && kind != "TLG" { // logs are messages of their own
		e.find(farmdata.KindUnsupported, fmt.Sprintf("%d %s of %s", left, kind, e.kind))
	}
}

// saysNothing reports whether a part is left out because its amount is missing: zero is an amount. A zone without a code is
// zone 0 in EFDI.
func (e encoding) saysNothing(part any) bool {
	missing := ""
	switch o := part.(type) {
	case *farmdata.ZoneValue:
		if o.Missing {
			missing = "amount of PDV"
		}
	case *farmdata.ProductRelation:
		if o.Missing {
			missing = "amount of PRN"
		}
	case *farmdata.TreatmentZone:
		if o.Code < 0 {
			e.find(farmdata.KindValue, "code of TZN: missing, 0 was written")
		}
	}
	if missing != "" {
		e.find(farmdata.KindValue, missing+": missing")
	}
	return missing != ""
}

func (e encoding) Allocated(number int, start, stop *farmdata.Stamp, kind *int) {
	if start.IsZero() && stop.IsZero() && *kind == 0 {
		return
	}
	stamp := encoding{e.EncodeConfig, e.Mutable(e.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(number))).Message(), ""}
	stamp.Stamp("A", start)
	stamp.Stamp("B", stop)
	stamp.set("D", protoreflect.ValueOfInt32(int32(*kind)))
}

func (e encoding) Positions(list *[]farmdata.Position) {
	t, _ := e.Interface().(*efdipb.Time)
	for i, p := range *list {
		switch i {
		case 0:
			t.PositionStart = encodePosition(&p)
		case 1:
			t.PositionStop = encodePosition(&p)
		}
	}
}

// uid makes the number of an ID of TaskData, so that reading it makes the same ID again; what is no such
// ID stands there as it is.
func uid(letters, id string) *efdipb.UID {
	if id == "" {
		return nil
	}
	if digits, ok := strings.CutPrefix(id, letters); ok {
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n != 0 && strconv.FormatInt(n, 10) == digits {
			return &efdipb.UID{Number: n}
		}
	}
	return &efdipb.UID{Uri: []string{valid(id)}}
}

// valid makes a text one that protobuf takes.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
