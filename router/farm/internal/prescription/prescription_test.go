package prescription

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/internal/testkit"
)

// square is a closed ring around a place in degrees.
func square(north, east, half float64) string {
	at := func(n, e float64) string { return fmt.Sprintf("[%g,%g]", east+e*half, north+n*half) }
	return "[" + strings.Join([]string{at(-1, -1), at(-1, 1), at(1, 1), at(1, -1), at(-1, -1)}, ",") + "]"
}

// collection is a map of features of polygons.
func collection(features ...string) string {
	return `{"type":"FeatureCollection","features":[` + strings.Join(features, ",") + `]}`
}

func polygonWith(rings, properties string) string {
	return `{"type":"Feature","properties":{` + properties + `},"geometry":{"type":"Polygon","coordinates":[` + rings + `]}}`
}

var urea = Config{Task: "Spread", Field: Name{Column: "field"}, Columns: []Column{{Column: "rate", DDI: 0x0006, Unit: "kg/ha", Product: Name{Name: "Urea"}}}}

// make makes a set, and returns it as it is read of an archive.
func makeSet(t testing.TB, text string, cfg Config) *farmdata.Set {
	t.Helper()
	set := testkit.Must(Make(t.Context(), []byte(text), cfg))(t)
	return reread(t, set)
}

func reread(t testing.TB, set *farmdata.Set) *farmdata.Set {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, isoxml.Write(t.Context(), &b, set, isoxml.WriteConfig{}))
	a := testkit.Must(isoxml.Open(t.Context(), bytes.NewReader(b.Bytes()), int64(b.Len()), isoxml.Config{}))(t)
	if len(a.Sets[0].Findings) > 0 {
		t.Fatalf("got findings in what was made: %v", a.Sets[0].Findings)
	}
	return a.Sets[0]
}

func TestZonesOfPolygons(t *testing.T) {
	t.Parallel()
	text := collection(
		polygonWith(square(52, 8, 0.001)+","+square(52, 8, 0.0005), `"field":"North","rate":183.7,"other":null`),
		polygonWith(square(52, 8, 0.0005), `"field":"North","rate":0`),
		`{"type":"Feature","properties":{"field":"North","rate":183.7},"geometry":{"type":"MultiPolygon","coordinates":[[`+square(52.01, 8, 0.001)+`],[[[1,2,3.5],[2,2],[2,3],[1,2,3.5]]]]}}`,
	)
	set := makeSet(t, text, urea)
	task := set.Tasks[0]
	if task.Designator != "Spread" || task.Status != 1 || task.FieldID != "PFD1" || set.Fields[0].Designator != "North" || set.Products[0].Designator != "Urea" || len(set.Products) != 1 {
		t.Errorf("got %+v of %+v with %+v", task, set.Fields, set.Products)
	}
	maps := set.Prescriptions()
	if len(task.Zones) != 2 || len(maps) != 1 || len(maps[0].Zones) != 2 {
		t.Fatalf("got zones %+v", task.Zones)
	}
	first := maps[0].Zones[0]
	if v := first.Amounts[0]; v.Column.DDI != 6 || v.Raw != 18370 || math.Abs(v.Scaled()-183.7) > 1e-9 || v.Column.Unit != "kg/ha" || first.Products[0] != set.Products[0].ID {
		t.Errorf("got %+v in %+v", v, v.Column)
	}
	if len(first.Polygons) != 3 || len(first.Polygons[0].Rings) != 2 || first.Polygons[0].Rings[1].Type != 2 || first.Polygons[2].Rings[0].Points[0].Up != 3500 {
		t.Errorf("got polygons %+v", first.Polygons)
	}
	if p := first.Polygons[0].Rings[0].Points[0]; p.North != 51.999 || p.East != 7.999 {
		t.Errorf("got a corner at %v, %v", p.North, p.East)
	}
}

