package isoxml

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/unicode"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// encoded is TaskData with a customer's name; without a label if that is empty.
func encoded(t *testing.T, mark, label, name string, enc encoding.Encoding) string {
	t.Helper()
	xml := `<ISO11783_TaskData VersionMajor="4"><CTR A="CTR1" B="` + name + `"/><FRM A="FRM1" B="farm"/></ISO11783_TaskData>`
	if label != "" {
		xml = `<?xml version="1.0" encoding="` + label + `"?>` + "\n" + xml
	}
	if enc == nil {
		return mark + xml
	}
	out := testkit.Must(enc.NewEncoder().String(xml))(t)
	return mark + out
}

// A name is read in whatever encoding a program writes, by whatever label; the mark at the beginning of the file counts more
// than the label.
func TestEncodings(t *testing.T) {
	little := unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM)
	big := unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM)
	for _, c := range []struct {
		mark, label, name string
		enc               encoding.Encoding
		findings          string
	}{
		{"", "", "Müller", nil, ""},
		{"", "UTF-8", "Müller", nil, ""},
		{"", "utf8", "Müller", nil, ""},
		{"", "UTF8", "Müller", nil, ""},
		{"", "Utf_8", "Müller", nil, ""},
		{"", "utf-16", "Müller", nil, ""},
		{"", "UTF-16LE", "Müller", nil, ""},
		{"\xEF\xBB\xBF", "UTF-8", "Müller", nil, ""},
		{"\xEF\xBB\xBF", "ISO-8859-1", "Müller", nil, ""},
		{"\xEF\xBB\xBF", "windows-1252", "Müller", nil, ""},
		{"\xEF\xBB\xBF\xEF\xBB\xBF", "utf-8", "Müller", nil, ""},
		{"\r\n  ", "utf-8", "Müller", nil, ""},
		{"\xFF\xFE", "UTF-16", "Müller 🌱", little, ""},
		{"\xFF\xFE", "UTF-16LE", "Müller", little, ""},
		{"\xFF\xFE", "utf-8", "Müller", little, ""},
		{"\xFE\xFF", "UTF-16", "Müller", big, ""},
		{"", "UTF-16", "Müller", little, ""},
		{"", "UTF-16", "Müller", big, ""},
		{"", "UTF-16BE", "Müller", big, ""},
		{"", "", "Müller", little, ""},
		{"", "ISO-8859-1", "Müller", charmap.ISO8859_1, ""},
		{"", "iso8859-1", "Müller", charmap.ISO8859_1, ""},
		{"", "ISO_8859-1", "Müller", charmap.ISO8859_1, ""},
		{"", "latin-1", "Müller", charmap.ISO8859_1, ""},
		{"", "latin1", "Müller", charmap.ISO8859_1, ""},
		{"", "l1", "Müller", charmap.ISO8859_1, ""},
		{"", "Windows-1252", "5 €", charmap.Windows1252, ""},
		{"", "cp1252", "5 €", charmap.Windows1252, ""},
		{"", "ISO-8859-2", "Żółć", charmap.ISO8859_2, ""},
		{"", "ISO-8859-15", "5 €", charmap.ISO8859_15, ""},
		{"", "latin-9", "5 €", charmap.ISO8859_15, ""},
		{"", "windows-1250", "Żółć", charmap.Windows1250, ""},
		{"", "windows-1251", "Поле", charmap.Windows1251, ""},
		{"", "cp1251", "Поле", charmap.Windows1251, ""},
		{"", "KOI8-R", "Поле", charmap.KOI8R, ""},
		{"", "ibm850", "Müller", charmap.CodePage850, ""},
		{"", "cp850", "Müller", charmap.CodePage850, ""},
		{"", "ibm437", "Müller", charmap.CodePage437, ""},
		{"", "Shift_JIS", "圃場", japanese.ShiftJIS, ""},
		{"", "EUC-JP", "圃場", japanese.EUCJP, ""},
		{"", "GB2312", "田", simplifiedchinese.GBK, ""},
		{"", "GB18030", "田", simplifiedchinese.GB18030, ""},
		{"", "US-ASCII", "Mueller", nil, ""},
		// What the label does not say is read, and told.
		{"", "UTF-8", "Müller", charmap.ISO8859_1, "text"},
		{"", "", "Müller", charmap.ISO8859_1, "text"},
		{"", "ANSI", "Müller", charmap.Windows1252, "text, text"},
		{"", "KLINGON", "Müller", nil, "text"},
		// All of it is UTF-8: the label is wrong.
		{"", "ISO-8859-1", "Müller", nil, "text"},
		{"", "latin1", "Grüße, 圃場 🌱", nil, "text"},
		{"", "Windows-1252", "5 €", nil, "text"},
		{"", "US-ASCII", "Müller", nil, "text"},
		{"", "ISO-8859-15", "Müller", nil, "text"},
		{"", "ISO-8859-2", "Żółć", nil, "text"},
		{"", "windows-1250", "Żółć", nil, "text"},
		{"", "windows-1251", "Поле", nil, "text"},
		{"", "KOI8-R", "Поле", nil, "text"},
		{"", "ibm850", "Müller", nil, "text"},
		{"", "macintosh", "Müller", nil, "text"},
		{"", "ISO-8859-1", strings.Repeat("x", 9000) + "ü", nil, "text"},
		{"", "ISO-8859-1", "x" + strings.Repeat("ü", 40_000), nil, "text"},
		// One byte that is not UTF-8, or nothing but ASCII: the label holds.
		{"", "ISO-8859-1", "Ã¼ as ü", charmap.ISO8859_1, ""},
		{"", "ISO-8859-1", "Ã¼" + strings.Repeat("x", 90_000) + "ü", charmap.ISO8859_1, ""},
		{"", "windows-1252", "Mueller", nil, ""},
	} {
		t.Run(strings.Join([]string{c.mark, c.label, c.name[:min(len(c.name), 20)]}, " "), func(t *testing.T) {
			set := openSet(t, entry{"TASKDATA.XML", encoded(t, c.mark, c.label, c.name, c.enc)})
			if len(set.Customers) != 1 || set.Customers[0].LastName != c.name || len(set.Farms) != 1 {
				t.Errorf("got %.200v, want %.200q", set.Customers, c.name)
			}
			if got := farmdatatest.Kinds(set.Findings); got != c.findings || set.Unread() != nil {
				t.Errorf("got findings %q, want %q: %v", got, c.findings, set.Findings)
			}
		})
	}
}

