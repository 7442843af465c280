package demo

// sampleFarm is an invented farm.
type sampleFarm struct {
	name             string
	machines, fields []string
	north, east      float64 // where its fields are
	sensor           string  // the machine that also sends files of 3 MiB, which the gateway splits
}

func sampleFarms() []sampleFarm {
	return []sampleFarm{
		{"Hof Lindenau", []string{"Sprayer 24 m", "Tractor Berta"}, []string{"Lange Breite", "Am Muehlbach"}, 52.1000, 8.2000, ""},
		{"Ferme du Val", []string{"Combine 2", "Seeder 6 m"}, []string{"Grand Clos", "Les Peupliers"}, 47.3000, 0.7000, ""},
		{"Long Acre Farm", []string{"Spreader 1", "Tractor Nellie"}, []string{"Long Acre", "Mill Field"}, 51.7000, -1.9000, "Tractor Nellie"},
	}
}
