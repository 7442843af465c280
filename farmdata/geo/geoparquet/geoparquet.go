// Package geoparquet writes farm data as GeoParquet 1.1: geometries as WKB in OGC:CRS84
// (longitude and latitude of WGS 84), each with a bounding box that readers can skip
// by. GeoPandas and DuckDB, for example, open such files.
package geoparquet

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/snappy"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/names"
	"github.com/agrimill/agrimill/farmdata/internal/tracks"
)

// Config says what a file has, and how it is made.
type Config = geo.Config

// ColumnsKey is the key of the file's metadata that says what the columns of values
// are: a JSON object of geo.Description by name of the column.
const ColumnsKey = "farmdata:columns"

// longestPart is how many places a part of a track has at most: it is in memory as a whole.
const longestPart = 100_000

// writeTracks writes the ways of logs.
func writeTracks(w io.Writer, logs []*farmdata.Log, cfg Config) error {
	fields := parquet.Group{"log": text(), "task": text(), "part": parquet.Int(64), "records": parquet.Int(64), "start": parquet.Optional(parquet.String()), "end": parquet.Optional(parquet.String())}
	t, err := newTable(w, fields, cfg)
	if err != nil {
		return err
	}
	for _, log := range logs {
		if err := t.track(log); err != nil {
			return err
		}
	}
	return t.close(nil)
}

func (t *table) track(log *farmdata.Log) error {
	var places []geo.Coordinates
	var start, end farmdata.Stamp
	var steps tracks.Steps
	subject := t.names.Log(log, slices.Contains(t.cfg.Add, geo.Machine))
	part, shared := int64(0), 0 // shared: places that the part before has, too
	flush := func() error {
		if len(places) <= shared {
			return nil
		}
		part++
		t.begin()
		t.setText("log", log.Name)
		t.setText("task", log.TaskID)
		t.setAttributes(subject, t.cfg.Add)
		t.set("part", parquet.Int64Value(part))
		t.set("records", parquet.Int64Value(int64(len(places)-shared)))
		t.setText("start", start.String())
		t.setText("end", end.String())
		if !slices.ContainsFunc(places, func(at geo.Coordinates) bool { return at != places[0] }) {
			return t.end("Point", point(places[0]), places[:1])
		}
		wkb := header(make([]byte, 0, 9+16*len(places)), wkbLineString, len(places))
		for _, at := range places {
			wkb = coordinates(wkb, at)
		}
		return t.end("LineString", wkb, places)
	}
	for record, err := range log.Records {
		if err != nil {
			if err := t.found(err); err != nil {
				return err
			}
			continue
		}
		p := record.Position
		if !p.Valid() {
			continue
		}
		at := geo.Coordinates{p.East, p.North}
		begins := steps.Next(record.Stamp, at[1], at[0], 180)
		if n := len(places); n > 0 && (begins || n >= longestPart) {
			if err := flush(); err != nil {
				return err
			}
			start, places, shared = end, append(places[:0], places[n-1]), 1
			if begins {
				places, shared = places[:0], 0
			}
		}
		if len(places) == 0 {
			start = record.Stamp
		}
		places, end = append(places, at), record.Stamp
	}
	return flush()
}

// writeFields writes a row for each field that has boundaries.
func writeFields(w io.Writer, fields []farmdata.Field, cfg Config) error {
	columns := parquet.Group{"id": text(), "name": text(), "area": parquet.Optional(parquet.Int(64)), "farm": text(), "customer": text()}
	t, err := newTable(w, columns, cfg)
	if err != nil {
		return err
	}
	for _, field := range fields {
		multi, finding := geo.FieldPolygon(&field)
		if finding != nil {
			if err := t.found(finding); err != nil {
				return err
			}
		}
		if len(multi) == 0 {
			continue
		}
		t.begin()
		t.setText("id", field.ID)
		t.setText("name", field.Designator)
		if field.Area > 0 {
			t.set("area", parquet.Int64Value(field.Area))
		}
		t.setText("farm", field.FarmID)
		t.setText("customer", field.CustomerID)
		t.setAttributes(names.Subject{Field: &field}, cfg.Add)
		if err := t.multiPolygon(multi); err != nil {
			return err
		}
	}
	return t.close(nil)
}

