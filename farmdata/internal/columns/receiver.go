package columns

import "github.com/agrimill/agrimill/farmdata"

// Receiver is what the receiver says about a position beside the place, as maps name it. It is only read.
var Receiver = []struct {
	Name  string
	Has   farmdata.PositionField
	Whole bool
	Value func(*farmdata.Position) float64
}{
	{"up", farmdata.HasUp, false, func(p *farmdata.Position) float64 { return float64(p.Up) / 1000 }},
	{"status", farmdata.HasStatus, true, func(p *farmdata.Position) float64 { return float64(p.Status) }},
	{"pdop", farmdata.HasPDOP, false, func(p *farmdata.Position) float64 { return p.PDOP }},
	{"hdop", farmdata.HasHDOP, false, func(p *farmdata.Position) float64 { return p.HDOP }},
	{"satellites", farmdata.HasSatellites, true, func(p *farmdata.Position) float64 { return float64(p.Satellites) }},
	{"field_status", farmdata.HasFieldStatus, true, func(p *farmdata.Position) float64 { return float64(p.FieldStatus) }},
}
