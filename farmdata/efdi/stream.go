package efdi

import (
	"errors"
	"io"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agrimill/agrimill/farmdata"
)

// entries yields the records of a list of messages: those in the field that has them.
// decode makes a record of one, and returns a finding instead of or beside it.
func (r *reader) entries(s section, of *schema, decode func([]byte, *farmdata.Record) (*farmdata.Finding, bool)) iter.Seq2[*farmdata.Record, error] {
	return func(yield func(*farmdata.Record, error) bool) {
		var record farmdata.Record
		var body []byte
		told := 0
		once := map[farmdata.Kind]bool{farmdata.KindTime: false, farmdata.KindUnsupported: false, farmdata.KindDuplicate: false} // usually all entries have it
		tell := func(finding *farmdata.Finding, offset int64) bool {
			if before, is := once[finding.Kind]; is {
				if before {
					return true
				}
				once[finding.Kind] = true
			}
			if told++; told > r.cfg.MaxFindings+1 {
				return true
			} else if told > r.cfg.MaxFindings {
				finding = damaged(farmdata.KindLimit, -1, "more findings than the limit allows", nil)
			}
			if finding.Record = record.Number; offset >= 0 {
				finding.Offset = offset
			}
			return yield(nil, finding)
		}
		var finding *farmdata.Finding
		for w := walk(s); ; {
			f, err := w.next()
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.As(err, &finding):
				finding.Record = record.Number
				yield(nil, finding)
				return
			case f.number != of.entry || f.wire != protowire.BytesType:
				if wire, known := of.fields[f.number]; (!known || wire != f.wire) && !tell(undescribed(), f.start) {
					return
				}
				if f.wire == protowire.BytesType { // others are behind us
					err = w.skip(f)
				}
			case f.length > r.cfg.MaxEntry:
				if !tell(damaged(farmdata.KindLimit, f.start, "entry larger than allowed", nil), f.start) {
					return
				}
				record.Number++
				err = w.skip(f)
			default:
				if body, err = w.read(f, body[:0]); err != nil {
					break
				}
				number := record.Number
				problem, whole := decode(body, &record)
				record.Number = number
				if problem != nil && !tell(problem, f.start) || whole && !yield(&record, nil) {
					return
				}
				record.Number++
			}
			if errors.As(err, &finding) {
				finding.Record = record.Number
				yield(nil, finding)
				return
			}
		}
	}
}

// records decodes the entries of a log. A device element that no device has is told once, if there are devices.
func (r *reader) records(s section) iter.Seq2[*farmdata.Record, error] {
	return func(yield func(*farmdata.Record, error) bool) {
		d, told := newDecoder(r.descriptions(), r.cfg.MaxColumns), len(r.devices()) == 0
		for record, err := range r.entries(s, schemas[TimeLog], d.decode) {
			if d.nameless && !told {
				told = true
				finding := damaged(farmdata.KindReference, -1, "no device has the device element of a value, here and maybe in later entries", nil)
				if record != nil {
					finding.Record = record.Number
				}
				if !yield(nil, finding) {
					return
				}
			}
			if !yield(record, err) {
				return
			}
		}
	}
}

// positions decodes a list of positions.
func (r *reader) positions(s section) iter.Seq2[*farmdata.Record, error] {
	return r.entries(s, schemas[GPSList], decodeEntry)
}
