package prescription

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// row is a row of a map.
type row struct {
	Geometry []byte   `parquet:"geometry"`
	Field    string   `parquet:"field,dict"`
	Rate     *float64 `parquet:"rate,optional"`
	Count    int32    `parquet:"count"`
	Day      int32    `parquet:"day,date"`
}

const wgs84 = `{"primary_column":"geometry","columns":{"geometry":{"encoding":"WKB","crs":{"id":{"authority":"EPSG","code":4326}}}}}`

func parquetOf(t testing.TB, metadata string, codec compress.Codec, rows ...row) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b, parquet.Compression(codec), parquet.MaxRowsPerRowGroup(2))
	w.SetKeyValueMetadata("geo", metadata)
	testkit.Must(w.Write(rows))(t)
	testkit.NoError(t, w.Close())
	return b.Bytes()
}

// wkbOf encodes polygons, in both orders of bytes.
func wkbOf(order binary.AppendByteOrder, z bool, polygons ...polygon) []byte {
	first, add := byte(0), uint32(0)
	if order == binary.AppendByteOrder(binary.LittleEndian) {
		first = 1
	}
	if z {
		add = wkbZ
	}
	b := order.AppendUint32([]byte{first}, wkbMultiPolygon+add)
	b = order.AppendUint32(b, uint32(len(polygons)))
	for _, p := range polygons {
		b = order.AppendUint32(append(b, first), wkbPolygon+add)
		b = order.AppendUint32(b, uint32(len(p)))
		for _, ring := range p {
			b = order.AppendUint32(b, uint32(len(ring)))
			for _, at := range ring {
				b = order.AppendUint64(order.AppendUint64(b, math.Float64bits(at.east)), math.Float64bits(at.north))
				if z {
					b = order.AppendUint64(b, math.Float64bits(float64(at.up)/1000))
				}
			}
		}
	}
	return b
}

func polygonOf(t testing.TB, rings string) polygon {
	t.Helper()
	polygons := testkit.Must(coordinates("Polygon", json.RawMessage("["+rings+"]")))(t)
	return polygons[0]
}

// The same map as GeoParquet and as GeoJSON makes the same set.
func TestGeoParquet(t *testing.T) {
	t.Parallel()
	rings := []string{square(52, 8, 0.001) + "," + square(52, 8, 0.0005), square(52, 8, 0.0005), "[[1,2,3.5],[2,2,0],[2,3,0],[1,2,3.5]]"}
	rates := []float64{183.7, 0, 5}
	var features []string
	var rows []row
	for i, ring := range rings {
		order := []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian}[i%2]
		features = append(features, polygonWith(ring, fmt.Sprintf(`"field":"North","rate":%v,"count":%d`, rates[i], i)))
		rows = append(rows, row{Geometry: wkbOf(order, i == 2, polygonOf(t, ring)), Field: "North", Rate: &rates[i], Count: int32(i)})
	}
	cfg := urea
	cfg.Columns = append(cfg.Columns[:1:1], Column{Column: "count", DDI: 0x000B, Unit: "seeds/m²"})
	want := makeSet(t, collection(features...), cfg)
	for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Zstd} {
		got := makeSet(t, string(parquetOf(t, wgs84, codec, rows...)), cfg)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", codec, got.Tasks, want.Tasks)
		}
	}
}