// A cell of a grid has the rate of the polygon that its center is in.
func TestGridOfPolygons(t *testing.T) {
	t.Parallel()
	cfg := urea
	cfg.Grid = 10
	text := collection(polygonWith(square(52, 8, 0.001)+","+square(52, 8, 0.0005), `"field":"North","rate":100`), polygonWith(square(52, 8, 0.0005), `"field":"North","rate":50`),
		polygonWith(square(52.002, 8.003, 0.001), `"field":"North","rate":2`))
	grid := makeSet(t, text, cfg).Tasks[0].Grids[0]
	counts := map[int64]int{}
	for cell, err := range grid.Cells {
		if err != nil {
			t.Fatal(err)
		}
		north, east := grid.North+(float64(cell.Row)+0.5)*grid.CellNorth, grid.East+(float64(cell.Col)+0.5)*grid.CellEast
		far := math.Max(math.Abs(north-52), math.Abs(east-8))
		want := int64(0)
		switch {
		case far < 0.0005:
			want = 5000
		case far < 0.001:
			want = 10000
		case math.Max(math.Abs(north-52.002), math.Abs(east-8.003)) < 0.001:
			want = 200
		}
		if got := cell.Values[0].Raw; got != want {
			t.Fatalf("cell in row %d, column %d: got %d, want %d", cell.Row, cell.Col, got, want)
		}
		counts[want]++
	}
	if len(counts) != 4 || counts[5000] < 50 {
		t.Errorf("got cells %v of a grid of %d times %d", counts, grid.Rows, grid.Cols)
	}
}

// An interior ring that reaches out of its polygon takes from it what it has in common with it, and adds nothing. The file begins as Windows has it.
func TestHoleThatReachesOut(t *testing.T) {
	t.Parallel()
	const triangle = "[[7.99,51.99],[8.01,51.99],[7.99,52.01],[7.99,51.99]]"
	for hole, want := range map[string]int{square(51.995, 7.995, 0.003): 105, square(52.006, 8.006, 0.0035): 128, square(52.03, 8, 0.005): 128} {
		cfg := urea
		cfg.Grid = 0.00125 * metersPerDegree
		text := "\ufeff" + collection(polygonWith(triangle+","+hole, `"field":"North","rate":100`))
		got := 0.0
		grid := makeSet(t, text, cfg).Tasks[0].Grids[0]
		for cell, err := range grid.Cells {
			if err != nil {
				t.Fatal(err)
			}
			if cell.Values[0].Raw > 0 {
				got += grid.CellEast / 0.00125
			}
		}
		if math.Abs(got-float64(want)) > 0.1*float64(want) {
			t.Errorf("hole %s: got %.0f cells, want %d", hole, got, want)
		}
	}
}

