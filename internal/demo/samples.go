package demo

import (
	"embed"
	"math/rand/v2"
	"path"
	"strings"

	"github.com/agrimill/agrimill/internal/farmfile"
)

// samples has a folder for each farm, and in it one for each machine, with the files about the field that it has worked.
//
//go:embed samples
var samples embed.FS

// sampleFarm is an invented farm.
type sampleFarm struct {
	name     string
	machines []string
	sensor   string // the machine that also sends a file of 3 MiB, which the gateway splits
}

func sampleFarms() []sampleFarm {
	return []sampleFarm{
		{"Hof Lindenau", []string{"Sprayer 24 m", "Tractor Berta"}, ""},
		{"Ferme du Val", []string{"Combine 2", "Seeder 6 m"}, ""},
		{"Long Acre Farm", []string{"Spreader 1", "Tractor Nellie"}, "Tractor Nellie"},
	}
}

// urnOf is a name as a part of a URN, and the name of a folder.
func urnOf(text string) string { return strings.ReplaceAll(strings.ToLower(text), " ", "-") }

// newFile is a file of the message type that its name says.
func newFile(name string, data []byte) File { return File{name, farmfile.MessageType(name), data} }

// files returns what a machine of the farm sends.
func (f sampleFarm) files(machine string) (files []File, err error) {
	folder := path.Join("samples", urnOf(f.name), urnOf(machine))
	entries, err := samples.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		data, err := samples.ReadFile(path.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, newFile(entry.Name(), data))
	}
	if machine == f.sensor {
		files = append(files, newFile("raw_sensor_dump.bin", sensorDump(3<<20)))
	}
	return files, nil
}

// sensorDump returns size incompressible bytes; the seed is fixed.
func sensorDump(size int) []byte {
	out := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(out) // which never fails
	return out
}
