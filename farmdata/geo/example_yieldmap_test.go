package geo_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/isoxml"
)

func yieldMap(ctx context.Context, archive io.ReaderAt, size int64, file io.Writer) error {
	data, err := isoxml.Open(ctx, archive, size, isoxml.Config{})
	if err != nil {
		return err
	}
	return geo.Write(file, data.Sets[0], geo.Config{ // or geoparquet.Write, one layer a file
		Layers:  []geo.Layer{geo.Points},
		Columns: []geo.Column{{DDI: "0054", As: "yield", Unit: "t/ha"}},
		Add:     []geo.Attribute{geo.Field, geo.Product, geo.Machine},
	})
}

// A yield map: its values in one unit under a name of one's own, with the field, the product and the machine of each.
func ExampleWrite() {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, content := range map[string]string{
		"TASKDATA.XML": `<ISO11783_TaskData VersionMajor="4" VersionMinor="3"><PFD A="PFD1" C="Long acre" D="20000"/><PDT A="PDT1" B="Winter wheat"/>
<DVC A="DVC1" B="Combine"><DET A="DET1" B="1" C="1" F="0"/></DVC><TSK A="TSK1" E="PFD1" G="4"><PAN A="PDT1"/><TLG A="TLG00001"/></TSK></ISO11783_TaskData>`,
		"TLG00001.XML": `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0054" B="" C="DET1"/></TIM>`,
		// 2026-08-01 08:00:00, 52.5° north, 7.5° east, a position of GNSS, one value: of column 0, 850,000 mg/m²
		"TLG00001.BIN": "\x00\x74\xb7\x01\x76\x42\x40\xdd\x4a\x1f\xc0\x68\x78\x04\x01\x01\x00\x50\xf8\x0c\x00",
	} {
		f, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(f, content)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	err := w.Close()
	if err == nil {
		err = yieldMap(context.Background(), bytes.NewReader(archive.Bytes()), int64(archive.Len()), os.Stdout)
	}
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"type":"FeatureCollection","features":[{"type":"Feature","geometry":{"type":"Point","coordinates":[7.5,52.5]},"properties":{"kind":"record","log":"TLG00001","task":"TSK1","field":"PFD1","field_name":"Long acre","product":"PDT1","product_name":"Winter wheat","machine":"DVC1","machine_name":"Combine","record":0,"time":"2026-08-01T08:00:00","status":1,"yield":8.5}}],"columns":{"yield":{"ddi":"0054","name":"Mass per area yield","unit":"t/ha","element":"","device":"Combine"}}}
}
