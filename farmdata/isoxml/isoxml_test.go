package isoxml

import (
	"errors"
	"io"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

func TestRecordsHaveTimePlaceAndValues(t *testing.T) {
	t.Parallel()
	set := openSet(t, entry{"TASKDATA/TASKDATA.XML", sample}, entry{"TASKDATA/TLG00001.XML", sampleHeader},
		entry{"TASKDATA/TLG00001.BIN", sampleRecord(3_600_000, 525000000, -75000000, value{0, 9000}, value{1, 1}) + sampleRecord(3_601_500, 525000010, -75000010)})
	if got := farmdatatest.Kinds(set.Findings); got != "" {
		t.Errorf("findings: %s", got)
	}
	log := set.Logs[0]
	records, found := farmdatatest.Read(t, log)
	if len(records) != 2 || len(found) != 0 {
		t.Fatalf("%d records, findings %v", len(records), found)
	}
	first := records[0]
	if got := first.Stamp.String(); got != "2021-01-25T01:00:00" {
		t.Errorf("time %s: want it without an offset, because it is local", got)
	}
	if p := first.Position; p.North != 52.5 || p.East != -7.5 || p.Status != 4 || !p.Valid() || p.Has&farmdata.HasUp != 0 {
		t.Errorf("position %+v", p)
	}
	width := first.Values[0]
	if c := width.Column; c.DDI != 0x43 || c.Name != "width" || c.Unit != "m" || c.Device != "mower" || c.Element != "body" || c.Decimals != 2 {
		t.Errorf("column %+v", c)
	}
	if width.Raw != 9000 || width.Scaled() != 9.005 {
		t.Errorf("raw %d, scaled %v; want 9000 and (9000+5)*0.001", width.Raw, width.Scaled())
	}
	if state := first.Values[1].Column; state.Name != "Actual work state" || state.Scale != 1 || state.Decimals != -1 {
		t.Errorf("a value that the device does not describe: %+v, want what the data dictionary says", state)
	}
	if len(records[1].Values) != 0 || records[1].Number != 1 {
		t.Errorf("second record %+v", records[1])
	}
	if again, _ := farmdatatest.Read(t, log); len(again) != 2 {
		t.Errorf("%d records the second time", len(again))
	}
	if device := set.Devices[0]; device.Name != "A00086000DE02812" {
		t.Errorf("NAME %s", device.Name)
	}
}

func TestGPSTimeIsPreferredWhereItIs(t *testing.T) {
	t.Parallel()
	const header = `<TIM A="" D="4"><PTN A="" B="" C="" D="" E="" F="" G="" H="" I=""/></TIM>`
	local := "\x80\xee\x36\x00\x98\x3a" // 01:00 on day 15000
	place := "\x40\xc9\x4a\x1f\x00\x00\x00\x00\xe8\x03\x00\x00\x05\x0c\x00\x0b\x00\x09"
	set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", header},
		entry{"TLG00001.BIN", local + place + "\x60\x8f\x88\x04\x97\x3a" + "\x00" + local + place + "\x00\x00\x00\x00\xff\xff" + "\x00"})
	records, found := farmdatatest.Read(t, set.Logs[0])
	if len(records) != 2 || len(found) != 0 {
		t.Fatalf("%d records, findings %v", len(records), found)
	}
	if at, instant := records[0].Stamp.Time(); !instant || !at.Equal(time.Date(2021, 1, 24, 21, 7, 0, 0, time.UTC).Add(at.Sub(at.Truncate(time.Minute)))) {
		t.Errorf("time %v, instant %v: want that of the receiver", at, instant)
	}
	if p := records[0].Position; p.Up != 1000 || p.PDOP != 1.2 || p.HDOP != 1.1 || p.Satellites != 9 || p.Status != 5 {
		t.Errorf("position %+v", p)
	}
	if _, instant := records[1].Stamp.Time(); instant {
		t.Error("a receiver without a time made the local time an instant")
	}
}

