package geo

import (
	"io"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// Write writes the layers of a set that Config.Layers names, as a Writer does.
func Write(to io.Writer, set *farmdata.Set, cfg Config) error {
	cfg.Set = set
	w, err := NewWriter(to, cfg)
	if err != nil {
		return err
	}
	if w.shows(Fields) {
		for i := range set.Fields {
			if err := w.Field(&set.Fields[i]); err != nil {
				return err
			}
		}
	}
	if w.shows(Grids) || w.shows(Zones) {
		for i := range set.Tasks {
			w.unplaced(&set.Tasks[i])
		}
		for _, p := range set.Prescriptions() {
			if p.Grid != nil && !w.shows(Grids) || p.Grid == nil && !w.shows(Zones) {
				continue
			}
			if err := w.Prescription(&p); err != nil {
				return err
			}
		}
	}
	for _, log := range set.Logs {
		if w.shows(Tracks) {
			if err := w.Track(log); err != nil {
				return err
			}
		}
		if w.shows(Points) {
			if err := w.Points(log); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

func (w *Writer) shows(layer Layer) bool { return slices.Contains(w.cfg.Layers, layer) }
