package geo

import (
	"slices"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
)

// Points writes a Point for each record of a log that has a valid position, with its
// time, without an offset if that is local, what the receiver says about the position, its scaled values, and those that the log has for
// all records.
// With Config.Columns those only that it selects.
func (w *Writer) Points(log *farmdata.Log) error {
	w.keys.BeginLog(log)
	head := w.ofLog([]byte(`},"properties":{"kind":"record"`), log)
	p := properties{w: w, columns: columns.Memo[*property]{Make: w.property}, placeholders: w.placeholders()}
	for record, err := range log.WithConstants() {
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
		w.raw(`,"time":`)
		w.text(record.Stamp.String())
		for _, part := range columns.Receiver {
			if at.Has&part.Has != 0 {
				w.raw(`,"`)
				w.raw(part.Name)
				w.raw(`":`)
				w.number(part.Value(&record.Position))
			}
		}
		p.record(record)
		w.raw("}}")
		if record.Number%1000 == 0 && w.failed() != nil {
			return w.failed()
		}
	}
	return w.failed()
}

// properties writes values under the names of their columns.
type properties struct {
	w            *Writer
	columns      columns.Memo[*property]
	placeholders []placeholder
	records      int64
}

// placeholder is a column that is in each feature.
type placeholder struct {
	null   []byte // the property without a value
	record int64  // that has a value
}

// placeholders returns one for each of Config.Columns. Those without a name of their own, or with one that came before, are in
// no feature.
func (w *Writer) placeholders() []placeholder {
	list := make([]placeholder, len(w.cfg.Columns))
	for i, c := range w.cfg.Columns {
		if c.As != "" && slices.IndexFunc(w.cfg.Columns, func(other Column) bool { return other.As == c.As }) == i {
			list[i].null = append(appendString([]byte{','}, c.As), ":null"...)
		}
	}
	return list
}

// record writes the values of a record, each column once: damaged data may have one twice.
func (p *properties) record(record *farmdata.Record) {
	p.records++
	for i, v := range record.Values {
		p.write(p.columns.At(i, v.Column), v)
	}
	for i := range p.placeholders {
		if p.placeholders[i].record != p.records {
			_, _ = p.w.w.Write(p.placeholders[i].null)
		}
	}
}

func (p *properties) write(to *property, v farmdata.Value) {
	if to.Key == nil || to.record == p.records {
		return
	}
	to.record = p.records
	if to.placeholder >= 0 {
		p.placeholders[to.placeholder].record = p.records
	}
	_, _ = p.w.w.Write(appendFloat(append(p.w.w.AvailableBuffer(), to.text...), to.Value(v)))
}
