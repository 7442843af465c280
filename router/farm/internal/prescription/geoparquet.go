package prescription

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// maxName is how many bytes the name of a field or product may have.
const maxName = 1000

var errGeoParquet = errors.New("it is GeoParquet that is damaged")

// readGeoParquet reads the polygons of the primary geometry of a file, row by row.
func readGeoParquet(ctx context.Context, payload []byte, m *maker) (err error) {
	defer func() {
		if recover() != nil { // the library does not expect all that damage can be
			err = errGeoParquet
		}
	}()
	if err := checkParquet(ctx, payload); err != nil {
		return err
	}
	file, err := parquet.OpenFile(bytes.NewReader(payload), int64(len(payload)), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return errGeoParquet
	}
	primary, err := primaryColumn(file)
	if err != nil {
		return err
	}
	p := &parquetMap{maker: m, wanted: map[string]bool{m.cfg.Field.Column: true}}
	for _, c := range m.cfg.Columns {
		p.wanted[c.Column], p.wanted[c.Product.Column] = true, true
	}
	seen := map[string]bool{}
	for _, path := range file.Schema().Columns() {
		name := strings.Join(path, "\x00")
		if seen[name] {
			return errors.New("it has two columns of the same name: have one of them left out")
		}
		seen[name] = true
	}
	geometry, ok := file.Schema().Lookup(primary)
	if !ok || geometry.Node.Type().Kind() != parquet.ByteArray || geometry.MaxRepetitionLevel > 0 {
		return errors.New("it has no column of geometries")
	}
	for _, group := range file.RowGroups() {
		if err := p.read(ctx, file.Schema(), group, geometry.ColumnIndex); err != nil {
			return err
		}
	}
	return nil
}

// primaryColumn returns the name of the column with the geometries, which have to be those of WGS 84.
func primaryColumn(file *parquet.File) (string, error) {
	text, ok := file.Lookup("geo")
	var geo struct {
		Primary string `json:"primary_column"`
		Columns map[string]struct {
			Encoding string
			CRS      json.RawMessage
		}
	}
	if !ok || json.Unmarshal([]byte(text), &geo) != nil {
		return "", errors.New("it is Parquet, but not GeoParquet: it has no metadata about geometries")
	}
	column, ok := geo.Columns[geo.Primary]
	if !ok || column.Encoding != "WKB" {
		return "", errors.New("its geometries are not encoded as WKB")
	}
	var crs struct {
		ID struct {
			Authority string
			Code      any
		}
	}
	known := []string{"OGC CRS84", "EPSG 4326"}
	if len(column.CRS) > 0 && (json.Unmarshal(column.CRS, &crs) != nil || !slices.Contains(known, fmt.Sprint(crs.ID.Authority, " ", crs.ID.Code))) {
		return "", errors.New("its coordinates are not those of WGS 84 (crs)")
	}
	return geo.Primary, nil
}

// parquetMap reads row groups.
type parquetMap struct {
	*maker
	wanted map[string]bool
	rows   int
}

// read reads a row group: what is wanted of its rows, and then their polygons.
func (p *parquetMap) read(ctx context.Context, schema *parquet.Schema, group parquet.RowGroup, geometry int) error {
	rows := int(group.NumRows())
	columns := map[string][]any{}
	for _, path := range schema.Columns() {
		leaf, _ := schema.Lookup(path...)
		if len(path) != 1 || !p.wanted[path[0]] || leaf.MaxRepetitionLevel > 0 {
			continue
		}
		of := valueOf(leaf.Node)
		var values []any
		if err := each(ctx, group.ColumnChunks()[leaf.ColumnIndex], rows, func(v parquet.Value) error {
			values = append(values, of(v))
			return nil
		}); err != nil {
			return err
		}
		columns[path[0]] = values
	}
	at := 0
	return each(ctx, group.ColumnChunks()[geometry], rows, func(v parquet.Value) error {
		row := at
		at++
		p.rows++
		if v.IsNull() {
			return fmt.Errorf("feature %d: it has no polygon", p.rows)
		}
		polygons, err := wkb(v.ByteArray(), maxPoints-p.points)
		if err != nil {
			return fmt.Errorf("feature %d: %w", p.rows, err)
		}
		return p.add(p.rows, polygons, func(column string) any {
			if values, ok := columns[column]; ok {
				return values[row]
			}
			return nil
		})
	})
}