// Of a file that ends early, what is there decides.
func TestWrongLabelOfWhatIsCut(t *testing.T) {
	whole := encoded(t, "", "ISO-8859-1", "Müller", nil)
	whole = strings.Replace(whole, `"farm"`, `"Höfe"`, 1)
	for name, content := range map[string]string{"in a name": whole[:strings.Index(whole, "fe\"")], "in a character": whole[:strings.Index(whole, "fe\"")-1]} {
		set := openSet(t, entry{"TASKDATA.XML", content})
		if got := farmdatatest.Kinds(set.Findings); len(set.Customers) != 1 || set.Customers[0].LastName != "Müller" || !strings.Contains(got, "text") || !strings.Contains(got, "cut") {
			t.Errorf("%s: got %+v and %v, want Müller, and that the label is wrong", name, set.Customers, set.Findings)
		}
	}
}

// One bad byte costs one value, or the element in whose tag it is, with a finding; never the set.
func TestOneBadByte(t *testing.T) {
	const whole = `<?xml version="1.0"?><ISO11783_TaskData VersionMajor="4"><CTR A="CTR1" B="%"/><FRM A="FRM1" B="farm"/></ISO11783_TaskData>`
	for name, c := range map[string]struct {
		from, to  string // replaced in whole
		customers string
		findings  string
	}{
		"nothing":                  {"%", "x", "x", ""},
		"XML 1.1":                  {`version="1.0"`, `version="1.1"`, "%", ""},
		"<":                        {"%", "a < b", "a < b", "text"},
		"< of a tag":               {"%", "<b>", "<b>", "text"},
		">":                        {"%", "a > b", "a > b", ""},
		"&":                        {"%", "A&B", "A&B", ""},
		"unknown entity":           {"%", "&nbsp;x", "&nbsp;x", ""},
		"control character":        {"%", "a\x01b", "a\uFFFDb", "text"},
		"NUL":                      {"%", "a\x00b", "a\uFFFDb", "text"},
		"reference to control":     {"%", "a&#x1;b", "a\uFFFDb", "text"},
		"reference to NUL":         {"%", "a&#0;b", "a\uFFFDb", "text"},
		"reference to a character": {"%", "a&#252;b", "aüb", ""},
		"escape":                   {"%", "a\x1Bb", "a\uFFFDb", "text"},
		"no character":             {"%", "a\uFFFEb", "a\uFFFDb", "text"},
		"not UTF-8":                {"%", "a\xFCb", "aüb", "text"},
		"cut UTF-8":                {"%", "a\xC3", "aÃ", "text"},
		"control in a tag":         {`A="CTR1"`, "\x02" + `A="CTR1"`, "%", "text"},
		"control between tags":     {"<FRM", "\x02<FRM", "%", "text"},
		"NULs at the end":          {"</ISO11783_TaskData>", "</ISO11783_TaskData>" + strings.Repeat("\x00", 512), "%", ""},
		"end of file of DOS":       {"</ISO11783_TaskData>", "</ISO11783_TaskData>\r\n\x1A", "%", ""},
		"quote in a value":         {"%", `6" pipe`, "", "syntax"},
		"quote missing":            {`B="%"`, `B="%`, "", "text, syntax"},
		"name missing":             {`B="%"`, `="%"`, "", "syntax"},
		"two <":                    {"<CTR", "<<CTR", "%", "syntax"},
		"< alone":                  {"<CTR", "< <CTR", "%", "syntax"},
		"end without a beginning":  {"<CTR", "</X><CTR", "%", "syntax"},
		"beginning without an end": {"<FRM", "<X><FRM", "%", "syntax, unsupported, orphan"},
		"comment":                  {"<CTR", "<!-- don't < '> --><CTR", "%", ""},
		"-- in a comment":          {"<ISO", `<!-- a -- b <x y="z> --><ISO`, "%", "syntax"},
		"-- in a later one":        {"<CTR", `<!-- a --b- <x y="z> --><CTR`, "%", "syntax"},
		"--- in a comment":         {"<CTR", "<!--- a --- b <x y='z> ---><CTR", "%", "syntax"},
		"-- of more than ASCII":    {"<CTR", `<!-- ü -- ü <x y="ü> --><CTR`, "%", "syntax"},
		"a tag in a comment":       {"<CTR", `<!-- a -- <CTR A="CTR2" B="x"/> --><CTR`, "%", "syntax"},
		"doctype":                  {"<ISO11783", `<!DOCTYPE ISO11783_TaskData SYSTEM "x.dtd"><ISO11783`, "%", ""},
		"single quotes":            {`"%"`, `'%'`, "%", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set := openSet(t, entry{"TASKDATA.XML", strings.Replace(whole, c.from, c.to, 1)})
			var names []string
			for _, customer := range set.Customers {
				names = append(names, customer.LastName)
			}
			if got := strings.Join(names, ", "); got != c.customers {
				t.Errorf("got customers %q, want %q", got, c.customers)
			}
			kinds := strings.Split(farmdatatest.Kinds(set.Findings), ", ")
			if got := strings.Join(slices.Compact(kinds), ", "); got != c.findings {
				t.Errorf("got findings %q, want %q: %v", got, c.findings, set.Findings)
			}
			if (!strings.Contains(c.findings, "syntax") || strings.Contains(c.to, "<!--")) && (len(set.Farms) != 1 || set.Major != 4) {
				t.Errorf("got farms %+v and version %d, want what stands behind the bad byte", set.Farms, set.Major)
			}
		})
	}
}

// All of it bad is not nothing.
func TestAllBytesBad(t *testing.T) {
	for name, content := range map[string]string{"zeros": strings.Repeat("\x00", 2000), "text": "hello", "tags of nothing": strings.Repeat("<< ", 1000), "empty": ""} {
		if set := openSet(t, entry{"TASKDATA.XML", content}); set.Unread() == nil {
			t.Errorf("%s: got %v, want a finding of kind %s", name, set.Findings, farmdata.KindUnreadable)
		}
	}
}
