//go:build peer

package prescription

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata/isoxml"
	"github.com/agrimill/agrimill/internal/testkit"
)

// script writes a map as GeoJSON and, packed in each way, as GeoParquet.
const script = `
import geopandas, shapely, sys
square = lambda e: shapely.Polygon([(e, 52), (e + 0.001, 52), (e + 0.001, 52.001), (e, 52.001)])
maps = geopandas.GeoDataFrame({"field": ["North", "North"], "rate": [183.7, 20.0], "geometry": [square(8), square(8.01)]}, crs="EPSG:4326")
maps.to_file("map.geojson", driver="GeoJSON")
for codec in ["snappy", "zstd", "gzip"]:
    maps.to_parquet(codec + ".parquet", compression=codec)
maps.to_parquet("none.parquet", compression=None)
maps.to_crs("EPSG:25832").to_parquet("utm.parquet")
`

// TestPeerMaps: of what GeoPandas writes the same TaskData is made in each form, in which a reader with the schema of version 4 finds nothing that
// is missing or not allowed.
func TestPeerMaps(t *testing.T) {
	python, dir := cmp.Or(os.Getenv("PYTHON"), "python3"), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import geopandas, isoxml").CombinedOutput(); err != nil {
		t.Skipf("GEOPANDAS OR THE PYTHON PACKAGE isoxml IS ABSENT, MAPS OF GEOPANDAS ARE NOT READ: %v\n%s", err, out)
	}
	write := exec.CommandContext(t.Context(), python, "-c", script)
	write.Dir = dir
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(name string) string {
		content := testkit.Must(os.ReadFile(filepath.Join(dir, name)))(t)
		return string(content)
	}
	for _, cfg := range []Config{urea, gridOf(urea)} {
		want := makeSet(t, read("map.geojson"), cfg)
		for _, name := range []string{"snappy.parquet", "zstd.parquet", "gzip.parquet", "none.parquet"} {
			got := makeSet(t, read(name), cfg)
			if cfg.Grid > 0 {
				got.Tasks[0].Grids[0].Cells, want.Tasks[0].Grids[0].Cells = nil, nil // functions
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, want %+v", name, got.Tasks, want.Tasks)
			}
		}
		set := testkit.Must(Make(t.Context(), []byte(read("map.geojson")), cfg))(t)
		var archive bytes.Buffer
		testkit.NoError(t, isoxml.Write(t.Context(), &archive, set, isoxml.WriteConfig{}))
		file := filepath.Join(dir, "made.zip")
		testkit.NoError(t, os.WriteFile(file, archive.Bytes(), 0o600))
		out, err := exec.CommandContext(t.Context(), python, "../../../../farmdata/isoxml/testdata/peer/tree.py", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning") || !strings.Contains(string(out), "process_data_value=") {
			t.Errorf("the peer says %v\n%s", err, out)
		}
	}
	if _, err := Make(t.Context(), []byte(read("utm.parquet")), urea); err == nil || !strings.Contains(err.Error(), "WGS 84") {
		t.Errorf("got %v for meters", err)
	}
}