// each calls f with each value of a column, which has to be one for each row.
func each(ctx context.Context, chunk parquet.ColumnChunk, rows int, f func(parquet.Value) error) error {
	r := parquet.NewColumnChunkValueReader(chunk)
	defer r.Close()
	values, read := make([]parquet.Value, 64), 0
	for {
		n, err := r.ReadValues(values)
		for _, v := range values[:n] {
			if read++; read > rows {
				return errGeoParquet
			}
			if err := f(v); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && read == rows:
			return nil
		case err != nil:
			return errGeoParquet
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// valueOf returns what makes numbers and texts of the values of a column; nil of anything else.
func valueOf(node parquet.Node) func(parquet.Value) any {
	kind, isText, isNumber, isUnsigned := node.Type().Kind(), false, false, false
	if logical := node.Type().LogicalType(); logical == nil || logical.Value == nil {
		isNumber = true
	} else {
		_, isText = logical.Value.(*format.StringType)
		var of *format.IntType
		of, isNumber = logical.Value.(*format.IntType) // and not a decimal, date and so on
		isUnsigned = isNumber && !of.IsSigned
	}
	known := map[string]string{} // a text is in memory once, as in a dictionary
	return func(v parquet.Value) any {
		switch {
		case v.IsNull():
		case kind == parquet.ByteArray && isText && len(v.ByteArray()) <= maxName:
			text, ok := known[string(v.ByteArray())]
			if !ok {
				text = string(v.ByteArray())
				known[text] = text
			}
			return text
		case !isNumber:
		case kind == parquet.Int32 && isUnsigned:
			return float64(v.Uint32())
		case kind == parquet.Int64 && isUnsigned:
			return float64(v.Uint64())
		case kind == parquet.Int32:
			return float64(v.Int32())
		case kind == parquet.Int64:
			return float64(v.Int64())
		case kind == parquet.Float:
			return float64(v.Float())
		case kind == parquet.Double:
			return v.Double()
		}
		return nil
	}
}

// Types of geometries in WKB, and what is added for a third coordinate: by ISO, and by EWKB.
const (
	wkbPolygon      = 3
	wkbMultiPolygon = 6
	wkbZ            = 1000
	ewkbZ           = 1 << 31
)

var errWKB = errors.New("its geometry is neither a Polygon nor a MultiPolygon, or it is damaged")

// wkb reads the polygons of a geometry with at most so many points.
func wkb(b []byte, most int) (polygons []polygon, err error) {
	r := &wkbReader{b: b, left: most}
	switch kind, _ := r.header(); kind {
	case wkbPolygon:
		r.b = b
		polygons = append(polygons, r.polygon())
	case wkbMultiPolygon:
		for n := r.count(9); n > 0 && r.err == nil; n-- {
			polygons = append(polygons, r.polygon())
		}
	default:
		r.err = errWKB
	}
	if r.err == nil && len(r.b) > 0 {
		r.err = errWKB
	}
	return polygons, r.err
}

type wkbReader struct {
	b     []byte
	order binary.ByteOrder
	left  int // points that may still be read
	err   error
}

// header reads the order of bytes and the type, and whether there is a third coordinate.
func (r *wkbReader) header() (kind uint32, z bool) {
	if len(r.b) < 5 || r.b[0] > 1 {
		r.err = errWKB
		return 0, false
	}
	if r.order = binary.BigEndian; r.b[0] == 1 {
		r.order = binary.LittleEndian
	}
	kind, r.b = r.order.Uint32(r.b[1:]), r.b[5:]
	switch {
	case kind&ewkbZ != 0:
		return kind &^ ewkbZ, true
	case kind > wkbZ:
		return kind - wkbZ, true
	}
	return kind, false
}

// count reads how many parts of at least some bytes follow. They have to be there.
func (r *wkbReader) count(size int) int {
	if r.err != nil || len(r.b) < 4 {
		r.err = errWKB
		return 0
	}
	n := int64(r.order.Uint32(r.b))
	if r.b = r.b[4:]; n*int64(size) > int64(len(r.b)) {
		r.err = errWKB
		return 0
	}
	return int(n)
}

func (r *wkbReader) polygon() (p polygon) {
	kind, z := r.header()
	if kind != wkbPolygon {
		r.err = errWKB
		return nil
	}
	size := 16
	if z {
		size = 24
	}
	for rings := r.count(4); rings > 0 && r.err == nil; rings-- {
		n := r.count(size)
		if r.left -= n; r.left < 0 {
			r.err = fmt.Errorf("the map has more than %d points", maxPoints)
			return nil
		}
		ring := make([]point, n)
		for i := range ring {
			number := func(at int) float64 { return math.Float64frombits(r.order.Uint64(r.b[at:])) }
			ring[i] = point{north: number(8), east: number(0)}
			if z {
				ring[i].up = millimeters(number(16))
			}
			r.b = r.b[size:]
		}
		p = append(p, ring)
	}
	return p
}