// Integers of every width, signed or not, are the numbers that were written.
func TestIntegersOfGeoParquet(t *testing.T) {
	t.Parallel()
	rates := map[string]any{
		"int8": int32(math.MaxInt8), "int16": int32(math.MaxInt16), "int32": int32(math.MaxInt32), "int64": int64(1 << 40),
		"uint8": uint32(math.MaxUint8), "uint16": uint32(math.MaxUint16), "uint32": uint32(math.MaxUint32), "uint64": uint64(1 << 63),
		"negative8": int32(math.MinInt8), "negative16": int32(math.MinInt16), "negative32": int32(math.MinInt32), "negative64": int64(math.MinInt64),
	}
	columns := parquet.Group{"geometry": parquet.Leaf(parquet.ByteArrayType)}
	values := map[string]any{"geometry": wkbOf(binary.LittleEndian, false, polygonOf(t, square(52, 8, 0.001)))}
	for _, width := range []int{8, 16, 32, 64} {
		columns[fmt.Sprint("int", width)], columns[fmt.Sprint("uint", width)], columns[fmt.Sprint("negative", width)] = parquet.Int(width), parquet.Uint(width), parquet.Int(width)
	}
	maps.Copy(values, rates)
	schema := parquet.NewSchema("map", columns)
	cells := make(parquet.Row, len(columns))
	for name, value := range values {
		leaf, _ := schema.Lookup(name)
		cells[leaf.ColumnIndex] = parquet.ValueOf(value).Level(0, 0, leaf.ColumnIndex)
	}
	var b bytes.Buffer
	w := parquet.NewWriter(&b, schema)
	w.SetKeyValueMetadata("geo", wgs84)
	testkit.Must(w.WriteRows([]parquet.Row{cells}))(t)
	testkit.NoError(t, w.Close())
	file := testkit.Must(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	for name, value := range rates {
		leaf, _ := file.Schema().Lookup(name)
		of, got := valueOf(leaf.Node), []any(nil)
		testkit.NoError(t, each(t.Context(), file.RowGroups()[0].ColumnChunks()[leaf.ColumnIndex], 1, func(v parquet.Value) error {
			got = append(got, of(v))
			return nil
		}))
		want := reflect.ValueOf(value).Convert(reflect.TypeFor[float64]()).Float()
		if !reflect.DeepEqual(got, []any{want}) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestRefusedGeoParquet(t *testing.T) {
	t.Parallel()
	rate := 1.0
	good := row{Geometry: wkbOf(binary.LittleEndian, false, polygonOf(t, square(52, 8, 0.001))), Field: "secret", Rate: &rate}
	with := func(change func(*row)) string {
		second := good
		change(&second)
		return string(parquetOf(t, wgs84, &parquet.Snappy, good, second))
	}
	whole := with(func(*row) {})
	var two bytes.Buffer
	w := parquet.NewGenericWriter[struct {
		row
		Other []byte `parquet:"geometr2"`
	}](&two)
	w.SetKeyValueMetadata("geo", wgs84)
	testkit.NoError(t, w.Close())
	day := urea
	day.Columns = []Column{{Column: "day", DDI: 6, Unit: "kg/ha"}}
	for name, tt := range map[string]struct {
		text string
		cfg  Config
		want string
	}{
		"no rows":         {string(parquetOf(t, wgs84, &parquet.Snappy)), urea, "no polygons"},
		"cut":             {whole[:len(whole)/2], urea, "damaged"},
		"magic":           {"PAR1", urea, "damaged"},
		"long footer":     {whole[:len(whole)-8] + "\xff\xff\xff\x7fPAR1", urea, "damaged"},
		"no metadata":     {string(parquetOf(t, "", &parquet.Snappy, good)), urea, "not GeoParquet"},
		"other encoding":  {string(parquetOf(t, strings.Replace(wgs84, "WKB", "point", 1), &parquet.Snappy, good)), urea, "WKB"},
		"other reference": {string(parquetOf(t, strings.Replace(wgs84, "4326", "25832", 1), &parquet.Snappy, good)), urea, "not those of WGS 84"},
		"no reference":    {string(parquetOf(t, `{"primary_column":"geometry","columns":{"geometry":{"encoding":"WKB","crs":null}}}`, &parquet.Snappy, good)), urea, "not those of WGS 84"},
		"other column":    {string(parquetOf(t, strings.ReplaceAll(wgs84, "geometry", "rate"), &parquet.Snappy, good)), urea, "no column of geometries"},
		"other packing":   {string(parquetOf(t, wgs84, &parquet.Brotli, good)), urea, "packed as BROTLI"},
		"null":            {with(func(r *row) { r.Rate = nil }), urea, "feature 2: rate is no number"},
		"not a number":    {with(func(r *row) { r.Rate = new(math.NaN()) }), urea, "feature 2: rate is no number"},
		"a date":          {whole, day, "feature 1: day is no number"},
		"no geometry":     {with(func(r *row) { r.Geometry = nil }), urea, "feature 2: its geometry"},
		"a point":         {with(func(r *row) { r.Geometry = append([]byte("\x01\x01\x00\x00\x00"), make([]byte, 16)...) }), urea, "feature 2: its geometry"},
		"cut geometry":    {with(func(r *row) { r.Geometry = r.Geometry[:len(r.Geometry)-1] }), urea, "feature 2: its geometry"},
		"a claim":         {with(func(r *row) { r.Geometry = []byte("\x01\x03\x00\x00\x00\xff\xff\xff\x7f") }), urea, "feature 2: its geometry"},
		"two columns":     {strings.ReplaceAll(whole, "count", "field"), urea, "two columns of the same name"},
		"two geometries":  {strings.ReplaceAll(two.String(), "geometr2", "geometry"), urea, "two columns of the same name"},
		"long name":       {with(func(r *row) { r.Field = strings.Repeat("secret", 200) }), urea, "feature 2: field is no name"},
	} {
		_, err := Make(t.Context(), []byte(tt.text), tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// What a file packs is not unpacked beyond a bound, nor is what it claims believed.
func TestGeoParquetThatIsLargeUnpacked(t *testing.T) {
	t.Parallel()
	rate := 1.0
	rows := make([]row, 66)
	for i := range rows {
		rows[i] = row{Geometry: make([]byte, 1<<20), Rate: &rate}
	}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b, parquet.Compression(&parquet.Zstd), parquet.SkipPageBounds("geometry"))
	_, err := w.Write(rows)
	testkit.NoError(t, errors.Join(err, w.Close()))
	if _, err := Make(t.Context(), b.Bytes(), urea); err == nil || !strings.Contains(err.Error(), "unpacked") || b.Len() > 10<<20 {
		t.Errorf("got %v for %d bytes, want that they are too many, unpacked", err, b.Len())
	}
	c := &parquetCheck{ctx: t.Context()}
	for _, codec := range []compress.Codec{&parquet.Gzip, &parquet.Zstd, &parquet.Snappy} {
		packed := testkit.Must(codec.Encode(nil, make([]byte, 1<<20)))(t)
		for unpacked, want := range map[int64]error{1 << 20: nil, 1<<20 - 1: errParquet, 1<<20 + 1: errParquet} {
			if err := c.page(codec.CompressionCodec(), new(format.PageHeader), packed, unpacked); !errors.Is(err, want) {
				t.Errorf("%s: got %v for a page that says %d bytes, want %v", codec, err, unpacked, want)
			}
		}
	}
}

// What is deep is refused before the library reads it, and so are claims: 200 KB of columns in columns took gigabytes, and many minutes.
func TestGeoParquetThatIsDeep(t *testing.T) {
	t.Parallel()
	const deep = 33_000
	columns := binary.AppendUvarint([]byte{0x15, 0x02, 0x19, 0xfc}, deep+1)            // the version, and the schema: a list of structs
	columns = append(columns, bytes.Repeat([]byte{0x48, 1, 'a', 0x15, 2, 0}, deep)...) // each has a name and one child
	for name, footer := range map[string][]byte{
		"columns": append(columns, 0x48, 1, 'a', 0, 0),
		"structs": bytes.Repeat([]byte{0x1c}, 20<<20),
		"lists":   bytes.Repeat([]byte{0x19}, 20<<20),
		"a claim": {0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7},
	} {
		file := append([]byte("PAR1"), footer...)
		file = append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), "PAR1"...)
		if _, err := Make(t.Context(), file, urea); !errors.Is(err, errParquet) {
			t.Errorf("%s: got %v, want %v", name, err, errParquet)
		}
	}
	column := func(children int32) format.SchemaElement {
		return format.SchemaElement{NumChildren: thrift.New(children)}
	}
	wide := []format.SchemaElement{column(40)}
	for range 20 {
		wide = append(wide, column(1), column(0))
	}
	if nested(wide) {
		t.Error("got that columns side by side are too deep")
	}
}

// Each bound on a footer holds without the others, and lets pass what is within it.
func TestFooterBounds(t *testing.T) {
	t.Parallel()
	nested := func(n int) []byte { return append(bytes.Repeat([]byte{0x1c}, n), make([]byte, n+1)...) }
	list := func(n uint64, kind byte, there int) []byte {
		b := binary.AppendUvarint([]byte{0x29, 0xf0 | kind}, n)
		return append(b, make([]byte, there+1)...)
	}
	for name, tt := range map[string]struct {
		footer []byte
		beyond bool
	}{
		"deepest":        {nested(deepest), false},
		"too deep":       {nested(deepest + 1), true},
		"many items":     {list(maxItems-3, 3, maxItems-3), false},
		"too many items": {list(maxItems, 3, maxItems), true},
		"a claim":        {list(maxItems/2, 12, 9), true},
		"lists in lists": {list(20, 9, 100), true},
		"a map":          {[]byte{0x2b, 0, 0}, true},
	} {
		var footer format.FileMetaData
		if _, err := decodeThrift(tt.footer, &footer); errors.Is(err, errParquet) != tt.beyond { // or else it has not what a footer must have
			t.Errorf("%s: got %v, want that it is beyond a bound: %t", name, err, tt.beyond)
		}
	}
}

// FuzzGeoParquet: no damage makes Make panic, or take what it says that it needs.
func FuzzGeoParquet(f *testing.F) {
	rate := 1.0
	good := row{Geometry: wkbOf(binary.LittleEndian, false, polygonOf(f, square(52, 8, 0.001))), Field: "North", Rate: &rate}
	for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Zstd} {
		f.Add(parquetOf(f, wgs84, codec, good, good, good))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if set, err := Make(t.Context(), file, urea); err == nil {
			reread(t, set)
		}
	})
}