func TestConstantsOfTheHeader(t *testing.T) {
	t.Parallel()
	const header = `<TIM A="" D="4"><PTN A="52.5" B="" D="4"/><DLV A="0043" B="3000" C="DET-1"/></TIM>`
	set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", header}, entry{"TLG00001.BIN", "\x00\x00\x00\x00\x98\x3a\x40\xc9\x4a\x04\x00"})
	records, _ := farmdatatest.Read(t, set.Logs[0])
	if len(records) != 1 || records[0].Position.North != 52.5 || records[0].Position.Status != 4 || !records[0].Position.Valid() {
		t.Fatalf("records %+v", records)
	}
	if c := set.Logs[0].Constants; len(c) != 1 || c[0].Scaled() != 3.005 {
		t.Errorf("constants %+v", c)
	}
}

// TestArchivesAsTheyCome opens one set in the ways in which it is packed.
func TestArchivesAsTheyCome(t *testing.T) {
	t.Parallel()
	bin := sampleRecord(0, 1, 1, value{0, 7})
	plain := []entry{{"TASKDATA.XML", sample}, {"TLG00001.XML", sampleHeader}, {"TLG00001.BIN", bin}}
	under := func(prefix string, entries ...entry) (list []entry) {
		for _, e := range entries {
			list = append(list, entry{prefix + e.name, e.content})
		}
		return list
	}
	lower := []entry{{"taskdata.xml", sample}, {"tlg00001.xml", sampleHeader}, {"Tlg00001.Bin", bin}}
	utf16 := "\xff\xfe"
	for _, c := range strings.Replace(sample, "UTF-8", "UTF-16", 1) {
		utf16 += string([]byte{byte(c), 0})
	}
	for name, entries := range map[string][]entry{
		"at the top":          plain,
		"in a subfolder":      under("a/TASKDATA/", plain...),
		"lower case":          lower,
		"backslashes":         under(`TASKDATA\`, plain...),
		"macOS leftovers":     append(under("__MACOSX/TASKDATA/._", plain...), append(under("TASKDATA/._", plain...), under("TASKDATA/", plain...)...)...),
		"nested":              {{"inner.zip", zipped(t, under("TASKDATA/", plain...)...)}, {"readme.txt", "hello"}},
		"nested twice":        {{"a.zip", zipped(t, entry{"b.ZIP", zipped(t, plain...)})}},
		"beside a broken one": append([]entry{{"broken.zip", "no archive"}}, plain...),
		"byte order mark":     {{"TASKDATA.XML", "\ufeff" + sample}, plain[1], plain[2]},
		"UTF-16":              {{"TASKDATA.XML", utf16}, plain[1], plain[2]},
		"Latin 1":             {{"TASKDATA.XML", strings.Replace(sample, "UTF-8", "ISO-8859-1", 1)}, plain[1], plain[2]},
		"external file": {
			{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4"><XFR A="TSK00001" B="1"/></ISO11783_TaskData>`},
			{"tsk00001.xml", strings.ReplaceAll(strings.ReplaceAll(sample, "ISO11783_TaskData", "XFC"), "4", "4")}, plain[1], plain[2]},
	} {
		a := open(t, zipped(t, entries...), Config{})
		if len(a.Sets) != 1 || len(a.Sets[0].Logs) != 1 {
			t.Errorf("%s: %d sets", name, len(a.Sets))
			continue
		}
		set := a.Sets[0]
		if records, found := farmdatatest.Read(t, set.Logs[0]); len(records) != 1 || len(found) != 0 || set.Logs[0].TaskID != "TSK1" || set.Major != 4 {
			t.Errorf("%s: %d records, findings %v, log %+v", name, len(records), found, set.Logs[0])
		}
		if got := farmdatatest.Kinds(set.Findings); got != "" {
			t.Errorf("%s: findings %s", name, got)
		}
		if got := farmdatatest.Kinds(a.Findings); got != "" && name != "beside a broken one" {
			t.Errorf("%s: findings %s", name, got)
		}
	}
	files := fstest.MapFS{}
	for _, e := range under("TASKDATA/", plain...) {
		files[e.name] = &fstest.MapFile{Data: []byte(e.content)}
	}
	a, err := OpenFS(t.Context(), files, Config{})
	if err != nil || len(a.Sets) != 1 || a.Sets[0].Path != "TASKDATA" {
		t.Fatalf("folder: %+v, %v", a, err)
	}
	if records, found := farmdatatest.Read(t, a.Sets[0].Logs[0]); len(records) != 1 || len(found) != 0 {
		t.Errorf("folder: %d records, findings %v", len(records), found)
	}
}