// What cannot be read or placed is refused, and nothing of the map is in the error.
func TestRefusedMaps(t *testing.T) {
	t.Parallel()
	good, grid, product := square(52, 8, 0.001), urea, urea
	grid.Grid = 10
	product.Columns = []Column{{Column: "rate", DDI: 6, Unit: "kg/ha", Product: Name{Column: "product"}}}
	twice := product
	twice.Columns = append(slices.Clone(product.Columns), Column{Column: "more", DDI: 6, Unit: "kg/ha", Product: Name{Name: "a"}})
	var many []string
	for i := range 300 {
		many = append(many, polygonWith(good, fmt.Sprintf(`"field":"secret","rate":%d`, i)))
	}
	with := func(properties string) string { return collection(polygonWith(good, properties)) }
	const rate = `"field":"secret","rate":1`
	for name, tt := range map[string]struct {
		text string
		cfg  Config
		want string
	}{
		"nothing":           {"", urea, "neither GeoJSON nor GeoParquet"},
		"text":              {"secret", urea, "neither GeoJSON nor GeoParquet"},
		"cut":               {with(rate)[:100], urea, "ends too early"},
		"malformed":         {`{"type":secret}`, urea, "no JSON at byte"},
		"something behind":  {with(rate) + "{}", urea, "follows"},
		"a feature":         {polygonWith(good, rate), urea, "no FeatureCollection"},
		"no features":       {collection(), urea, "no polygons"},
		"features no list":  {`{"type":"FeatureCollection","features":{}}`, urea, "features is no list"},
		"other reference":   {`{"crs":{"properties":{"name":"EPSG:25832"}},` + with(rate)[1:], urea, "not those of WGS 84"},
		"meters":            {collection(polygonWith(square(5.7e6, 4e5, 10), rate)), urea, "feature 1: a point is not on Earth"},
		"no geometry":       {collection(`{"type":"Feature","geometry":null,"properties":{}}`), urea, "feature 1: it has no polygon"},
		"a point":           {collection(`{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{}}`), urea, "neither a Polygon nor a MultiPolygon"},
		"empty polygon":     {collection(polygonWith("", rate)), urea, "a polygon has no ring"},
		"empty multi":       {collection(`{"type":"Feature","geometry":{"type":"MultiPolygon","coordinates":[]},"properties":{}}`), urea, "it has no polygon"},
		"open ring":         {collection(polygonWith("[[1,2],[2,2],[2,3],[1,3]]", rate)), urea, "not closed"},
		"one number":        {collection(polygonWith("[[1],[2],[2],[1]]", rate)), urea, "two or three numbers"},
		"flat":              {collection(polygonWith("1,2", rate)), urea, "not those of a Polygon"},
		"no rate":           {with(`"field":"secret"`), urea, "feature 1: rate is no number, or is not there"},
		"null":              {with(`"field":"secret","rate":null`), urea, "rate is no number"},
		"text for a rate":   {with(`"field":"secret","rate":"12"`), urea, "rate is no number"},
		"negative":          {with(`"field":"secret","rate":-9999`), urea, "below zero"},
		"negative, rounded": {with(`"field":"secret","rate":-0.001`), urea, "below zero"},
		"rounded to zero":   {with(`"field":"secret","rate":0.004`), urea, "rate is too small for the resolution of 0006"},
		"rounded by a half": {with(`"field":"secret","rate":0.007`), urea, "rate is too small for the resolution of 0006"},
		"long number":       {with(`"field":9007199254740993,"rate":1`), urea, "field is no name, not UTF-8, a number too large"},
		"control character": {with(`"field":"secret\u0001","rate":1`), urea, "feature 1: field is no name"},
		"no character":      {with(`"field":"secret\ufffe","rate":1`), urea, "feature 1: field is no name"},
		"vertical tab":      {with(`"field":"secret\u000bsecret","rate":1`), urea, "feature 1: field is no name"},
		"Windows-1252":      {with("\"field\":\"secret M\xfcller\",\"rate\":1"), urea, "field is no name, not UTF-8"},
		"hole comes first":  {collection(polygonWith(square(52, 8, 0.001)+","+square(52, 8, 0.002), rate)), urea, "feature 1: an interior ring is around the exterior one"},
		"across 180°":       {collection(polygonWith("[[179,52],[-179,52],[-179,53],[179,53],[179,52]]", rate)), gridOf(urea), "feature 1: a ring goes across the 180th meridian"},
		"no place":          {collection(polygonWith("[[0,0],[0,2],[2,3],[0,0]]", rate)), urea, "feature 1: a point is at 0, 0"},
		"a line":            {collection(polygonWith("[[1,2],[2,3],[3,4],[1,2]]", rate)), urea, "feature 1: a polygon encloses nothing"},
		"null coordinate":   {collection(polygonWith("[[1,2],[null,2],[2,3],[1,2]]", rate)), urea, "feature 1: a coordinate is null"},
		"large":             {with(`"field":"secret","rate":1e300`), urea, "more than TaskData"},
		"two rates":         {with(rate + `,"rate":2`), urea, "feature 1: an object has two members of the same name"},
		"two geometries":    {collection(strings.Replace(polygonWith(good, rate), "}", `},"geometry":null`, 1)), urea, "feature 1: an object has two members of the same name"},
		"a list":            {collection(`[]`), urea, "something else is where an object has to be"},
		"no object":         {collection(strings.Replace(polygonWith(good, rate), "{"+rate+"}", "1", 1)), urea, "feature 1: it is no GeoJSON"},
		"other case":        {strings.ReplaceAll(with(rate), "geometry", "Geometry"), urea, "feature 1: it has no polygon"},
		"no field":          {with(`"rate":1`), urea, "field is no name"},
		"two fields":        {collection(polygonWith(good, rate), polygonWith(good, `"field":"other","rate":1`)), urea, "feature 2: it is of another field"},
		"no product":        {with(rate), product, "product is no name"},
		"two products":      {collection(polygonWith(good, rate+`,"product":"a"`), polygonWith(good, rate+`,"product":"b"`)), gridOf(product), "feature 2: it has other products"},
		"product twice":     {collection(polygonWith(good, rate+`,"more":2,"product":"b"`), polygonWith(good, rate+`,"more":2,"product":"a"`)), twice, "feature 2: rate and more are both 0006 of the same product"},
		"many rates":        {collection(many...), urea, "feature 255: there are more than 254 different rates"},
		"overlap in a grid": {collection(many[0], many[1]), grid, "feature 2: it overlaps feature 1"},
		"small for a grid":  {collection(many[0], polygonWith(square(52.00001, 8.00001, 1e-7), rate)), grid, "feature 2: a polygon of it is too small"},
		"small part":        {collection(`{"type":"Feature","properties":{` + rate + `},"geometry":{"type":"MultiPolygon","coordinates":[[` + good + `],[` + square(52, 8.01, 5e-7) + `]]}}`), grid, "feature 1: a polygon of it is too small"},
		"crossing a grid":   {collection(polygonWith(zigzag(1000), rate)), grid, "feature 1: its polygons cross rows of the grid"},
		"many in a grid":    {collection(slices.Repeat([]string{polygonWith(square(52, 8, 0.02), rate)}, 100)...), grid, "its polygons cross rows of the grid"},
		"large for a grid":  {collection(many[0], polygonWith(square(54, 10, 0.001), rate)), grid, "more than 1000000 cells"},
	} {
		_, err := Make(t.Context(), []byte(tt.text), tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error tells what is in the map: %v", name, err)
		}
	}
}

