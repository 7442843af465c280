package content_test

import (
	"context"
	"fmt"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata/content"
)

func areas(ctx context.Context, data *content.Data) error {
	totals, err := content.Totals(ctx, data) // one for each machine in each task
	for _, work := range totals {
		fmt.Println(work.Task.Name, work.Field.Name, work.Device.Name, work.Area.Value/10000, "ha from the", work.Area.From)
		for _, rate := range work.Rates {
			fmt.Println(rate.Name, rate.Products, rate.Mean.Value, rate.Unit, rate.Total.Value, rate.TotalUnit, rate.Total.From)
		}
	}
	return err
}

// Area and rate of each task.
func ExampleTotals() {
	folder := fstest.MapFS{"TASKDATA/TASKDATA.XML": {Data: []byte(`<ISO11783_TaskData VersionMajor="4" VersionMinor="2">
<PFD A="PFD1" C="Long Field" D="50000"/><PDT A="PDT1" B="Winter wheat"/><DVC A="DVC1" B="Combine"><DET A="DET1" B="1" C="1" F="0"/></DVC>
<TSK A="TSK1" B="Wheat" E="PFD1" G="4"><PAN A="PDT1"/><TIM A="2026-08-01T08:00:00" D="4"><DLV A="0074" B="40000" C="DET1"/><DLV A="005A" B="32000" C="DET1"/></TIM></TSK>
</ISO11783_TaskData>`)}}
	data, err := content.OpenFS(context.Background(), folder, content.Config{})
	if err == nil {
		err = areas(context.Background(), data)
	}
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// Wheat Long Field Combine 4 ha from the totals
	// Mass per area yield [{PDT1 Winter wheat}] 800000 mg/m² 32000 kg totals
}
