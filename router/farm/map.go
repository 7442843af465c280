package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
	"github.com/agrimill/agrimill/internal/validate"
)

// KeyLayer is what a GeoParquet file of [NewMap] has: a value of [MapConfig.Layers].
const KeyLayer = "x-farm-layer"

// KeyFindings is how many places of the data could not be read, on records, a map, or EFDI, that lack what was there.
const KeyFindings = "x-farm-findings"

// Message types of maps.
const (
	TypeGeoJSON    = "farm:map:geojson"
	TypeGeoParquet = "farm:map:geoparquet"
)

// Values of [MapConfig.Format].
const (
	FormatGeoJSON    = "geojson"
	FormatGeoParquet = "geoparquet"
)

// MapConfig configures [NewMap].
type MapConfig struct {
	// Format is geojson or geoparquet. Empty means geojson.
	Format string `yaml:"format" enum:"geojson,geoparquet"`
	// Layers are what the map shows: fields, tracks, points (records with values), grids and zones (prescriptions).
	// Empty means all but points.
	Layers []geo.Layer `yaml:"layers"`
	// Columns are which values points, grids and zones have, and what they are called. Empty means all of them.
	Columns []geo.Column `yaml:"columns"`
	// Add names what each feature refers to: task, field, farm, customer, product, machine, operator.
	Add []geo.Attribute `yaml:"add"`
	// MaxOutput is how many bytes the messages made of one payload may have. They are in
	// memory until the sink has them, and a payload that would make more passes as it is. A point
	// of GeoParquet counts as at least 16 bytes, and a cell of a grid as 80, however well it
	// compresses. 0 means [DefaultMaxOutput]; negative is an error.
	MaxOutput int64 `yaml:"max_output" unit:"bytes"`

	ReadConfig `yaml:",inline"`
}

// WithDefaults returns the configuration with its defaults.
func (c MapConfig) WithDefaults() MapConfig {
	c.Format, c.MaxOutput = cmp.Or(c.Format, FormatGeoJSON), cmp.Or(c.MaxOutput, DefaultMaxOutput)
	if len(c.Layers) == 0 {
		c.Layers = []geo.Layer{geo.Fields, geo.Tracks, geo.Grids, geo.Zones}
	}
	c.ReadConfig = c.ReadConfig.WithDefaults()
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c MapConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Format == "" || c.Format == FormatGeoJSON || c.Format == FormatGeoParquet, "Format", "must be %s or %s", FormatGeoJSON, FormatGeoParquet)
	e.Check(geo.Config{Layers: c.Layers}.Validate() == nil, "Layers", "must be of fields, tracks, points, grids and zones")
	valid := true
	for i, column := range c.Columns {
		err := column.Validate()
		e.Check(err == nil, fmt.Sprintf("Columns[%d]", i), "%v", err)
		valid = valid && err == nil
	}
	if err := (geo.Config{Columns: c.Columns}).Validate(); valid && err != nil { // of several columns
		e.Check(false, "Columns", "are wrong: %s", strings.TrimPrefix(err.Error(), "geo: Columns: "))
	}
	e.Check(geo.Config{Add: c.Add}.Validate() == nil, "Add", "must be of task, field, farm, customer, product, machine and operator")
	validate.NotNegative(&e, "MaxOutput", c.MaxOutput)
	e.Join("", c.ReadConfig.Validate())
	return e.Err(ErrConfig)
}

// NewMap returns a transform for [router.Route.Transform] that makes maps of TaskData and EFDI, for the
// blob sink, say.
//
// GeoJSON is one message for a set, of the type [TypeGeoJSON]. GeoParquet is a message for each layer of a set, and in the
// layers points, grids and zones for each log, grid and task, of the type [TypeGeoParquet], with [KeyLayer]; their columns
// differ. What there is nothing to show of makes no message; a payload of which nothing can be read that the map shows passes as it is,
// with [KeyReadable].
func NewMap(config MapConfig) (message.HandlerFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	r := newReader(config.ReadConfig)
	return transform(r, func(ctx context.Context, to *maker, data *content.Data) error {
		for i, set := range data.Sets {
			m := &cartographer{ctx: ctx, config: config, maker: to, index: strconv.Itoa(i)}
			m.set = m.limited(set)
			m.prescriptions()
			for _, finding := range set.Findings {
				to.lose(finding)
			}
			for i := range set.Fields {
				multi, _ := geo.FieldPolygon(&set.Fields[i])
				m.shown(m.shows(geo.Fields) && len(multi) > 0)
			}
			if err := m.run(); err != nil {
				return err
			}
		}
		to.dropEmpty()
		return nil
	}), nil
}

