package content_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit"
)

// TestSum: a field is worked once by the machines that drive together, tanks work on the same area, and what is in a device element with the
// same total counts once.
func TestSum(t *testing.T) {
	t.Parallel()
	total := func(ddi farmdata.DDI, element string, raw int64) farmdata.Total {
		return farmdata.Total{DDI: ddi, ElementID: element, Raw: raw}
	}
	times := func(list ...farmdata.Total) []farmdata.TaskTime { return []farmdata.TaskTime{{Totals: list}} }
	devices := append(sprayer(), farmdata.Device{ID: "DVC2", Designator: "Tractor", Elements: []farmdata.Element{{ID: "DET9", ObjectID: 1, Type: 1}}},
		farmdata.Device{ID: "DVC3", Designator: "Roller", Elements: []farmdata.Element{{ID: "DET8", ObjectID: 1, Type: 1}}})
	log := drive(devices, 100, reading{0, 0x43, "DET1", 6000}, reading{0, 0x07, "DET1", 20_000}, reading{0, 0x95, "DET9", 5000})
	log.TaskID = "TSK3"
	set := &farmdata.Set{
		Devices: devices, Logs: []*farmdata.Log{log}, Fields: []farmdata.Field{{ID: "PFD1", Designator: "North"}, {ID: "PFD2"}}, Products: []farmdata.Product{{ID: "PDT1"}, {ID: "PDT2"}},
		Tasks: []farmdata.Task{
			{ID: "TSK1", FieldID: "PFD1", Products: []farmdata.ProductAllocation{{ProductID: "PDT1", ElementID: "DET1"}},
				Times: times(total(0x74, "DET1", 5000), total(0x75, "DET1", 800_000), total(0x75, "DET9", 900_000), total(0x51, "DET1", 110), total(0x51, "DET2", 50))},
			{ID: "TSK2", FieldID: "PFD1", Products: []farmdata.ProductAllocation{{ProductID: "PDT1", ElementID: "DET4"}, {ProductID: "PDT2", ElementID: "DET5"}},
				Times: times(total(0x74, "DET1", 3000), total(0x51, "DET4", 30), total(0x51, "DET5", 60))},
			{ID: "TSK3", FieldID: "PFD2", Products: []farmdata.ProductAllocation{{ProductID: "PDT2", ElementID: "DET1"}}, Times: times(total(0x75, "DET8", 500_000))},
			{ID: "TSK4", Times: times(total(0x75, "DET9", 1_000_000))},
		},
	}
	works := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
	for by, want := range map[content.By][]string{
		content.ByTask: {
			"TSK3: 3 works, 6000 of the log, 1000 of the log, 100 of the log; 0007 20000 of the log, 120 of the log; 0095 5000 of the log, 500 of the log",
			"TSK1: 2 works, 5000 of the totals, 900 of the totals, unknown; 0007 22000 of the totals, 110 of the totals",
			"TSK2: 1 works, 3000 of the totals, unknown, unknown; 0007 30000 of the totals, 90 of the totals",
			"TSK4: 1 works, unknown, 1000 of the totals, unknown",
		},
		content.ByField: {
			"PFD2 : 3 works, 6000 of the log, 1000 of the log, 100 of the log; 0007 20000 of the log, 120 of the log; 0095 5000 of the log, 500 of the log",
			"PFD1 North: 3 works, 8000 of the totals, 900 of the totals, unknown; 0007 25000 of the totals, 200 of the totals",
		},
		content.ByDevice: {
			"DVC1 Sprayer: 3 works, 14000 of the both, 1800 of the both, 100 of the log; 0007 22857.1 of the both, 320 of the both",
			"DVC2 Tractor: 3 works, unknown, 2900 of the both, 100 of the log; 0095 5000 of the log, 500 of the log",
			"DVC3 Roller: 1 works, unknown, 500 of the totals, unknown",
		},
		content.ByProduct: {
			"PDT2: 2 works, 9000 of the both, 1000 of the log, 100 of the log; 0007 20000 of the both, 180 of the both",
			"PDT1: 2 works, 8000 of the totals, 800 of the totals, unknown; 0007 17500 of the totals, 140 of the totals",
		},
	} {
		sums := content.Sum(works, by)
		got := []string{}
		for _, s := range sums {
			of := map[content.By]content.Named{content.ByTask: s.Task, content.ByField: s.Field, content.ByDevice: s.Device}[by]
			if by == content.ByProduct {
				of = s.Products[0]
			}
			text := fmt.Sprintf("%s: %d works, %s, %s, %s", slices.Compact([]string{of.ID + map[bool]string{true: " " + of.Name}[by != content.ByTask && by != content.ByProduct]})[0], s.Works, figure(s.Area), figure(s.Distance), figure(s.Time))
			for _, r := range s.Rates {
				text += fmt.Sprintf("; %s %s, %s", r.DDI, figure(r.Mean), figure(r.Total))
			}
			if s.Incomplete {
				text += ", incomplete"
			}
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %s:\ngot  %q\nwant %q", by, got, want)
		}
	}
	// Works of several sets have nothing in common.
	if sums := content.Sum(append(works, testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)...), content.ByField); len(sums) != 4 {
		t.Errorf("got %d fields of two sets with two fields each", len(sums))
	}
}

