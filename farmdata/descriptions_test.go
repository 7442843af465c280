package farmdata_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// Descriptions says what Column.Describe says, which looks through everything.
func TestDescriptionsAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		device := farmdata.Device{ID: "DVC1", Designator: "device"}
		for i := range 5 {
			element := farmdata.Element{ID: string(rune('A' + random.IntN(4))), Designator: string(rune('a' + i))}
			for range random.IntN(6) {
				element.Objects = append(element.Objects, random.IntN(6))
			}
			device.Elements = append(device.Elements, element)
		}
		for i := range random.IntN(20) {
			device.ProcessData = append(device.ProcessData, farmdata.ProcessData{ObjectID: random.IntN(6), DDI: farmdata.DDI(random.IntN(4)),
				Designator: string(rune('0' + i)), PresentationID: random.IntN(4)})
			device.Presentations = append(device.Presentations, farmdata.Presentation{ObjectID: random.IntN(4), Scale: float64(i + 1), Unit: string(rune('p' + i))})
		}
		descriptions := farmdata.NewDescriptions([]farmdata.Device{{ID: "DVC0"}, device})
		for _, id := range []string{"A", "B", "C", "D", "E"} {
			for ddi := range farmdata.DDI(5) {
				got, want := farmdata.Column{ElementID: id, DDI: ddi}, farmdata.Column{ElementID: id, DDI: ddi}
				known := descriptions.Describe(&got)
				var element *farmdata.Element
				for i := range device.Elements {
					if device.Elements[i].ID == id {
						element = &device.Elements[i]
						break
					}
				}
				if element == nil {
					want.Describe(nil, nil)
				} else {
					want.Describe(&device, element)
				}
				if !reflect.DeepEqual(got, want) || known != (element != nil) {
					t.Fatalf("got %+v and %t, want %+v of\n%+v", got, known, want, device)
				}
			}
		}
	}
}