// found takes what a stream yields instead of a record.
func (t *table) found(err error) error {
	var finding *farmdata.Finding
	if !errors.As(err, &finding) {
		return fmt.Errorf("geoparquet: %w", err)
	}
	if t.cfg.Finding != nil {
		t.cfg.Finding(finding)
	}
	return nil
}

func text() parquet.Node {
	return parquet.Optional(parquet.Encoded(parquet.String(), &parquet.RLEDictionary))
}

func optionalDouble() parquet.Node { return parquet.Optional(parquet.Leaf(parquet.DoubleType)) }

// box is a bounding box: west, south, east, north.
type box [4]float64

func (b *box) extend(west, south, east, north float64) {
	*b = box{min(b[0], west), min(b[1], south), max(b[2], east), max(b[3], north)}
}

func nowhere() box { return box{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)} }

// corners are the names of a box's sides in the order of box.
var corners = [4]string{"xmin", "ymin", "xmax", "ymax"}

// boxNode has its sides in the order that the format asks for; those of a Group are in the order of their names.
type boxNode struct{ parquet.Group }

// Fields implements parquet.Node.
func (n boxNode) Fields() []parquet.Field {
	fields := n.Group.Fields()
	slices.SortFunc(fields, func(a, b parquet.Field) int {
		return slices.Index(corners[:], a.Name()) - slices.Index(corners[:], b.Name())
	})
	return fields
}

// table writes rows with a geometry.
type table struct {
	w        *parquet.GenericWriter[any]
	cfg      Config
	names    *names.Directory
	columns  map[string]*column // those that are at the top
	order    []*column          // all
	sides    [4]*column
	geometry *column
	waiting  int // rows to be written together: writing each row by itself takes twice the time

	rows, mostRows int // in the row group
	geometries     int // bytes of those in the row group
	referred       int // bytes of what rows, or all rows of a log or zone, refer to
	bounds         box
	kinds          []string
}

// column has the values of the rows that wait, up to the last one that it has a value in.
type column struct {
	values []parquet.Value
	level  int // of a value that is not null
}

// mostDescribed is how many bytes the metadata may have that say what the columns are, and the texts that say what rows refer
// to: one may be that of many allocations.
const mostDescribed = 16 << 20

// MaxColumns is how many columns a file has at most: each takes memory, also without any rows.
const MaxColumns = 5000

// newTable makes a table with columns for what Config.Add asks for, beside those of fields.
func newTable(w io.Writer, fields parquet.Group, cfg Config) (*table, error) {
	addAttributes(fields, cfg.Add)
	if len(fields) > MaxColumns {
		return nil, fmt.Errorf("geoparquet: the file would have %d columns, more than %d", len(fields), MaxColumns)
	}
	fields["geometry"] = parquet.Leaf(parquet.ByteArrayType)
	sides := parquet.Group{}
	for _, name := range corners {
		sides[name] = parquet.Leaf(parquet.DoubleType)
	}
	fields["bbox"] = boxNode{sides}
	schema := parquet.NewSchema("farmdata", fields)
	t := &table{cfg: cfg, names: names.New(cfg.Set), columns: map[string]*column{}, bounds: nowhere()}
	for _, path := range schema.Columns() {
		leaf, _ := schema.Lookup(path...)
		c := &column{level: leaf.MaxDefinitionLevel}
		if t.order = append(t.order, c); len(path) == 1 {
			t.columns[path[0]] = c
		} else {
			t.sides[slices.Index(corners[:], path[1])] = c
		}
	}
	t.geometry = t.columns["geometry"]
	// What is in memory at a time is values, not rows.
	const values = 1 << 20
	t.mostRows = max(values/len(t.order), 200)
	// Each column has a page from the first row on, also a file of one row.
	const pages = 4 << 20
	page := min(max(pages/len(t.order), 8<<10), parquet.DefaultPageBufferSize)
	// The bounds of geometries as bytes say nothing to readers, and would be in memory until the end: those in bbox count.
	t.w = parquet.NewGenericWriter[any](w, schema, parquet.Compression(&fast{}), parquet.PageBufferSize(page), parquet.SkipPageBounds("geometry"))
	return t, nil
}

