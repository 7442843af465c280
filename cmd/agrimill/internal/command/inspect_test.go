package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// save writes a file into a new folder and returns its path.
func save(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

func TestInspect(t *testing.T) {
	w := &world{T: t}
	file := save(t, "taskdata.zip", farmdatatest.Archive(t, 5))
	table := w.want(statusOK, "inspect", file)
	for _, want := range []string{
		"TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 5 records, 10 values, 2026-05-04T06:30:00 to 2026-05-04T06:30:04\n",
		"\nTSK1  Mowing  completed  CTR1      FRM1  PFD1   1\n",
		"\nDVC-1   Mower  A00086000DE02812  1.0       17      1\n",
		"\n0043  Working width      DET-1    Mower   5      9    9    m\n",
		"\nTASK  FIELD  DEVICE  PRODUCTS  AREA M²  FROM  DISTANCE M  FROM  TIME S  FROM  COMPLETE\nTSK1  PFD1   Mower   -         ",
	} {
		testkit.Contains(t, table, want)
	}
	var summary content.Summary
	must(t, json.Unmarshal([]byte(w.want(statusOK, "inspect", "--output", "json", file)), &summary))
	if got := summary.Sets[0].Logs[0].Records; got != 5 {
		t.Errorf("%d records, want 5", got)
	}
	if svg := w.want(statusOK, "inspect", file, "--output", "svg"); !strings.HasPrefix(svg, "<svg ") || !strings.Contains(svg, "<polyline ") {
		t.Errorf("the picture is\n%s", svg)
	}
}

// An area that is not known is not shown as 0.
func TestInspectFieldWithoutArea(t *testing.T) {
	w := &world{T: t, stdin: bytes.NewReader(farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData><PFD A="PFD1" C="acre"/><PFD A="PFD2" C="acre" D="7"/></ISO11783_TaskData>`))}
	testkit.Contains(t, w.want(statusOK, "inspect", "-"), "\nPFD1   acre  -   -         -\nPFD2   acre  7   -         -\n")
}

// A long name does not make every line of its table as long.
func TestInspectLongNames(t *testing.T) {
	w := &world{T: t, stdin: bytes.NewReader(farmdatatest.Zip(t, "TASKDATA.XML", `<ISO11783_TaskData><PFD A="PFD1" C="`+strings.Repeat("long ", 10_000)+`"/><PFD A="PFD2" C="acre"/></ISO11783_TaskData>`))}
	if table := w.want(statusOK, "inspect", "-"); len(table) > 2000 || !strings.Contains(table, "\nPFD2   acre ") || !strings.Contains(table, "…") {
		t.Errorf("%d bytes:\n%.3000s", len(table), table)
	}
}

// Totals of a terminal, and sums of them, are shown figure by figure.
func TestInspectTotals(t *testing.T) {
	w := &world{T: t, stdin: bytes.NewReader(farmdatatest.ArchiveOfTotals(t, 5))}
	table := w.want(statusOK, "inspect", "-")
	lines := strings.Split(table, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	for _, want := range []string{"TASK FIELD DEVICE PRODUCTS AREA M² FROM DISTANCE M FROM TIME S FROM COMPLETE", "TSK1 PFD1 Mower PDT1 5000 totals 900 totals 60 totals yes",
		"TASK RATE NAME ELEMENT PRODUCTS MEAN UNIT TOTAL UNIT FROM", "TSK1 0007 Actual mass per area application rate DET-1 PDT1 22000 mg/m² 110 kg totals",
		"SUM BY FIELD NAME AREA M² FROM DISTANCE M FROM TIME S FROM COMPLETE", "PFD1 Long acre 8000 totals 1500 totals 100 totals yes",
		"SUM BY FIELD RATE NAME MEAN UNIT TOTAL UNIT FROM", "PFD1 0007 Actual mass per area application rate 17500 mg/m² 140 kg totals",
		"PDT1 Grass 5000 totals 900 totals 60 totals yes", "PDT1 0007 Actual mass per area application rate 22000 mg/m² 110 kg totals"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// A log in EFDI knows the units of its values from the device description.
func TestInspectWithDevices(t *testing.T) {
	w := &world{T: t}
	log, devices := save(t, "log.pb", farmdatatest.TimeLog(t, 5)), save(t, "devices.pb", farmdatatest.Description(t))
	testkit.Contains(t, w.want(statusOK, "inspect", log), "\n0043  Actual working width  DET-1    -       5      9000  9000  mm\n")
	if status, _, stderr := w.agrimill("inspect", log, "--devices", log); status != statusFailed || !strings.Contains(stderr, "describes no device") {
		t.Errorf("with devices of a file that has none: status %d, stderr %q", status, stderr)
	}
	testkit.Contains(t, w.want(statusOK, "inspect", log, "--devices", devices), "\n0043  Working width      DET-1    Mower   5      9    9    m\n")
}

// stdin, in memory or too large for that, and folders are read as well as files.
func TestInspectOtherPlaces(t *testing.T) {
	archive := farmdatatest.Archive(t, 5)
	large := append(bytes.Repeat([]byte("stub\n"), spool.DefaultMemory/5+1), archive...)
	for name, stdin := range map[string][]byte{"small": archive, "large": large} {
		w := &world{T: t, stdin: bytes.NewReader(stdin)}
		if table := w.want(statusOK, "inspect", "-"); !strings.Contains(table, ", 5 records, ") {
			t.Errorf("%s stdin:\n%s", name, table)
		}
	}
	w := &world{T: t}
	folder := filepath.Dir(save(t, "TASKDATA.XML", []byte(farmdatatest.TaskDataXML)))
	testkit.Contains(t, w.want(statusOK, "inspect", folder), "TSK1")
}

// Prescription maps are listed with their values, units, products, tasks and fields.
func TestInspectPrescriptions(t *testing.T) {
	w := &world{T: t, stdin: bytes.NewReader(farmdatatest.Prescriptions(t, farmdatatest.TaskGridOfZones, farmdatatest.TaskGridAgain, farmdatatest.TaskZones, farmdatatest.TaskOneRate))}
	table := w.want(statusOK, "inspect", "-")
	lines := strings.Split(table, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	for _, want := range []string{"GRD00001 TSK1; TSK2 PFD1 1 11 12 132 0", "GRD00001 0006 Rate DET1 PDT3; Urea 132 120 220 kg/ha", "1 west - TSK4 PFD1 0006 Rate DET1 PDT3 1500 kg/ha",
		"2 east - TSK4 PFD1 0006 Rate DET1 - 900 kg/ha", "3 nothing - TSK4 PFD1 - - - - - -", "1 all default TSK7 PFD1 0006 Rate DET1 Urea 500 kg/ha"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// Tracks can have the colors of values.
func TestInspectColor(t *testing.T) {
	w := &world{T: t}
	for _, ddi := range []string{"0054", "54"} {
		w.stdin = bytes.NewReader(farmdatatest.Harvest(t))
		testkit.Contains(t, w.want(statusOK, "inspect", "--output", "svg", "--color", ddi, "-"), "Mass per area yield, mg/m² (TLG00001)")
	}
	if _, _, stderr := w.agrimill("inspect", "--color", "yield", "-"); !strings.Contains(stderr, "must be up to four hexadecimal digits") {
		t.Errorf("stderr %q", stderr)
	}
}

// A picture without the colors that were asked for is an error, which says what there is.
func TestInspectColorOfNothing(t *testing.T) {
	w := &world{T: t, stdin: bytes.NewReader(farmdatatest.Harvest(t))}
	status, stdout, stderr := w.agrimill("inspect", "--output", "svg", "--color", "0099", "-")
	if status != statusFailed || stdout != "" || !strings.Contains(stderr, "no log has values of the DDI 0099; there are: ") || !strings.Contains(stderr, "0054") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

// What cannot be read is said with its place; what is no farm data at all is an error.
func TestInspectDamage(t *testing.T) {
	w := &world{T: t}
	cut := save(t, "cut.zip", farmdatatest.Zip(t, "TASKDATA.XML", farmdatatest.TaskDataXML, "TLG00001.XML", farmdatatest.LogHeader,
		"TLG00001.BIN", string(farmdatatest.Log(3)[:50])))
	testkit.Contains(t, w.want(statusOK, "inspect", cut), "\nFINDING\nTLG00001.BIN: cut: the file ends inside of it, record 1, byte 26\n")
	for name, b := range map[string]string{"text": "no farm data", "nothing": ""} {
		status, stdout, stderr := w.agrimill("inspect", save(t, name, []byte(b)))
		if status != statusFailed || stdout != "" || !strings.Contains(stderr, name+": neither TaskData nor EFDI: ") || strings.Contains(stderr, "isoxml: ") {
			t.Errorf("%s: status %d, stdout %q, stderr %q", name, status, stdout, stderr)
		}
	}
	if status, _, stderr := w.agrimill("inspect", filepath.Join(t.TempDir(), "absent")); status != statusFailed || !strings.Contains(stderr, "absent") {
		t.Errorf("absent file: status %d, stderr %q", status, stderr)
	}
}

func TestNumber(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 5000: "5000", 1. / 3: "0.333333", 1234567: "1234567", -1234567.8: "-1234568", 1e15: "1e+15"} {
		if got := number(f); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
