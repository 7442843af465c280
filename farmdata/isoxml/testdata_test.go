package isoxml

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// entry is a file of an archive that a test makes.
type entry struct{ name, content string }

// zipped makes an archive.
func zipped(t testing.TB, entries ...entry) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		f, err := w.Create(e.name)
		if err == nil {
			_, err = f.Write([]byte(e.content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.NoError(t, w.Close())
	return b.String()
}

// open opens an archive that has at least one set.
func open(t testing.TB, archive string, cfg Config) *Archive {
	t.Helper()
	return testkit.Must(Open(t.Context(), strings.NewReader(archive), int64(len(archive)), cfg))(t)
}

// openSet opens an archive of entries that make one set.
func openSet(t testing.TB, entries ...entry) *farmdata.Set {
	t.Helper()
	a := open(t, zipped(t, entries...), Config{})
	if len(a.Sets) != 1 {
		t.Fatalf("%d sets, want one", len(a.Sets))
	}
	return a.Sets[0]
}

// sample is a task with a device and a log TLG00001 of two columns.
const sample = `<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="2" ManagementSoftwareManufacturer="maker" DataTransferOrigin="2">
<TSK A="TSK1" B="mowing" G="4"><TLG A="TLG00001" C="1"/></TSK>
<DVC A="DVC-1" B="mower" D="a00086000de02812">
<DET A="DET-1" B="1" C="1" D="body" E="0" F="0"><DOR A="10"/></DET>
<DPD A="10" B="0043" C="1" D="8" E="width" F="20"/>
<DVP A="20" B="5" C="0.001" D="2" E="m"/>
</DVC>
</ISO11783_TaskData>`

// sampleHeader is the header of its log.
const sampleHeader = `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0043" B="" C="DET-1"/><DLV A="008D" B="" C="DET-1"/></TIM>`

// value is a value of a record by the index of its column.
type value struct {
	index byte
	raw   int32
}

// sampleRecord encodes a record of that log: milliseconds of a day, north and east
// in 1e-7 degrees.
func sampleRecord(milliseconds uint32, north, east int32, values ...value) string {
	b := binary.LittleEndian.AppendUint32(nil, milliseconds)
	b = binary.LittleEndian.AppendUint16(b, 15000)
	b = binary.LittleEndian.AppendUint32(b, uint32(north))
	b = binary.LittleEndian.AppendUint32(b, uint32(east))
	b = append(b, 4, byte(len(values)))
	for _, v := range values {
		b = append(b, v.index)
		b = binary.LittleEndian.AppendUint32(b, uint32(v.raw))
	}
	return string(b)
}
