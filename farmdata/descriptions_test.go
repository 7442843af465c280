package farmdata_test

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// describe looks through everything for what a device says about a column: of its properties, too, of which a log may have values.
func describe(c *farmdata.Column, device *farmdata.Device, element *farmdata.Element) {
	c.Scale, c.Decimals = 1, -1
	if meaning, ok := c.DDI.Meaning(); ok {
		c.Name, c.Unit, c.Scale = meaning.Name, meaning.Unit, meaning.Scale
	}
	if element == nil {
		return
	}
	c.DeviceID, c.Device, c.Element = device.ID, device.Designator, element.Designator
	values := slices.Clone(device.ProcessData)
	for _, p := range device.Properties {
		values = append(values, farmdata.ProcessData{ObjectID: p.ObjectID, DDI: p.DDI, Designator: p.Designator, PresentationID: p.PresentationID})
	}
	for _, value := range values {
		if value.DDI != c.DDI || value.ObjectID == 0 || !slices.Contains(element.Objects, value.ObjectID) {
			continue
		}
		c.Name = cmp.Or(value.Designator, c.Name)
		for _, p := range device.Presentations {
			if p.ObjectID == value.PresentationID && p.ObjectID != 0 {
				c.Unit, c.Scale, c.Offset, c.Decimals = p.Unit, p.Scale, p.Offset, p.Decimals
				return
			}
		}
		return
	}
}

// Descriptions says what describe says, in less time.
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
			device.Properties = append(device.Properties, farmdata.Property{ObjectID: random.IntN(8), DDI: farmdata.DDI(random.IntN(5)),
				Designator: string(rune('A' + i)), PresentationID: random.IntN(4)})
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
				describe(&want, &device, element)
				if !reflect.DeepEqual(got, want) || known != (element != nil) {
					t.Fatalf("got %+v and %t, want %+v of\n%+v", got, known, want, device)
				}
			}
		}
	}
}