// zigzag goes north and south, over many rows of a grid each time.
func zigzag(times int) string {
	b := "[[8,52]"
	for range times {
		b += ",[8,52.9],[8.0001,52.0]"
	}
	return b + ",[8,52]]"
}

func gridOf(cfg Config) Config { cfg.Grid = 10; return cfg }

func TestFactors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ddi  farmdata.DDI
		unit string
		want float64 // raw numbers of one of the unit; 0: refused
	}{
		{0x0006, "kg/ha", 100}, {0x0006, "t/ha", 1e5}, {0x0006, "g/m²", 1000}, {0x0006, "g/m2", 1000}, {0x0006, "mg/m²", 1}, {0x0006, "lb/ac", 112.0851},
		{0x0001, "l/ha", 10000}, {0x0001, "L/ha", 10000}, {0x0001, "gal/ac", 93539.6}, {0x0001, "mm", 1e8}, {0x000B, "seeds/m²", 1000}, {0x000B, "1/ha", 0.1}, {0x000B, "/m²", 1000},
		{0x0033, "cm", 10}, {0x008C, "%", 10000}, {0x0006, "raw", 1}, {0xE001, "raw", 1},
		{0x0006, "l/ha", 0}, {0x0006, "kg", 0}, {0x0006, "kg/", 0}, {0x0006, "", 0}, {0x0006, "stones/ha", 0}, {0xE001, "kg/ha", 0}, {0x0006, "kg/ha/a", 0}, {0x0006, "²", 0},
	} {
		got, err := Factor(tt.ddi, tt.unit)
		if (err != nil) != (tt.want == 0) || math.Abs(got-tt.want) > 1e-5*tt.want {
			t.Errorf("%s in %q: got %v, %v, want %v", tt.ddi, tt.unit, got, err, tt.want)
		}
	}
}

// FuzzMake: no map makes Make panic, and what it makes can be written.
func FuzzMake(f *testing.F) {
	f.Add(collection(polygonWith(square(52, 8, 0.001), `"field":"a","rate":1`)), false)
	f.Add(collection(polygonWith(square(52, 8, 0.001), `"field":"a","rate":1`)), true)
	f.Fuzz(func(t *testing.T, text string, grid bool) {
		cfg := urea
		if grid {
			cfg.Grid = 100
		}
		set, err := Make(t.Context(), []byte(text), cfg)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := isoxml.Write(t.Context(), &b, set, isoxml.WriteConfig{}); err != nil && !strings.Contains(err.Error(), "Designator") {
			t.Error(err)
		}
	})
}
