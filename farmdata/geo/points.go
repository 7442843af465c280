package geo

import (
	"strconv"

	"github.com/agrimill/agrimill/farmdata"
)

// Points writes a Point for each record of a log that has a valid position, with its
// time, without an offset if that is local, its scaled values, and those that the log has for all records.
func (w *Writer) Points(log *farmdata.Log) error {
	w.keys.Begin()
	head := appendString(append(appendString([]byte(`},"properties":{"kind":"record","log":`), log.Name), `,"task":`...), log.TaskID)
	p := properties{w: w, known: map[*farmdata.Column]*property{}}
	for record, err := range log.Records {
		if err != nil {
			if err := w.found(err); err != nil {
				return err
			}
			continue
		}
		if !record.Position.Valid() {
			continue
		}
		at := record.Position
		w.begin()
		w.raw(`"geometry":{"type":"Point","coordinates":`)
		w.coordinates(Coordinates{at.East, at.North})
		_, _ = w.w.Write(head)
		w.raw(`,"record":`)
		w.integer(record.Number)
		w.raw(`,"time":"`)
		w.raw(record.Stamp.String()) // which needs no escape
		w.raw(`"`)
		if at.Has&farmdata.HasUp != 0 {
			w.raw(`,"up":`)
			w.number(float64(at.Up) / 1000)
		}
		if at.Has&farmdata.HasStatus != 0 {
			w.raw(`,"status":` + strconv.Itoa(int(at.Status)))
		}
		p.record(record, log.Constants)
		w.raw("}}")
		if record.Number%1000 == 0 && w.failed() != nil {
			return w.failed()
		}
	}
	return w.failed()
}

// properties writes values under the names of their columns.
type properties struct {
	w       *Writer
	known   map[*farmdata.Column]*property
	hints   []*property // by the place of a value in its record: usually the same column every time
	records int64
}

type property struct {
	column *farmdata.Column
	key    []byte
	record int64 // counted from 1, that it was last written in
}

// record writes the values of a record, each column once: damaged data may have one twice.
func (p *properties) record(record *farmdata.Record, constants []farmdata.Value) {
	p.records++
	for i, v := range record.Values {
		if i == len(p.hints) {
			p.hints = append(p.hints, p.find(v.Column))
		}
		if p.hints[i].column != v.Column {
			p.hints[i] = p.find(v.Column)
		}
		p.write(p.hints[i], v)
	}
	for _, v := range constants {
		p.write(p.find(v.Column), v)
	}
}

func (p *properties) find(column *farmdata.Column) *property {
	known := p.known[column]
	if known == nil {
		known = &property{column: column, key: p.w.key(column)}
		p.known[column] = known
	}
	return known
}

func (p *properties) write(to *property, v farmdata.Value) {
	if to.record == p.records {
		return
	}
	to.record = p.records
	_, _ = p.w.w.Write(to.key)
	p.w.number(v.Scaled())
}