// TestSumOfTeams: machines that were in one log drove together, also if one of them was in another log before, and in whatever order works are.
func TestSumOfTeams(t *testing.T) {
	t.Parallel()
	devices := append(sprayer(), farmdata.Device{ID: "DVC2", Elements: []farmdata.Element{{ID: "DET9", ObjectID: 1, Type: 1}}},
		farmdata.Device{ID: "DVC3", Elements: []farmdata.Element{{ID: "DET8", ObjectID: 1, Type: 1}}})
	alone, both := drive(devices, 50, reading{0, 0x43, "DET1", 6000}), drive(devices, 100, reading{0, 0x43, "DET1", 6000}, reading{0, 0x95, "DET9", 5000})
	both.Name = "TLG00002"
	set := &farmdata.Set{Devices: devices, Logs: []*farmdata.Log{alone, both}, Tasks: []farmdata.Task{
		{ID: "TSK1", Times: []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x75, ElementID: "DET8", Raw: 900_000}}}}},
	}}
	works := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
	if sums := content.Sum(works, "machine"); len(sums) != 0 {
		t.Errorf("by what is not there: %+v", sums)
	}
	for range 2 {
		if sums := content.Sum(works, content.ByTask); len(works) != 3 || len(sums) != 1 || figure(sums[0].Distance) != "1500 of the log" {
			t.Errorf("got %d works, sums %+v, want a way of 1500 m", len(works), sums)
		}
		slices.Reverse(works)
	}
	first, other := drive(devices, 50, reading{0, 0x43, "DET1", 6000}), drive(devices, 100, reading{0, 0x43, "DET9", 6000})
	first.Name, other.Name = "", "" // as EFDI may have it
	set = &farmdata.Set{Devices: devices, Logs: []*farmdata.Log{first, other}, Tasks: []farmdata.Task{{ID: "TSK1"}}}
	works = testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
	if sums := content.Sum(works, content.ByTask); len(sums) != 1 || figure(sums[0].Area) != "9000 of the log" {
		t.Errorf("got %+v, want the area of both logs without a name", sums)
	}
}

// TestTasksWithoutID: each has totals of its own, and a field has those of all.
func TestTasksWithoutID(t *testing.T) {
	t.Parallel()
	task := func(name string, area int64) farmdata.Task {
		return farmdata.Task{Designator: name, FieldID: "PFD1", Products: []farmdata.ProductAllocation{{ProductID: "PDT" + name}},
			Times: []farmdata.TaskTime{{Totals: []farmdata.Total{{DDI: 0x74, ElementID: "DET1", Raw: area}}}}}
	}
	set := &farmdata.Set{Devices: sprayer(), Tasks: []farmdata.Task{task("1", 5000), task("2", 3000)}}
	works := testkit.Must(content.Totals(t.Context(), &content.Data{Sets: []*farmdata.Set{set}}))(t)
	got := ""
	for _, w := range works {
		got += fmt.Sprint(w.Task.Name, " ", figure(w.Area), " ", w.Products, "; ")
	}
	if want := "1 5000 of the totals [{PDT1 }]; 2 3000 of the totals [{PDT2 }]; "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if sums := content.Sum(works, content.ByField); len(sums) != 1 || figure(sums[0].Area) != "8000 of the totals" {
		t.Errorf("got %+v, want the area of both", sums)
	}
	if sums := content.Sum(works, content.ByTask); len(sums) != 0 {
		t.Errorf("got %+v for tasks that have no ID", sums)
	}
}