// TestDamage: one row for each kind of damage, with what is found while the set is
// read, what while the log is, where, and how many records are given.
func TestDamage(t *testing.T) {
	t.Parallel()
	good := sampleRecord(1000, 10, 20, value{0, 1}) // 21 bytes
	for _, tt := range []struct {
		name           string
		xml, header    string // those of the sample if empty, absent if "-"
		bin            string
		records        int
		set, log       string
		offset, record int64 // of the first finding of the log
	}{
		{name: "no binary file", bin: "-", set: "missing"},
		{name: "no header", header: "-", bin: good, set: "missing"},
		{name: "no TASKDATA.XML", xml: "-", bin: good, records: 1, set: "missing, orphan, reference, reference"},
		{name: "empty binary file", log: "empty"},
		{name: "binary file under 6 bytes", bin: good[:5], log: "cut"},
		{name: "cut in the position", bin: good + good[:9], records: 1, log: "cut", offset: 21, record: 1},
		{name: "cut in a value", bin: good + good[:19], records: 1, log: "cut", offset: 21, record: 1},
		{name: "value beyond the header", bin: good + sampleRecord(1, 2, 3, value{0, 1}, value{2, 5}) + good, records: 1, log: "out of step", offset: 42, record: 1},
		{name: "position off Earth", bin: good + sampleRecord(1, 1_000_000_000, 3) + good, records: 3, log: "position", offset: 31, record: 1},
		{name: "time of day after midnight", bin: sampleRecord(86_400_000, 1, 2) + good, records: 2, log: "time"},
		{name: "empty header", header: " ", bin: good, set: "unreadable"},
		{name: "header of something else", header: "<TSK/>", bin: good, set: "unreadable"},
		{name: "header that ends in an element", header: strings.TrimSuffix(sampleHeader, "</TIM>"), bin: good, records: 1, set: "cut"},
		{name: "header that ends in a tag", header: sampleHeader[:90], bin: good, records: 1, set: "cut"},
		{name: "malformed XML behind the log", xml: sample[:260] + "<<<", bin: good, records: 1, set: "text, cut, reference, reference"},
		{name: "task that ends in a tag", xml: sample[:260], bin: good, records: 1, set: "cut, reference, reference"},
		{name: "log named twice", xml: strings.Replace(sample, "</TSK>", `<TLG A="tlg00001"/></TSK>`, 1), bin: good, records: 1, set: "duplicate"},
		{name: "log that no task names", xml: strings.Replace(sample, "TLG A", "XXX A", 1), bin: good, records: 1, set: "orphan, unsupported"},
		{name: "unknown device element", header: strings.ReplaceAll(sampleHeader, "DET-1", "DET-9"), bin: good, records: 1, set: "reference, reference"},
		{name: "device element twice", xml: strings.Replace(sample, `<DPD`, `<DET A="DET-1" B="2"/><DPD`, 1), bin: good, records: 1, set: "duplicate"},
		{name: "numbers that are none", xml: strings.Replace(sample, `G="4"`, `G="four"`, 1), bin: good, records: 1, set: "value"},
		{name: "external file that is not there", xml: strings.Replace(sample, `<TSK`, `<XFR A="PFD00001"/><TSK`, 1), bin: good, records: 1, set: "missing"},
		{name: "external file that is named twice", xml: strings.Replace(sample, `<TSK`, `<XFR A="TASKDATA"/><TSK`, 1), bin: good, records: 1, set: "duplicate"},
		{name: "another root", xml: "<html/>", bin: good, records: 1, set: "unreadable, orphan, reference, reference"},
		{name: "unknown encoding", xml: strings.Replace(sample, "UTF-8", "KLINGON", 1), bin: good, records: 1, set: "text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var entries []entry
			for _, e := range []struct{ name, content, sample string }{
				{"TASKDATA.XML", tt.xml, sample}, {"TLG00001.XML", tt.header, sampleHeader}, {"TLG00001.BIN", tt.bin, ""},
			} {
				switch e.content {
				case "-":
					continue
				case "":
					e.content = e.sample
				}
				entries = append(entries, entry{e.name, e.content})
			}
			set := openSet(t, entries...)
			if got := farmdatatest.Kinds(set.Findings); got != tt.set {
				t.Errorf("findings of the set %q, want %q: %v", got, tt.set, set.Findings)
			}
			records, found := farmdatatest.Read(t, set.Logs[0])
			if len(records) != tt.records || farmdatatest.Kinds(found) != tt.log {
				t.Fatalf("%d records, findings %q; want %d and %q: %v", len(records), farmdatatest.Kinds(found), tt.records, tt.log, found)
			}
			if len(found) > 0 && (found[0].Offset != tt.offset || found[0].Record != tt.record || found[0].File != "TLG00001.BIN") {
				t.Errorf("finding %v, want byte %d of record %d", found[0], tt.offset, tt.record)
			}
		})
	}
}