// together is how many rows are written together, unless one has a geometry of so many bytes.
const (
	together      = 64
	largeGeometry = 16 << 10
)

// mostGeometries is how many bytes the geometries of a row group have; one more may go beyond that.
const mostGeometries = 2 << 20

// fast is Snappy as it was meant, not with as few bytes as there can be.
type fast struct{ snappy.Codec }

// Encode compresses.
func (*fast) Encode(dst, src []byte) ([]byte, error) { return s2.EncodeSnappy(dst, src), nil }

func (t *table) begin() { t.waiting++ }

func (t *table) flush() error {
	if t.waiting == 0 {
		return nil // parquet-go takes the address of the first value
	}
	for i, to := range t.w.ColumnWriters() {
		c := t.order[i]
		c.fill(t.waiting)
		_, err := to.WriteRowValues(c.values)
		if c.values = c.values[:0]; err != nil {
			return fmt.Errorf("geoparquet: %w", err)
		}
	}
	t.rows, t.waiting = t.rows+t.waiting, 0
	return nil
}

// fill adds nulls up to a row.
func (c *column) fill(rows int) {
	for len(c.values) < rows {
		c.values = append(c.values, parquet.Value{})
	}
}

// set sets a column of the row. One that the file does not have is left out.
func (t *table) set(name string, value parquet.Value) {
	if c, ok := t.columns[name]; ok {
		t.put(c, value)
	}
}

// setText leaves a text that is empty out: it is null.
func (t *table) setText(name, text string) {
	if text != "" {
		t.set(name, parquet.ByteArrayValue([]byte(text)))
	}
}

// addAttributes adds a column for the ID and one for the name of each attribute.
func addAttributes(fields parquet.Group, list []geo.Attribute) {
	for _, attribute := range list {
		fields[string(attribute)], fields[string(attribute)+"_name"] = text(), text()
	}
}

func (t *table) setAttributes(s names.Subject, list []geo.Attribute) {
	for _, attribute := range list {
		r := t.names.Of(string(attribute), s)
		t.referred += len(r.ID) + len(r.Name)
		t.setText(string(attribute), r.ID)
		t.setText(string(attribute)+"_name", r.Name)
	}
}

// constant is a value that many rows have.
type constant struct {
	*column
	value parquet.Value
}

// common returns what is set in a row that was only begun to find that out.
func (t *table) common() (list []constant) {
	for _, c := range t.order {
		if len(c.values) == t.waiting {
			list = append(list, constant{c, c.values[t.waiting-1]})
			c.values = c.values[:t.waiting-1]
		}
	}
	t.waiting--
	return list
}

// beginWith begins a row with what common returned.
func (t *table) beginWith(common []constant) {
	t.begin()
	for i := range common {
		t.put(common[i].column, common[i].value)
	}
}

// put sets a column of the row. Of values of a column that damaged data has twice the first one counts.
func (t *table) put(c *column, value parquet.Value) {
	c.fill(t.waiting - 1)
	if len(c.values) < t.waiting {
		value.SetDefinitionLevel(c.level)
		c.values = append(c.values, value)
	}
}

func (t *table) putTime(c *column, at time.Time) {
	if !at.IsZero() {
		t.put(c, parquet.Int64Value(at.UnixMicro()))
	}
}

