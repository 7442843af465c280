package farmdata

import (
	"fmt"
	"sync"
)

// Descriptions is what devices say about the values of their elements. It finds that in little time, however
// many elements and values the devices have, and however they refer to each other. It is safe for concurrent use.
type Descriptions struct {
	devices       []Device
	presentations map[string]*ValuePresentation // by ID, the first one; only of Set.Descriptions

	mu       sync.Mutex
	indexes  []*deviceIndex // made when they are needed
	elements map[string]*elementIndex
}

type deviceIndex struct {
	values        map[DDI][]int       // numbers for Device.described
	byObject      map[objectValue]int // the first one
	presentations map[int]int         // places in Device.Presentations, by object ID
}

type objectValue struct {
	object int
	ddi    DDI
}

type elementIndex struct {
	device, element int
	objects         map[int]bool // made when they are needed
	found           map[DDI]int  // numbers for Device.described; -1: none
}

// NewDescriptions returns those of devices, which must not change afterwards. Of elements with the same ID the
// first one counts.
func NewDescriptions(devices []Device) *Descriptions {
	d := &Descriptions{devices: devices, indexes: make([]*deviceIndex, len(devices)), elements: map[string]*elementIndex{}}
	for i := range devices {
		for j, element := range devices[i].Elements {
			if element.ID != "" && d.elements[element.ID] == nil {
				d.elements[element.ID] = &elementIndex{device: i, element: j}
			}
		}
	}
	return d
}

// Describe completes a column of which DDI and ElementID are known: with how the device that has the element shows that
// value of it, otherwise with what the data dictionary says. It returns false if no device has the element.
func (d *Descriptions) Describe(c *Column) bool {
	c.Scale, c.Decimals = 1, -1
	if meaning, ok := c.DDI.Meaning(); ok {
		c.Name, c.Unit, c.Scale = meaning.Name, meaning.Unit, meaning.Scale
	}
	if c.CAN() {
		c.Name = fmt.Sprintf("CAN message %d, bits %d to %d", c.PGN, c.StartBit, c.StopBit)
	}
	at, known := d.elements[c.ElementID]
	if !known {
		return false
	}
	device := &d.devices[at.device]
	c.DeviceID, c.Device, c.Element = device.ID, device.Designator, device.Elements[at.element].Designator
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.find(at, c.DDI)
	if i < 0 || c.DDI == DDIUnknown {
		return true
	}
	value := device.described(i)
	if value.Designator != "" && !c.CAN() {
		c.Name = value.Designator
	}
	if j, ok := d.indexes[at.device].presentations[value.PresentationID]; ok && value.PresentationID != 0 {
		if p := &device.Presentations[j]; p.Scale != 0 {
			c.Unit, c.Scale, c.Offset, c.Decimals = p.Unit, p.Scale, p.Offset, p.Decimals
		}
	}
	return true
}

// find returns where the first value of a DDI is that an element refers to; -1 if it refers to none.
func (d *Descriptions) find(at *elementIndex, ddi DDI) int {
	if i, ok := at.found[ddi]; ok {
		return i
	}
	device, objects := &d.devices[at.device], d.devices[at.device].Elements[at.element].Objects
	if d.indexes[at.device] == nil {
		d.indexes[at.device] = newDeviceIndex(device)
	}
	index := d.indexes[at.device]
	if at.found == nil {
		at.found, at.objects = map[DDI]int{}, map[int]bool{}
		for _, object := range objects {
			if object != 0 { // which is none
				at.objects[object] = true
			}
		}
	}
	first := -1
	// Through the shorter list: with the other one, time would be their product.
	if candidates := index.values[ddi]; len(candidates) <= len(at.objects) {
		for _, i := range candidates {
			if at.objects[device.described(i).ObjectID] {
				first = i
				break
			}
		}
	} else {
		for object := range at.objects {
			if i, ok := index.byObject[objectValue{object, ddi}]; ok && (first < 0 || i < first) {
				first = i
			}
		}
	}
	at.found[ddi] = first
	return first
}

// described returns what describes values of a device by its number: those that it measures or takes, then its properties, of which a
// log may have values, too.
func (d *Device) described(i int) ProcessData {
	if i < len(d.ProcessData) {
		return d.ProcessData[i]
	}
	p := &d.Properties[i-len(d.ProcessData)]
	return ProcessData{ObjectID: p.ObjectID, DDI: p.DDI, Designator: p.Designator, PresentationID: p.PresentationID}
}

func newDeviceIndex(device *Device) *deviceIndex {
	index := &deviceIndex{values: map[DDI][]int{}, byObject: map[objectValue]int{}, presentations: map[int]int{}}
	for i := range len(device.ProcessData) + len(device.Properties) {
		p := device.described(i)
		index.values[p.DDI] = append(index.values[p.DDI], i)
		if _, twice := index.byObject[objectValue{p.ObjectID, p.DDI}]; !twice {
			index.byObject[objectValue{p.ObjectID, p.DDI}] = i
		}
	}
	for i, p := range device.Presentations {
		if _, twice := index.presentations[p.ObjectID]; !twice {
			index.presentations[p.ObjectID] = i
		}
	}
	return index
}
