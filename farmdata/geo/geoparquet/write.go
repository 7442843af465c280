package geoparquet

import (
	"errors"
	"io"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// Write writes one layer of a set, the only one of Config.Layers, as a file: that of all fields, treatment zones, grids or logs.
func Write(w io.Writer, set *farmdata.Set, cfg Config) error {
	if len(cfg.Layers) != 1 {
		return errors.New("geoparquet: Layers has to name one layer: a file has one")
	}
	cfg.Set = set
	switch layer := cfg.Layers[0]; layer {
	case geo.Fields:
		return WriteFields(w, set.Fields, cfg)
	case geo.Tracks:
		return WriteTracks(w, set.Logs, cfg)
	case geo.Points:
		return writePoints(w, set.Logs, cfg)
	default:
		var list []farmdata.Prescription
		for _, p := range set.Prescriptions() {
			if (p.Grid != nil) == (layer == geo.Grids) {
				list = append(list, p)
			}
		}
		return writePrescriptions(w, set, list, cfg)
	}
}
