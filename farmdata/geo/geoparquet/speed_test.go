package geoparquet_test

import (
	"io"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/geo/geoparquet"
	"github.com/agrimill/agrimill/internal/testkit"
)

// BenchmarkPoints writes a log of sixteen values a record: values per second on one core.
func BenchmarkPoints(b *testing.B) {
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Columns: make([]farmdata.Column, 16)}
	for i := range log.Columns {
		log.Columns[i] = farmdata.Column{DDI: farmdata.DDI(i + 1), ElementID: "DET1", Scale: 0.01}
	}
	const records = 100_000
	log.Records = func(yield func(*farmdata.Record, error) bool) {
		r := farmdata.Record{Position: farmdata.Position{Has: farmdata.HasNorth | farmdata.HasEast | farmdata.HasStatus, Status: 4}}
		for ; r.Number < records; r.Number++ {
			r.Stamp = farmdata.Stamp{Wall: farmdata.Epoch.Add(time.Duration(r.Number) * time.Second), Local: true}
			r.Position.North, r.Position.East = 52+float64(r.Number)*1e-5, 7+float64(r.Number%1000)*1e-5
			r.Values = r.Values[:0]
			for i := range log.Columns {
				r.Values = append(r.Values, farmdata.Value{Column: &log.Columns[i], Raw: r.Number * int64(i) % 5000})
			}
			if !yield(&r, nil) {
				return
			}
		}
	}
	set := &farmdata.Set{Logs: []*farmdata.Log{log}}
	b.ReportAllocs()
	for b.Loop() {
		testkit.NoError(b, geoparquet.Write(io.Discard, set, geo.Config{Layers: []geo.Layer{geo.Points}}))
	}
	b.ReportMetric(float64(b.N*records*len(log.Columns))/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}
