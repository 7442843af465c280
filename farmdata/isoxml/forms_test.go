package isoxml

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/text/encoding/unicode"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What is no zip archive is told what it is, alone and inside of an archive.
func TestWhatIsNoZipIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ending, begin, want string }{
		"7z":    {".7z", "7z\xbc\xaf\x27\x1c\x00\x04", "a 7z archive"},
		"RAR 4": {".rar", "Rar!\x1a\x07\x00", "a RAR archive"},
		"RAR 5": {".RAR", "Rar!\x1a\x07\x01\x00", "a RAR archive"},
		"gzip":  {".tar.gz", "\x1f\x8b\x08\x00", "packed with gzip"},
		"tgz":   {".tgz", "\x1f\x8b\x08\x08", "packed with gzip"},
		"bzip2": {".tar.bz2", "BZh91AY&SY", "packed with bzip2"},
		"xz":    {".xz", "\xfd7zXZ\x00\x00\x04", "packed with xz"},
		"zstd":  {".zst", "\x28\xb5\x2f\xfd", "packed with zstd"},
		"tar":   {".tar", "TASKDATA/" + strings.Repeat("\x00", 248) + "ustar\x0000", "a tar archive"},
	} {
		content := c.begin + strings.Repeat("\x00", 600)
		_, err := Open(t.Context(), strings.NewReader(content), int64(len(content)), Config{})
		if err == nil || !strings.Contains(err.Error(), c.want+"; have it sent as a zip archive") {
			t.Errorf("%s: got %v, want %q and what to do", name, err, c.want)
		}
		a := open(t, zipped(t, entry{"TASKDATA.XML", `<ISO11783_TaskData/>`}, entry{"logs" + c.ending, content}), Config{})
		if finding := farmdata.Unread(a.Findings); finding == nil || !strings.Contains(finding.Error(), c.want) {
			t.Errorf("%s in an archive: got %v, want %q", name, a.Findings, c.want)
		}
	}
	whole := zipped(t, entry{"TASKDATA.XML", `<ISO11783_TaskData/>`})
	for content, want := range map[string]string{"": "it is empty", whole[:len(whole)-30]: "cut off or damaged; have it sent again", "hello": "it is no archive"} {
		if _, err := Open(t.Context(), strings.NewReader(content), int64(len(content)), Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// XML that came without an archive is read if it is TaskData, and otherwise told what it is.
func TestXMLWithoutArchive(t *testing.T) {
	t.Parallel()
	const task = `<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1" B="Mowing" G="1"><TLG A="TLG00001"/></TSK></ISO11783_TaskData>`
	utf16 := testkit.Must(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String(task))(t)
	declared := testkit.Must(unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM).NewEncoder().String(`<?xml version="1.0" encoding="UTF-16"?>` + "\r\n" + task))(t)
	const declaration = `<?xml version="1.0" encoding="UTF-8"?>`
	for name, content := range map[string]string{
		"plain": task, "a mark": "\ufeff" + task, "lines before it": "\n  " + task, "a comment before it": "<!-- x -->" + task, "UTF-16": utf16,
		"a declaration": declaration + task, "a line break behind it": declaration + "\n" + task, "of DOS": declaration + "\r\n" + task, "white space": declaration + " \t\n\n  " + task,
		"much of it": declaration + strings.Repeat("\n", 5000) + task, "a comment on a line": declaration + "\n<!-- x -->\n" + task, "a mark and a line break": "\ufeff" + declaration + "\n" + task,
		"UTF-16 with a line break": declared, "a bad byte behind it": declaration + "\n\x02" + task,
	} {
		a, err := Open(t.Context(), strings.NewReader(content), int64(len(content)), Config{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		set := a.Sets[0]
		if finding := set.Unread(); len(set.Tasks) != 1 || finding == nil || finding.Kind != farmdata.KindMissing || !strings.Contains(finding.Error(), "TLG00001") {
			t.Errorf("%s: got %+v, %v, want a task whose log is missing", name, set.Tasks, finding)
		}
	}
	for name, content := range map[string]string{"another root": "<html/>", "another root on a line": declaration + "\r\n<html/>", "a declaration alone": declaration + "\n", "the header of a log": `<TIM A="" D="4"/>`, "no element": "<!-- x -->"} {
		if _, err := Open(t.Context(), strings.NewReader(content), int64(len(content)), Config{}); !errors.Is(err, ErrNoTaskData) || !strings.Contains(err.Error(), "XML without an archive") {
			t.Errorf("%s: got %v, want what it is", name, err)
		}
	}
	cut := task[:60]
	if a, err := Open(t.Context(), strings.NewReader(cut), int64(len(cut)), Config{}); err != nil || a.Sets[0].Unread() == nil || a.Sets[0].Unread().Kind != farmdata.KindCut {
		t.Errorf("cut: got %v, want a set that is cut", err)
	}
}
