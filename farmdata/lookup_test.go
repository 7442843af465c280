package farmdata

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// lookedUp is a set that has everything that can be looked up.
func lookedUp() *Set {
	return &Set{
		Devices: []Device{
			{ID: "DVC1", Designator: "Drill", Name: "A000", Elements: []Element{{ID: "DET1"}, {ID: "DET2"}}, ProcessData: []ProcessData{{DDI: 1}, {DDI: 2}}, Properties: []Property{{DDI: 1}}},
			{ID: "DVC2", Designator: "Tractor", Elements: []Element{{ID: "DET3"}, {ID: "DET1"}}},
		},
		Products:  []Product{{ID: "PDT1", Designator: "Wheat", DDI: 1}, {ID: "PDT2"}, {ID: "PDT1", Designator: "again"}},
		Fields:    []Field{{ID: "PFD1"}, {}},
		Farms:     []Farm{{ID: "FRM1"}},
		Customers: []Customer{{ID: "CTR1"}},
		Workers:   []Worker{{ID: "WKR1"}}, Practices: []CulturalPractice{{ID: "CPC1"}}, Techniques: []OperationTechnique{{ID: "OTQ1"}}, Comments: []CodedComment{{ID: "CCT1"}},
		Tasks: []Task{
			{ID: "TSK1", Times: []TaskTime{{Totals: []Total{{DDI: 1, ElementID: "DET1"}, {DDI: 3}}}}, Zones: []TreatmentZone{{Values: []ZoneValue{{DDI: 1, ProductID: "PDT1"}}}},
				Products: []ProductAllocation{{ProductID: "PDT1", DDI: 1, ElementID: "DET2"}, {ProductID: "PDT2"}}, Devices: []DeviceAllocation{{DeviceID: "DVC1", Name: "A001"}, {DeviceID: "DVC1", Name: "A000"}}},
			{ID: "TSK2", Devices: []DeviceAllocation{{Name: "A000"}, {Name: "B000"}, {Name: "B000"}, {}}},
			{Devices: []DeviceAllocation{{DeviceID: "DVC2"}}},
		},
		Logs: []*Log{{Name: "TLG00001", TaskID: "TSK1", Columns: []Column{{DDI: 1, ElementID: "DET1", DeviceID: "DVC1"}, {DDI: 1, ElementID: "DET3", DeviceID: "DVC2"}}}, {Name: "TLG00002", TaskID: "TSK2"}, {Name: "TLG00003"}},
	}
}

// TestLookUps: what has an ID is found by it, the first one of several.
func TestLookUps(t *testing.T) {
	t.Parallel()
	s := lookedUp()
	element, device := s.Element("DET1")
	if element != &s.Devices[0].Elements[0] || device != &s.Devices[0] {
		t.Errorf("got %v of %v, want the first of the elements", element, device)
	}
	for id, ok := range map[string]bool{
		"TSK2": s.Task("TSK2") == &s.Tasks[1], "DVC2": s.Device("DVC2") == &s.Devices[1], "PFD1": s.Field("PFD1") == &s.Fields[0], "FRM1": s.Farm("FRM1") == &s.Farms[0],
		"CTR1": s.Customer("CTR1") == &s.Customers[0], "WKR1": s.Worker("WKR1") == &s.Workers[0], "PDT1": s.Product("PDT1") == &s.Products[0], "CPC1": s.Practice("CPC1") == &s.Practices[0],
		"OTQ1": s.Technique("OTQ1") == &s.Techniques[0], "CCT1": s.Comment("CCT1") == &s.Comments[0], "another kind": s.Task("PFD1") == nil, "none": s.Field("") == nil && s.Task("") == nil,
	} {
		if !ok {
			t.Errorf("%s is not found as it should be", id)
		}
	}
	if e, d := s.Element("DVC1"); e != nil || d != nil {
		t.Errorf("got %v of %v for the ID of a device", e, d)
	}
}

// TestMentions: a DDI is mentioned in seven kinds of places.
func TestMentions(t *testing.T) {
	t.Parallel()
	s := lookedUp()
	for name, tt := range map[string]struct {
		ddis []DDI
		want string
	}{
		"one": {[]DDI{1}, "process data DVC1; property DVC1; product PDT1; total TSK1 DET1; zone TSK1 PDT1; allocation TSK1 DET2 PDT1; log TSK1 DVC1 DET1 TLG00001; log TSK1 DVC2 DET3 TLG00001"},
		"two": {[]DDI{3, 2}, "process data DVC1; total TSK1"}, "none of it": {[]DDI{0, 9}, ""},
		"all": {nil, "process data DVC1; process data DVC1; property DVC1; product PDT1; total TSK1 DET1; total TSK1; zone TSK1 PDT1; allocation TSK1 DET2 PDT1; log TSK1 DVC1 DET1 TLG00001; log TSK1 DVC2 DET3 TLG00001"},
	} {
		var got []string
		for m := range s.Mentions(tt.ddis...) {
			got = append(got, strings.Join(strings.Fields(fmt.Sprint(m.Place, " ", m.TaskID, " ", m.DeviceID, " ", m.ElementID, " ", m.ProductID, " ", m.Log)), " "))
		}
		if list := strings.Join(got, "; "); list != tt.want {
			t.Errorf("%s: got %s, want %s", name, list, tt.want)
		}
		for range got { // it may be left anywhere
			n := 0
			for range s.Mentions(tt.ddis...) {
				if n++; n == len(got) {
					break
				}
			}
			got = got[:len(got)-1]
		}
	}
}

// TestMachines: machines are known by their description or by the names that tasks have for them.
func TestMachines(t *testing.T) {
	t.Parallel()
	var got []string
	for _, m := range lookedUp().Machines() {
		text := fmt.Sprint(m.Designator, m.Names, m.Device != nil)
		for _, task := range m.Tasks {
			text += " " + task.ID
		}
		for _, log := range m.Logs {
			text += " " + log.Name
		}
		got = append(got, text)
	}
	want := []string{"Drill[A000 A001] true TSK1 TSK2 TLG00001 TLG00002", "Tractor[] true  TLG00001", "[B000] false TSK2 TLG00002"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
