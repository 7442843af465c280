package geoparquet

import (
	"errors"
	"io"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// Write writes one layer of a set, the only one of Config.Layers, as a file. It holds a row group in memory at a time.
//
// Fields are MultiPolygons with the columns id, name, area (in square meters, null if unknown), farm and customer; rings
// that they lack are a finding.
//
// Tracks are a row for each part of a log without a gap of five minutes: log, task, part (from 1), records, start and end (texts, without an
// offset where the log has local time). They are LineStrings, and Points where the machine stood still. Parts also end at the
// 180th meridian, and after 100,000 places, where the next one goes on.
//
// Points are a row for each record that has a valid position: log, task, record, time (a timestamp without zone where logs have
// local time), utc, up in meters, status, pdop, hdop, satellites, field_status, and one column for each kind of value, scaled, named by geo.Keys; values that a log has for all
// records are in each row. Logs whose columns are known only once they are read are read twice.
//
// Grids and zones are as WritePrescription writes them.
func Write(w io.Writer, set *farmdata.Set, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if len(cfg.Layers) != 1 {
		return errors.New("geoparquet: Layers has to name one layer: a file has one")
	}
	cfg.Set = set
	switch layer := cfg.Layers[0]; layer {
	case geo.Fields:
		return writeFields(w, set.Fields, cfg)
	case geo.Tracks:
		return writeTracks(w, set.Logs, cfg)
	case geo.Points:
		return writePoints(w, set.Logs, cfg)
	default:
		for i := range set.Tasks {
			unplaced(&set.Tasks[i], cfg)
		}
		var list []farmdata.Prescription
		for _, p := range set.Prescriptions() {
			if (p.Grid != nil) == (layer == geo.Grids) {
				list = append(list, p)
			}
		}
		return writePrescriptions(w, list, cfg)
	}
}