// end writes the row with its geometry.
func (t *table) end(kind string, wkb []byte, places []geo.Coordinates) error {
	if t.referred > mostDescribed {
		return fmt.Errorf("geoparquet: what the rows refer to would take more than %d bytes", mostDescribed)
	}
	if !slices.Contains(t.kinds, kind) {
		t.kinds = append(t.kinds, kind)
	}
	bounds := nowhere()
	for _, at := range places {
		bounds.extend(at[0], at[1], at[0], at[1])
	}
	t.bounds.extend(bounds[0], bounds[1], bounds[2], bounds[3])
	t.put(t.geometry, parquet.ByteArrayValue(wkb))
	for i, side := range t.sides {
		t.put(side, parquet.DoubleValue(bounds[i]))
	}
	t.geometries += len(wkb)
	if t.waiting < together && len(wkb) < largeGeometry {
		return nil
	}
	if err := t.flush(); err != nil || t.geometries < mostGeometries && t.rows < t.mostRows {
		return err
	}
	t.geometries, t.rows = 0, 0
	if err := t.w.Flush(); err != nil { // ends the row group
		return fmt.Errorf("geoparquet: %w", err)
	}
	return nil
}

// multiPolygon writes the row with polygons.
func (t *table) multiPolygon(multi [][][]geo.Coordinates) error {
	wkb := header(nil, wkbMultiPolygon, len(multi))
	var corners []geo.Coordinates
	for _, rings := range multi {
		wkb = polygon(wkb, rings)
		corners = append(corners, rings[0]...)
	}
	return t.end("MultiPolygon", wkb, corners)
}

// close writes the metadata and the end of the file. keys may be nil.
func (t *table) close(keys *geo.Keys) error {
	if err := t.flush(); err != nil {
		return err
	}
	geometry := map[string]any{"encoding": "WKB", "geometry_types": []string{}}
	if len(t.kinds) > 0 {
		geometry["geometry_types"], geometry["bbox"] = t.kinds, t.bounds
	}
	covering := map[string][2]string{}
	for _, name := range corners {
		covering[name] = [2]string{"bbox", name}
	}
	geometry["covering"] = map[string]any{"bbox": covering}
	// Without a member crs it is OGC:CRS84.
	metadata, err := json.Marshal(map[string]any{"version": "1.1.0", "primary_column": "geometry", "columns": map[string]any{"geometry": geometry}})
	if err != nil {
		return fmt.Errorf("geoparquet: %w", err)
	}
	t.w.SetKeyValueMetadata("geo", string(metadata))
	if keys != nil {
		list, size := keys.Descriptions(), 0
		for name, d := range list { // several may have the same long names
			if size += len(name) + len(d.Name) + len(d.Unit) + len(d.Element) + len(d.Device); size > mostDescribed {
				return fmt.Errorf("geoparquet: what the columns are would take more than %d bytes", mostDescribed)
			}
		}
		descriptions, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("geoparquet: %w", err)
		}
		t.w.SetKeyValueMetadata(ColumnsKey, string(descriptions))
	}
	if err := t.w.Close(); err != nil {
		return fmt.Errorf("geoparquet: %w", err)
	}
	return nil
}

// Types of geometries in WKB.
const (
	wkbPoint        = 1
	wkbLineString   = 2
	wkbPolygon      = 3
	wkbMultiPolygon = 6
)

// header appends a little-endian geometry of count parts; a point has none to count.
func header(b []byte, kind uint32, count int) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, 1), kind)
	if kind == wkbPoint {
		return b
	}
	return binary.LittleEndian.AppendUint32(b, uint32(count))
}

func coordinates(b []byte, at geo.Coordinates) []byte {
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(at[0]))
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(at[1]))
}

func point(at geo.Coordinates) []byte {
	return coordinates(header(make([]byte, 0, 21), wkbPoint, 0), at)
}

func polygon(b []byte, rings [][]geo.Coordinates) []byte {
	b = header(b, wkbPolygon, len(rings))
	for _, ring := range rings {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(ring)))
		for _, at := range ring {
			b = coordinates(b, at)
		}
	}
	return b
}
