package geoparquet

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
)

// points is the table of the records of logs.
type points struct {
	*table
	keys *geo.Keys
	// There are many rows, so their columns are looked up once.
	numbers, times, utcs *column
	receiver             []*column // of columns.Receiver
}

// writePoints writes a row for each record of logs that has a valid position.
func writePoints(w io.Writer, logs []*farmdata.Log, cfg Config) error {
	keys := &geo.Keys{Select: cfg.Columns, Finding: cfg.Finding}
	local, err := survey(logs, keys)
	if err != nil {
		return err
	}
	timestamp := func(adjusted bool) parquet.Node { return parquet.TimestampAdjusted(parquet.Microsecond, adjusted) }
	fields := parquet.Group{
		"log": text(), "task": text(), "record": parquet.Int(64), "time": parquet.Optional(timestamp(!local)), "utc": parquet.Optional(timestamp(true)),
	}
	for _, part := range columns.Receiver {
		if fields[part.Name] = optionalDouble(); part.Whole {
			fields[part.Name] = parquet.Optional(parquet.Int(32))
		}
	}
	addValues(fields, keys)
	t, err := newTable(w, fields, cfg)
	if err != nil {
		return err
	}
	p := points{table: t, keys: keys, numbers: t.columns["record"], times: t.columns["time"], utcs: t.columns["utc"]}
	for _, part := range columns.Receiver {
		p.receiver = append(p.receiver, t.columns[part.Name])
	}
	for _, log := range logs {
		if err := p.log(log); err != nil {
			return err
		}
	}
	return p.close(keys)
}

// addValues adds a column for each kind of value.
func addValues(fields parquet.Group, keys *geo.Keys) {
	for _, column := range keys.Select {
		if column.As != "" {
			fields[column.As] = optionalDouble()
		}
	}
	for name := range keys.Descriptions() {
		fields[name] = optionalDouble()
	}
}

// survey tells what the columns of a file depend on: the kinds of values, and whether the first record that gets into it has
// local time.
func survey(logs []*farmdata.Log, keys *geo.Keys) (local bool, err error) {
	first := true
	for _, log := range logs {
		keys.BeginLog(log)
		for record, err := range log.Records {
			var finding *farmdata.Finding
			if err != nil && !errors.As(err, &finding) {
				return false, fmt.Errorf("geoparquet: %w", err)
			}
			if err != nil || !record.Position.Valid() {
				continue
			}
			if first {
				first, local = false, record.Stamp.Local
			}
			if len(log.Columns) > 0 {
				break // nothing else to learn
			}
			for _, v := range record.Values {
				keys.Key(v.Column)
			}
		}
	}
	return local, nil
}

func (p *points) log(log *farmdata.Log) error {
	p.begin()
	p.setText("log", log.Name)
	p.setText("task", log.TaskID)
	p.setAttributes(p.names.Log(log, slices.Contains(p.cfg.Add, geo.Machine)), p.cfg.Add)
	common := p.common()
	p.keys.BeginLog(log)
	values := columns.Memo[*cell]{Make: func(c *farmdata.Column) *cell { return p.cell(p.keys, c) }}
	for record, err := range log.WithConstants() {
		if err != nil {
			if err := p.found(err); err != nil {
				return err
			}
			continue
		}
		at := record.Position
		if !at.Valid() {
			continue
		}
		p.beginWith(common)
		p.put(p.numbers, parquet.Int64Value(record.Number))
		p.putTime(p.times, record.Stamp.Wall)
		p.putTime(p.utcs, record.Stamp.UTC)
		for i, part := range columns.Receiver {
			switch value := part.Value(&record.Position); {
			case at.Has&part.Has == 0:
			case part.Whole:
				p.put(p.receiver[i], parquet.Int32Value(int32(int64(value))))
			default:
				p.put(p.receiver[i], parquet.DoubleValue(value))
			}
		}
		for i, v := range record.Values {
			p.putValue(values.At(i, v.Column), v)
		}
		if err := p.end("Point", point(geo.Coordinates{at.East, at.North}), []geo.Coordinates{{at.East, at.North}}); err != nil {
			return err
		}
	}
	return nil
}

// cell is where the values of a column go.
type cell struct {
	*geo.Key
	column *column // nil: it is not written
}

func (t *table) putValue(to *cell, v farmdata.Value) {
	if to.column != nil {
		t.put(to.column, parquet.DoubleValue(to.Value(v)))
	}
}

// cell returns where the values of a column go. A column that the file does not have is left out.
func (t *table) cell(keys *geo.Keys, of *farmdata.Column) *cell {
	c := &cell{Key: keys.Key(of)}
	if c.Key != nil {
		c.column = t.columns[c.Name]
	}
	return c
}
