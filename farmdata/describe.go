package farmdata

import (
	"fmt"
	"slices"
)

// Describe completes a column of which DDI and ElementID are known: with how the
// device shows that value of that element, otherwise with what the data
// dictionary says. device and element may be nil: not known.
func (c *Column) Describe(device *Device, element *Element) {
	c.Scale, c.Decimals = 1, -1
	if meaning, ok := c.DDI.Meaning(); ok {
		c.Name, c.Unit, c.Scale = meaning.Name, meaning.Unit, meaning.Scale
	}
	if c.CAN() {
		c.Name = fmt.Sprintf("CAN message %d, bits %d to %d", c.PGN, c.StartBit, c.StopBit)
	}
	if device == nil || element == nil {
		return
	}
	c.DeviceID, c.Device, c.Element = device.ID, device.Designator, element.Designator
	presentation := 0
	if i := slices.IndexFunc(device.ProcessData, func(p ProcessData) bool {
		return p.DDI == c.DDI && c.DDI != DDIUnknown && p.ObjectID != 0 && slices.Contains(element.Objects, p.ObjectID)
	}); i >= 0 {
		if name := device.ProcessData[i].Designator; name != "" && !c.CAN() {
			c.Name = name
		}
		presentation = device.ProcessData[i].PresentationID
	}
	if presentation == 0 {
		return
	}
	if i := slices.IndexFunc(device.Presentations, func(p Presentation) bool { return p.ObjectID == presentation }); i >= 0 {
		if p := device.Presentations[i]; p.Scale != 0 {
			c.Unit, c.Scale, c.Offset, c.Decimals = p.Unit, p.Scale, p.Offset, p.Decimals
		}
	}
}
