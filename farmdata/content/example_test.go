package content_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/geo"
)

func Example() {
	folder := fstest.MapFS{"TASKDATA/TASKDATA.XML": {Data: []byte(`<ISO11783_TaskData VersionMajor="4" VersionMinor="2">
<TSK A="TSK1" B="Mowing" G="4"/><DVC A="DVC-1" B="Mower"/></ISO11783_TaskData>`)}}
	data, err := content.OpenFS(context.Background(), folder, content.Config{}) // or Open, for an archive or EFDI
	if err != nil {
		fmt.Println(err)
		return
	}
	summary, err := content.Summarize(context.Background(), data)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(summary.Line())
	fmt.Println(summary.Sets[0].Tasks[0].Name, summary.Sets[0].Tasks[0].Status)
	_ = summary.WriteSVG(os.Stdout)
	// Output:
	// TaskData 4.2: 1 task, 1 device
	// Mowing completed
	// <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 200" font-family="sans-serif" font-size="14">
	// <title>TaskData 4.2: 1 task, 1 device</title>
	// <rect width="100%" height="100%" fill="#ffffff"/>
	// <text x="30" y="100">No positions</text>
	// </svg>
}

func ExampleOpenEFDI() {
	payload := "no protobuf"
	_, err := content.OpenEFDI(context.Background(), strings.NewReader(payload), int64(len(payload)), efdi.TimeLog, content.Config{})
	fmt.Println(errors.Is(err, content.ErrNotFarmData))
	// Output: true
}

// Two tasks in a field.
func ExampleSum() {
	folder := fstest.MapFS{"TASKDATA/TASKDATA.XML": {Data: []byte(`<ISO11783_TaskData VersionMajor="4" VersionMinor="2"><PFD A="PFD1" C="Long Field" D="50000"/>
<TSK A="TSK1" E="PFD1" G="4"><TIM A="2026-08-01T08:00:00" D="4"><DLV A="0074" B="30000"/></TIM></TSK>
<TSK A="TSK2" E="PFD1" G="4"><TIM A="2026-08-02T08:00:00" D="4"><DLV A="0074" B="20000"/></TIM></TSK></ISO11783_TaskData>`)}}
	data, err := content.OpenFS(context.Background(), folder, content.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	totals, err := content.Totals(context.Background(), data)
	for _, sum := range content.Sum(totals, content.ByField) {
		fmt.Println(sum.Field.Name, sum.Area.Value/10000, "ha in", sum.Works, "works", err)
	}
	// Output: Long Field 5 ha in 2 works <nil>
}

// A yield map as a picture.
func ExampleSummary_Color() {
	data := &content.Data{Sets: []*farmdata.Set{{Logs: []*farmdata.Log{{Name: "TLG00001", Records: func(yield func(*farmdata.Record, error) bool) {
		mass := &farmdata.Column{DDI: 0x54, Name: "Yield", Unit: "mg/m²", Scale: 1}
		for i := range int64(3) {
			place := farmdata.Position{North: 52.5 + float64(i)/10_000, East: 7.5, Has: farmdata.HasNorth | farmdata.HasEast}
			yield(&farmdata.Record{Number: i, Position: place, Values: []farmdata.Value{{Column: mass, Raw: 700_000 + 50_000*i}}}, nil)
		}
	}}}}}}
	summary, err := content.Summarize(context.Background(), data)
	if err == nil {
		err = summary.Color(context.Background(), data, geo.Column{DDI: "0054", Unit: "t/ha"})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	var svg strings.Builder
	_ = summary.WriteSVG(&svg) // a strings.Builder takes everything
	fmt.Println(strings.Contains(svg.String(), "Yield, t/ha"), strings.Contains(svg.String(), "<title>8 t/ha</title>"))
	// Output: true true
}
