// The race detector multiplies processor time and memory; make test measures without it.

//go:build !race

package peakmem

import (
	"flag"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router/farm"
)

// routeCost is what a route took for one message, in a process of its own.
type routeCost struct {
	Time   time.Duration
	Memory uint64
	Reason string
	Bytes  int
}

// allLayers are those of a map.
var allLayers = []geo.Layer{geo.Fields, geo.Tracks, geo.Points, geo.Grids, geo.Zones}

// transforms are what a route can make.
func transforms() map[string]farm.TransformConfig {
	return map[string]farm.TransformConfig{
		"records":    {Records: &farm.RecordsConfig{}},
		"summary":    {Summary: &farm.ReadConfig{}},
		"GeoJSON":    {Map: &farm.MapConfig{Layers: allLayers}},
		"GeoParquet": {Map: &farm.MapConfig{Layers: allLayers, Format: farm.FormatGeoParquet}},
		"EFDI":       {EFDI: &farm.EFDIConfig{}},
		expressions:  {},
	}
}

// expressions make nothing, but ask what is in a payload.
const expressions = "expressions"

// measureRoute makes of a file what a route makes.
func measureRoute(file, name string) (c routeCost) {
	b, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	transform, err := farm.NewTransform(transforms()[name])
	if err != nil {
		panic(err)
	}
	if name == expressions {
		inspector, err := farm.NewInspector(farm.ReadConfig{})
		if err != nil {
			panic(err)
		}
		transform = func(msg *message.Message) ([]*message.Message, error) {
			_, err := inspector.Contents(msg)
			return nil, err
		}
	}
	out, err := transform(message.NewMessage("received", b))
	if err != nil {
		panic(err)
	}
	c.Time = farmdatatest.Processor(syscall.RUSAGE_SELF)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	c.Memory = memory.Sys
	for _, m := range out {
		c.Bytes += len(m.Payload)
		c.Reason = m.Metadata[farm.KeyReason]
	}
	return c
}

var every = flag.Bool("every", false, "make of each input all that a route can make, and not of those of routes one in turn; a minute of processor time more")

// No route takes more for an input of 2 MB than it may; what would passes as it is, with the name of the limit.
func TestFarmDataInRoutes(t *testing.T) {
	if farmdatatest.IsApart(measureRoute) {
		return
	}
	names := slices.Sorted(maps.Keys(transforms()))
	bombs := farmdatatest.RouteBombs()
	if *every { // what takes long to be read is measured in farmdata/content, too
		bombs = append(bombs, farmdatatest.Bombs()...)
	}
	for i, bomb := range bombs {
		content := bomb.Make(t)
		for j, name := range names {
			if !*every && j != i%len(names) {
				continue
			}
			t.Run(bomb.Name+" as "+name, func(t *testing.T) {
				t.Parallel()
				got := farmdatatest.Apart[routeCost](t, content, name)
				t.Logf("%v, %d MB, made %d bytes %s", got.Time, got.Memory>>20, got.Bytes, got.Reason)
				if got.Time > farmdatatest.MostTime || got.Memory > farmdatatest.MostMemory {
					t.Errorf("got %v of processor time and %d MB, want at most %v and %d MB", got.Time, got.Memory>>20, farmdatatest.MostTime, farmdatatest.MostMemory>>20)
				}
				if strings.Contains(got.Reason, "limit: ") && !strings.Contains(got.Reason, "max_output") && !strings.Contains(got.Reason, " than ") {
					t.Errorf("got the reason %q, want one that says of what the limit is", got.Reason)
				}
			})
		}
	}
}
