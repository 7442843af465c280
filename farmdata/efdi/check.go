package efdi

import (
	"cmp"
	"math"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agrimill/agrimill/farmdata"
)

// check goes through a message of a TaskData, takes out each number that is none or that has no room in the model, and
// reports it. offset is where the message is.
func (r *reader) check(m protoreflect.Message, offset int64) {
	fields := m.Descriptor().Fields()
	wrong := func(kind farmdata.Kind, detail string) { r.add(damaged(kind, offset, detail, nil)) }
	for i := range fields.Len() {
		field := fields.Get(i)
		if !m.Has(field) {
			continue
		}
		name := string(field.Name()) + " of " + string(m.Descriptor().Name())
		switch value := m.Get(field); {
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				r.check(value.List().Get(i).Message(), offset)
			}
		case field.IsList():
		case field.Message() != nil && field.Message().FullName() == "google.protobuf.Timestamp":
			if (timestamp{there: true, seconds: value.Message().Get(field.Message().Fields().ByNumber(1)).Int(),
				nanos: int32(value.Message().Get(field.Message().Fields().ByNumber(2)).Int())}).outOfRange() {
				wrong(farmdata.KindTime, name+": time out of range")
				m.Clear(field)
			}
		case field.Message() != nil:
			r.check(value.Message(), offset)
		case !fits(field, value):
			wrong(farmdata.KindValue, name+": out of range")
			m.Clear(field)
			if field.Name() == "ddi" {
				m.Set(field, protoreflect.ValueOfUint32(uint32(farmdata.DDIUnknown)))
			} else if name == "status of Position" {
				m.Set(field, protoreflect.ValueOfInt32(statusUnknown))
			}
		}
	}
	if scale := fields.ByName("scale"); scale != nil && m.Get(scale).Float() == 0 {
		wrong(farmdata.KindValue, "scale of "+string(m.Descriptor().Name())+": missing or zero")
	}
	r.checkPlace(m, offset)
}

// checkPlace takes half a place out of a message, and reports one that is not on Earth.
func (r *reader) checkPlace(m protoreflect.Message, offset int64) {
	fields := m.Descriptor().Fields()
	north, east := fields.ByName("north"), fields.ByName("east")
	if north == nil || east == nil {
		return
	}
	p := farmdata.Position{North: m.Get(north).Float(), East: m.Get(east).Float()}
	finding := has(&p)
	if p.North == 0 && p.East == 0 && m.Descriptor().Name() == "Point" { // others need not have one
		finding = damaged(farmdata.KindPosition, -1, "no place", nil)
	}
	if finding != nil {
		finding.Offset, finding.Detail = offset, string(m.Descriptor().Name())+": "+finding.Detail
		r.add(finding)
	}
	if p.Has&farmdata.HasNorth == 0 || p.Has&farmdata.HasEast == 0 {
		m.Clear(north)
		m.Clear(east)
	}
}

// fits reports whether a number is one, and one that the model has room for.
func fits(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
	switch field.Kind() {
	case protoreflect.DoubleKind:
		return !math.IsNaN(value.Float()) && !math.IsInf(value.Float(), 0)
	case protoreflect.Uint64Kind:
		if field.Name() == "duration" {
			return value.Uint() <= math.MaxInt64/uint64(time.Second)
		}
		return value.Uint() <= math.MaxInt64
	case protoreflect.Uint32Kind:
		most := map[protoreflect.Name]uint64{"ddi": math.MaxUint16, "color": math.MaxUint8}
		return value.Uint() <= cmp.Or(most[field.Name()], math.MaxUint32)
	case protoreflect.Int32Kind:
		return field.Name() != "status" || value.Int() >= 0 && value.Int() <= math.MaxUint8
	default:
		return true
	}
}