func TestDuplicateFilesAndWrongChecksums(t *testing.T) {
	t.Parallel()
	good := sampleRecord(1000, 10, 20, value{0, 1})
	a := open(t, zipped(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", sampleHeader}, entry{"TLG00001.bin", good}, entry{"TLG00001.BIN", good + good}), Config{})
	if records, _ := farmdatatest.Read(t, a.Sets[0].Logs[0]); len(records) != 1 || farmdatatest.Kinds(a.Findings) != "duplicate" {
		t.Errorf("%d records, findings %v; want those of the first file", len(records), a.Findings)
	}
	// The content of the last file of the archive, changed under its checksum.
	files := fstest.MapFS{"TASKDATA.XML": {Data: []byte(sample)}, "TLG00001.XML": {Data: []byte(sampleHeader)}, "TLG00001.BIN": {Data: []byte(good + good)}}
	broken := testkit.Must(OpenFS(t.Context(), failing{files, "TLG00001.BIN", len(good) + 3}, Config{}))(t)
	records, found := farmdatatest.Read(t, broken.Sets[0].Logs[0])
	if len(records) != 1 || farmdatatest.Kinds(found) != "unreadable" || found[0].Offset != int64(len(good)) || !errors.Is(found[0], errDisk) {
		t.Errorf("%d records, findings %v; want what was read before the error", len(records), found)
	}
}

var errDisk = errors.New("disk error")

// failing is a folder with a file that cannot be read beyond a number of bytes.
type failing struct {
	fs.FS
	name string
	good int
}

// Open opens the file that fails, or another one.
func (f failing) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if name != f.name || err != nil {
		return file, err
	}
	return failingFile{file, io.MultiReader(io.LimitReader(file, int64(f.good)), iotestErrReader{})}, nil
}

type failingFile struct {
	fs.File
	r io.Reader
}

// Read reads until the error.
func (f failingFile) Read(p []byte) (int, error) { return f.r.Read(p) }

type iotestErrReader struct{}

// Read fails.
func (iotestErrReader) Read([]byte) (int, error) { return 0, errDisk }

// TestLimits: whatever an archive claims, nothing beyond the limits is read, and
// that is told.
func TestLimits(t *testing.T) {
	t.Parallel()
	good := sampleRecord(1000, 10, 20, value{0, 1})
	plain := []entry{{"TASKDATA.XML", sample}, {"TLG00001.XML", sampleHeader}, {"TLG00001.BIN", strings.Repeat(good, 100)}}
	nested := zipped(t, plain...)
	for range 3 {
		nested = zipped(t, entry{"inner.zip", nested})
	}
	all := func(a *Archive) (list []*farmdata.Finding) {
		list = slices.Clone(a.Findings)
		for _, set := range a.Sets {
			list = append(list, set.Findings...)
			for _, log := range set.Logs {
				_, found := farmdatatest.Read(t, log)
				list = append(list, found...)
			}
		}
		return list
	}
	for name, tt := range map[string]struct {
		cfg     Config
		entries []entry
	}{
		"files":                {Config{MaxFiles: 3}, append(plain, entry{"a", "b"})},
		"bytes of XML":         {Config{MaxXML: 200}, plain},
		"elements":             {Config{MaxElements: 5}, plain},
		"depth":                {Config{MaxDepth: 2}, plain},
		"depth by default":     {Config{}, append(plain[1:], entry{"TASKDATA.XML", `<ISO11783_TaskData>` + strings.Repeat("<a>", 10_000)})},
		"bytes of a log":       {Config{MaxStream: 99}, plain},
		"findings":             {Config{MaxFindings: 1}, []entry{{"TASKDATA.XML", strings.Repeat(`<ISO11783_TaskData>`, 1) + strings.Repeat(`<TSK G="x"/>`, 9)}}},
		"nested archives":      {Config{}, append(plain, entry{"deep.zip", nested})},
		"archives":             {Config{MaxFiles: 4}, append(plain, entry{"a.zip", ""}, entry{"b.zip", ""}, entry{"c.zip", ""})},
		"one endless tag":      {Config{}, append(plain[1:], entry{"TASKDATA.XML", `<ISO11783_TaskData ` + strings.Repeat(`A="" `, 1<<19)})},
		"size of an archive":   {Config{MaxNested: 10}, append(plain, entry{"inner.zip", nested})},
		"XML that unpacks big": {Config{MaxXML: 1 << 20}, append(plain[1:], entry{"TASKDATA.XML", sample + strings.Repeat(" ", 4<<20)})},
	} {
		a := open(t, zipped(t, tt.entries...), tt.cfg)
		if found := all(a); !slices.ContainsFunc(found, func(f *farmdata.Finding) bool { return f.Kind == farmdata.KindLimit }) {
			t.Errorf("%s: findings %v, want a limit", name, found)
		}
	}
	if a := open(t, zipped(t, plain...), Config{}); len(all(a)) != 0 {
		t.Errorf("findings %v within the limits", all(a))
	}
	// A directory is read as a whole; one that is out of proportion is not.
	var many []entry
	for i := range 1200 {
		many = append(many, entry{strings.Repeat("n", 200) + string(rune('a'+i%26)) + strings.Repeat("x", i), ""})
	}
	archive := zipped(t, many...)
	if _, err := Open(t.Context(), strings.NewReader(archive), int64(len(archive)), Config{MaxFiles: 10}); !errors.Is(err, errLimit) {
		t.Errorf("a directory of %d bytes: %v", len(archive), err)
	}
	if _, err := Open(t.Context(), strings.NewReader(""), 0, Config{MaxXML: -1, MaxFiles: -1}); err == nil || !strings.Contains(err.Error(), "MaxXML") || !strings.Contains(err.Error(), "MaxFiles") {
		t.Errorf("negative limits: %v", err)
	}
}

func TestWhatIsNoTaskData(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"another archive": zipped(t, entry{"field.shp", "x"}), "an empty archive": zipped(t)} {
		if _, err := Open(t.Context(), strings.NewReader(content), int64(len(content)), Config{}); !errors.Is(err, ErrNoTaskData) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), strings.NewReader("hello"), 5, Config{}); err == nil || errors.Is(err, ErrNoTaskData) {
		t.Errorf("no archive: %v", err)
	}
}