// cartographer makes the maps of a set.
type cartographer struct {
	ctx    context.Context
	config MapConfig
	maker  *maker
	set    *farmdata.Set
	index  string
	maps   []farmdata.Prescription // of the layers grids and zones
	found  int                     // findings of the map that is being made
}

// finding counts.
func (m *cartographer) finding(f *farmdata.Finding) {
	m.found++
	m.maker.lose(f)
}

// shown counts what was read, if the map has something of it.
func (m *cartographer) shown(has bool) {
	if has {
		m.maker.read++
	}
}

// geo returns what the maps of the set have.
func (m *cartographer) geo(layers ...geo.Layer) geo.Config {
	return geo.Config{Layers: layers, Columns: m.config.Columns, Add: m.config.Add, Set: m.set, Finding: m.finding}
}

func (m *cartographer) shows(layer geo.Layer) bool { return slices.Contains(m.config.Layers, layer) }

func (m *cartographer) run() error {
	if m.config.Format == FormatGeoParquet {
		return m.parquet()
	}
	return m.json()
}

func (m *cartographer) json() error {
	shown := m.shows(geo.Fields) && len(m.set.Fields) > 0 || (m.shows(geo.Tracks) || m.shows(geo.Points)) && len(m.set.Logs) > 0 ||
		len(m.maps) > 0
	if !shown {
		return nil
	}
	return m.make(TypeGeoJSON, ".geojson", nil, nil, func(to io.Writer) error {
		return geo.Write(to, m.set, m.geo(m.config.Layers...))
	})
}

