package isoxml

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

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
		{name: "cut behind a record", xml: strings.Replace(sample, `C="1"/>`, `B="42" C="1"/>`, 1), bin: good, records: 1, log: "cut", offset: 21, record: 1},
		{name: "longer than its task says", xml: strings.Replace(sample, `C="1"/>`, `B="20" C="1"/>`, 1), bin: good, records: 1},
		{name: "value beyond the header", bin: good + sampleRecord(1, 2, 3, value{0, 1}, value{2, 5}) + good, records: 1, log: "out of step", offset: 42, record: 1},
		{name: "value there twice", bin: good + strings.Repeat(sampleRecord(1, 2, 3, value{1, 1}, value{0, 5}, value{1, 6}), 2), records: 3, log: "duplicate", offset: 47, record: 1},
		{name: "values in another order", bin: good + sampleRecord(1, 2, 3, value{1, 1}, value{0, 5}), records: 2},
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