// TestSetsAreApart: two sets of one archive have logs of their own.
func TestSetsAreApart(t *testing.T) {
	t.Parallel()
	one, two := sampleRecord(0, 1, 1, value{0, 1}), sampleRecord(0, 1, 1, value{0, 2})
	a := open(t, zipped(t, entry{"b/TASKDATA.XML", sample}, entry{"b/TLG00001.XML", sampleHeader}, entry{"b/TLG00001.BIN", two},
		entry{"a/TASKDATA.XML", sample}, entry{"a/TLG00001.XML", sampleHeader}, entry{"a/TLG00001.BIN", one}), Config{})
	if len(a.Sets) != 2 || a.Sets[0].Path != "a" || a.Sets[1].Path != "b" {
		t.Fatalf("sets %+v", a.Sets)
	}
	for i, set := range a.Sets {
		if records, _ := farmdatatest.Read(t, set.Logs[0]); len(records) != 1 || records[0].Values[0].Raw != int64(i+1) || len(set.Findings) != 0 {
			t.Errorf("%s: records %v, findings %v", set.Path, records, set.Findings)
		}
	}
}

// TestFindingsOfALogAreBounded: a log of nothing but bad positions tells some of them
// and that there are more, and gives all records.
func TestFindingsOfALogAreBounded(t *testing.T) {
	t.Parallel()
	archive := zipped(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", sampleHeader}, entry{"TLG00001.BIN", strings.Repeat(sampleRecord(0, 1e9, 1), 10)})
	log := open(t, archive, Config{MaxFindings: 2}).Sets[0].Logs[0]
	if records, found := farmdatatest.Read(t, log); len(records) != 10 || farmdatatest.Kinds(found) != "position, position, limit" {
		t.Errorf("%d records, findings %v", len(records), found)
	}
	for _, err := range log.Records {
		if err != nil {
			break // a loop that ends early closes the file; the next one begins anew
		}
	}
	if records, _ := farmdatatest.Read(t, log); len(records) != 10 {
		t.Errorf("%d records after a loop that ended early", len(records))
	}
}

// TestEverythingElseOfATaskData reads one of each: guidance, grids, products, links.
func TestEverythingElseOfATaskData(t *testing.T) {
	t.Parallel()
	const xml = `<ISO11783_TaskData VersionMajor="3" VersionMinor="3">
<CTR A="CTR1" B="Last" C="First"/><FRM A="FRM1" B="Farm" I="CTR1"/><WKR A="WKR1" B="Worker"/>
<PGP A="PGP1" B="Group"/><PDT A="PDT1" B="Seed" C="PGP1" D="VPN1" E="0006"/>
<CTP A="CTP1" B="Corn"><CVT A="CVT1" B="Golden"/></CTP>
<VPN A="VPN1" B="0" C="0.01" D="1" E="kg/ha"/>
<PFD A="PFD1" B="7" C="Field" D="100" E="CTR1" F="FRM1" G="CTP1" H="CVT1" I="PFD0">
 <PLN A="1" B="Border" C="90" E="PLN1"><LSG A="1"><PNT A="2" C="52.1" D="7.1" E="30"/><PNT A="2" C="52.2" D="7.1"/></LSG><LSG A="2"/></PLN>
 <LSG A="4" B="Route"/><PNT A="3" B="Gate" C="52.1" D="7.2"/>
 <GGP A="GGP1" B="Lines"><GPN A="GPN1" B="AB" C="1" G="30.5"><LSG A="5"><PNT A="6" C="52.1" D="7.1"/></LSG></GPN><PLN A="8"/></GGP>
</PFD><PFD A="PFD0"/><DVC A="DVC-1"><DET A="DET-1" B="1"/></DVC>
<TSK A="TSK1" B="Spread" C="CTR1" D="FRM1" E="PFD1" F="WKR1" G="1" H="0" J="2">
 <TIM A="2021-03-23T21:00:00.000Z" B="2021-03-23T22:00:00" C="3600" D="4"><PTN A="52" B="7" D="1"/><DLV A="0074" B="500" C="DET-1"/></TIM>
 <TZN A="0"><PDV A="0006" B="0" E="VPN1"/></TZN><TZN A="1" B="much"><PDV A="0006" B="1200" C="PDT1" E="VPN1"/><PLN A="2"/></TZN><TZN A="2"/><TZN A="5"/>
 <GRD A="52" B="7" C="0.5" D="0.25" E="3" F="2" G="GRD00001" I="1"/>
 <GRD A="52" B="7" C="0.5" D="0.25" E="2" F="2" G="GRD00002" I="2" J="1"/>
 <DAN A="a000" C="DVC-1"><ASP A="2021-03-23T21:00:00+01:00" D="4"/></DAN>
 <PAN A="PDT1" B="0006" C="400" D="1"/><GAN A="GGP1"/>
</TSK></ISO11783_TaskData>`
	const links = `<ISO11783LinkList><LGP A="LGP1" B="1"><LNK A="PFD1" B="{x}"/></LGP></ISO11783LinkList>`
	set := openSet(t, entry{"TASKDATA.XML", xml}, entry{"LINKLIST.XML", links}, entry{"GRD00001.BIN", "\x00\x01\x00\x01\x01\x05"},
		entry{"GRD00002.bin", "\x01\x00\x00\x00\x02\x00\x00\x00\xff\xff\xff\xff"})
	if len(set.Findings) != 0 {
		t.Fatalf("findings %v", set.Findings)
	}
	field, task := set.Fields[0], set.Tasks[0]
	for what, ok := range map[string]bool{
		"customer": set.Customers[0] == farmdata.Customer{ID: "CTR1", LastName: "Last", FirstName: "First"},
		"farm":     set.Farms[0] == farmdata.Farm{ID: "FRM1", Designator: "Farm", CustomerID: "CTR1"},
		"product":  reflect.DeepEqual(set.Products[0], farmdata.Product{ID: "PDT1", Designator: "Seed", GroupID: "PGP1", Presentation: "VPN1", DDI: 6}),
		"crop":     set.CropTypes[0].Varieties[0].Designator == "Golden",
		"link":     set.Links[0].Type == 1 && set.Links[0].Links[0] == farmdata.Link{ID: "PFD1", Value: "{x}"},
		"field":    field.Area == 100 && field.ParentID == "PFD0" && field.VarietyID == "CVT1" && len(field.Lines) == 1 && len(field.Points) == 1,
		"polygon":  field.Polygons[0].Area == 90 && len(field.Polygons[0].Rings) == 2 && field.Polygons[0].Rings[0].Points[0] == farmdata.Point{Type: 2, North: 52.1, East: 7.1, Up: 30},
		"guidance": field.Guidance[0].Patterns[0].Heading == 30.5 && len(field.Guidance[0].Patterns[0].Lines[0].Points) == 1 && len(field.Guidance[0].Boundaries) == 1,
		"task":     task.WorkerID == "WKR1" && task.DefaultZone == 0 && task.LostZone == -1 && task.OutsideZone == 2,
		"times":    task.Times[0].Start.String() == "2021-03-23T21:00:00Z" && task.Times[0].Stop.Local && task.Times[0].Duration == time.Hour,
		"totals":   task.Times[0].Totals[0] == farmdata.Total{DDI: 0x74, ElementID: "DET-1", Raw: 500} && task.Times[0].Positions[0].North == 52,
		"device":   task.Devices[0].Name == "A000" && task.Devices[0].Start.String() == "2021-03-23T21:00:00+01:00",
		"amount":   task.Products[0].Raw == 400 && task.Guidance[0].GroupID == "GGP1" && len(task.Zones[1].Polygons) == 1,
	} {
		if !ok {
			t.Errorf("%s is wrong", what)
		}
	}
	var zones []int
	var values []float64
	for cell, err := range task.Grids[0].Cells {
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, cell.Zone)
		for _, v := range cell.Values {
			values = append(values, v.Scaled())
		}
		if cell.Row*3+cell.Col+1 != int64(len(zones)) {
			t.Errorf("cell %d is in row %d, column %d", len(zones), cell.Row, cell.Col)
		}
	}
	if !slices.Equal(zones, []int{0, 1, 0, 1, 1, 5}) || !slices.Equal(values, []float64{0, 12, 0, 12, 12}) {
		t.Errorf("zones %v, values %v", zones, values)
	}
	var raws []int64
	var found []error
	for cell, err := range task.Grids[1].Cells {
		if err != nil {
			found = append(found, err)
			continue
		}
		raws = append(raws, cell.Values[0].Raw)
	}
	var finding *farmdata.Finding
	if !slices.Equal(raws, []int64{1, 2, -1}) || len(found) != 1 || !errors.As(found[0], &finding) || finding.Kind != farmdata.KindCut || finding.Record != 3 {
		t.Errorf("values %v, findings %v; want the file's three and a cut", raws, found)
	}
	if c := task.Grids[1].Columns[0]; c.Unit != "kg/ha" || c.Scale != 0.01 {
		t.Errorf("column %+v", c)
	}
}