func (m *cartographer) parquet() error {
	if len(m.set.Fields) > 0 {
		if err := m.layer(geo.Fields, "-fields.parquet", message.Metadata{}, m.set); err != nil {
			return err
		}
	}
	if len(m.set.Logs) > 0 {
		if err := m.layer(geo.Tracks, "-tracks.parquet", message.Metadata{}, m.set); err != nil {
			return err
		}
	}
	for i, log := range m.set.Logs {
		if located, err := m.located(log); err != nil {
			return err
		} else if !located {
			continue
		}
		one, limited := *m.set, *log
		limited.Records = affordable(m, pointBytes, log.Records, func(r *farmdata.Record) bool { return r.Position.Valid() })
		one.Logs = []*farmdata.Log{&limited}
		if err := m.layer(geo.Points, "-"+cmp.Or(log.Name, "log")+"-points.parquet", ofLog(log), &one, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	endings := map[string]bool{}
	for i := range m.maps {
		layer := geo.Zones
		if grid := m.maps[i].Grid; grid != nil {
			layer = geo.Grids
			limited := *grid
			limited.Cells = affordable(m, cellBytes, grid.Cells, func(*farmdata.Cell) bool { return true })
			m.maps[i].Grid = &limited
		}
		if err := m.make(TypeGeoParquet, m.ending(i, endings), []string{string(layer), strconv.Itoa(i)}, message.Metadata{KeyLayer: string(layer)}, func(w io.Writer) error {
			return geoparquet.WritePrescription(w, &m.maps[i], m.geo())
		}); err != nil {
			return err
		}
	}
	return nil
}

// layer makes a file of a layer, if the map shows it.
func (m *cartographer) layer(name geo.Layer, ending string, metadata message.Metadata, set *farmdata.Set, names ...string) error {
	if !m.shows(name) {
		return nil
	}
	metadata[KeyLayer] = string(name)
	return m.make(TypeGeoParquet, ending, append([]string{string(name)}, names...), metadata, func(w io.Writer) error {
		return geoparquet.Write(w, set, m.geo(name))
	})
}

// ending is what the name of a prescription's file ends in. Other prescriptions of the set have other ones.
func (m *cartographer) ending(at int, taken map[string]bool) string {
	p := &m.maps[at]
	name := "-"
	if p.Grid != nil {
		name += cmp.Or(p.Grid.Name, "grid")
	} else {
		name += cmp.Or(p.Tasks[0].ID, "task") + "-zones"
	}
	if taken[name] { // by tasks that mean other things by the same grid, for example
		name += "-" + strconv.Itoa(at)
	}
	taken[name] = true
	return name + ".parquet"
}

// located reports whether the layer of points shows something of a log. If not, what cannot be read of it is noted. The error is
// that of the context.
func (m *cartographer) located(log *farmdata.Log) (bool, error) {
	if !m.shows(geo.Points) {
		return false, nil
	}
	var finding *farmdata.Finding
	for record, err := range log.Records {
		switch {
		case errors.As(err, &finding):
			m.maker.lose(finding)
		case err != nil:
			return false, err
		case record.Position.Valid():
			return true, nil
		}
	}
	m.maker.there = true
	return false, m.ctx.Err()
}

// pointBytes and cellBytes are what a point and the five of a grid's cell count for in MaxOutput: their coordinates. Millions of equal
// ones take hardly anything once compressed, but long to write.
const (
	pointBytes = 16
	cellBytes  = 5 * pointBytes
)

// affordable reads what seq does, and ends with errTooMuch where those that are shown would exceed MaxOutput before they are compressed.
func affordable[T any](m *cartographer, bytes int64, seq iter.Seq2[*T, error], shown func(*T) bool) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		left := m.config.MaxOutput / bytes
		for value, err := range seq {
			if err == nil && shown(value) {
				if left--; left < 0 {
					yield(nil, errTooMuch)
					return
				}
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// prescriptions finds the prescriptions that the map shows.
func (m *cartographer) prescriptions() {
	if !m.shows(geo.Grids) && !m.shows(geo.Zones) {
		return
	}
	for _, p := range m.set.Prescriptions() {
		switch {
		case p.Grid != nil && m.shows(geo.Grids):
			m.maps = append(m.maps, p)
		case p.Grid == nil && m.shows(geo.Zones):
			for _, zone := range p.Zones {
				m.shown(geo.Encloses(zone.Polygons))
			}
			m.maps = append(m.maps, p)
		}
	}
}

// limited returns a set, the reading of whose logs and grids ends with the context, and counts.
func (m *cartographer) limited(set *farmdata.Set) *farmdata.Set {
	out := *set
	out.Logs, out.Tasks = slices.Clone(set.Logs), slices.Clone(set.Tasks)
	for i, log := range out.Logs {
		limited := *log
		limited.Records = bounded(m.ctx, log.Records, func(r *farmdata.Record) { m.shown(r.Position.Valid()) })
		out.Logs[i] = &limited
	}
	for i := range out.Tasks {
		task := &out.Tasks[i]
		task.Grids = slices.Clone(task.Grids)
		for j, grid := range task.Grids {
			limited := *grid
			limited.Cells = bounded(m.ctx, grid.Cells, func(*farmdata.Cell) { m.shown(grid.Valid()) })
			task.Grids[j] = &limited
		}
	}
	return &out
}

// bounded yields what seq does, and the error of ctx once it has ended, also of many short ones. It calls each, if that is not nil, with
// what is no error.
func bounded[T any](ctx context.Context, seq iter.Seq2[*T, error], each func(*T)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		n := 0
		for value, err := range seq {
			if n++; n%256 == 1 && ctx.Err() != nil {
				yield(nil, ctx.Err())
				return
			}
			if err == nil && each != nil {
				each(value)
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// errTooMuch is the error of a limited writer.
var errTooMuch = errors.New("too much output")

// limited is a buffer that refuses what is beyond its limit. It has pieces, because one that grows is in memory three times.
type limited struct {
	pieces [][]byte
	left   int64
}

// pieceSize is the size of a piece of limited.
const pieceSize = 256 << 10

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, errTooMuch
	}
	for rest := b; len(rest) > 0; {
		last := len(l.pieces) - 1
		if last < 0 || len(l.pieces[last]) == cap(l.pieces[last]) {
			l.pieces = append(l.pieces, make([]byte, 0, pieceSize))
			last++
		}
		piece := l.pieces[last]
		n := copy(piece[len(piece):cap(piece)], rest)
		l.pieces[last], rest = piece[:len(piece)+n], rest[n:]
	}
	return len(b), nil
}

// Bytes returns what was written.
func (l *limited) Bytes() []byte {
	return slices.Concat(l.pieces...)
}

// make makes a message of what write writes.
func (m *cartographer) make(kind, ending string, names []string, metadata message.Metadata, write func(io.Writer) error) error {
	out := &limited{left: m.config.MaxOutput - m.maker.bytes}
	m.found = len(m.set.Findings)
	if err := write(out); err != nil {
		switch {
		case errors.Is(err, errTooMuch):
			return &unreadable{fmt.Sprintf("limit: its maps would take more than %d bytes (max_output)", m.config.MaxOutput)}
		case m.ctx.Err() != nil:
			return m.ctx.Err()
		}
		return &unreadable{"it has no map: " + err.Error()}
	}
	if m.found > 0 {
		if metadata == nil {
			metadata = message.Metadata{}
		}
		metadata[KeyFindings] = strconv.Itoa(m.found)
	}
	m.maker.add(out.Bytes(), kind, ending, metadata, append([]string{m.index}, names...)...)
	return nil
}
