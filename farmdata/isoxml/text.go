package isoxml

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/ianaindex"
	textunicode "golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// text gives the characters of an XML file as UTF-8, behind its declaration. Characters that XML does not
// allow are mended, so that each costs no more than the value that it is in.
type text struct {
	in      *bufio.Reader
	decoded bool // from another encoding than UTF-8
	isXML   bool // begins with a declaration or a tag
	report  func(offset int64, detail string)
	told    map[string]bool
	padding bool // what comes now is behind the root

	room   [8]byte // for out
	out    []byte  // mended, to be read
	offset int64   // of what was read, in UTF-8
	last   byte    // of what was read
	err    error   // why there is no more

	state    textState
	quote    rune
	previous [2]rune // the last ones, without spaces
}

type textState int

const (
	inContent textState = iota
	opened              // behind <
	inTag
	inValue
	inMarkup // <! and <?
	inComment
)

// headSize is how far a declaration is looked for.
const headSize = 1024

var (
	declaration = regexp.MustCompile(`^<\?xml\s[^>]*>`)
	label       = regexp.MustCompile(`^\s*<\?xml\s[^>]*?encoding\s*=\s*["']\s*([^"'>]*?)\s*["']`)
	reference   = regexp.MustCompile(`^#(x[0-9a-fA-F]+|[0-9]+);`)
)

// newText reads r. all reports whether all of the file is UTF-8, with more than ASCII; it is asked if the label denies that.
func newText(r io.Reader, all func() bool, report func(offset int64, detail string)) *text {
	t := &text{report: report, told: map[string]bool{}}
	raw := bufio.NewReaderSize(r, 4096)
	head, _ := raw.Peek(headSize) // an error comes again
	enc, mark := t.encoding(head, all)
	_, _ = raw.Discard(mark)
	if t.in = raw; enc != nil {
		t.in, t.decoded = bufio.NewReaderSize(transform.NewReader(raw, enc.NewDecoder()), 4096), true
	}
	for {
		c, size, err := t.in.ReadRune()
		if err != nil {
			return t
		}
		if c != '\uFEFF' && !unicode.IsSpace(c) {
			_ = t.in.UnreadRune()
			break
		}
		t.offset += int64(size)
	}
	head, _ = t.in.Peek(headSize)
	length := len(declaration.Find(head))
	t.isXML = length > 0 || bytes.HasPrefix(head, []byte("<"))
	_, _ = t.in.Discard(length)
	t.offset += int64(length)
	return t
}

// encoding returns how a file is encoded that begins with head, nil for UTF-8, and the length of its byte order mark. That
// counts more than the label, and so does a file that is UTF-8 in all of its bytes: by chance none is.
func (t *text) encoding(head []byte, all func() bool) (enc encoding.Encoding, mark int) {
	little := textunicode.UTF16(textunicode.LittleEndian, textunicode.IgnoreBOM)
	big := textunicode.UTF16(textunicode.BigEndian, textunicode.IgnoreBOM)
	switch {
	case bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")):
		return nil, 3
	case bytes.HasPrefix(head, []byte("\xFF\xFE")):
		return little, 2
	case bytes.HasPrefix(head, []byte("\xFE\xFF")):
		return big, 2
	case len(head) >= 2 && head[0] != 0 && head[1] == 0:
		return little, 0
	case len(head) >= 2 && head[0] == 0 && head[1] != 0:
		return big, 0
	}
	match := label.FindSubmatch(head)
	if match == nil || len(match[1]) == 0 {
		return nil, 0
	}
	if enc = encodingOf(string(match[1])); enc == nil {
		t.tell("unknown encoding, read as UTF-8 and Windows-1252")
		return nil, 0
	}
	// A label that is wrong for what it stands in itself, such as UTF-16, is that of a program which did not write the bytes.
	if enc == textunicode.UTF8 || !label.Match(decodedBy(enc, head)) {
		return nil, 0
	}
	if _, oneByte := enc.(*charmap.Charmap); oneByte && all() {
		t.tell("the label of the encoding is wrong: all of the file is UTF-8, and read as that")
		return nil, 0
	}
	return enc, 0
}

// isUTF8 reports whether r is UTF-8 as far as it can be read, and not only ASCII.
func isUTF8(r io.Reader) (more bool) {
	for in := bufio.NewReaderSize(r, 32<<10); ; {
		c, size, err := in.ReadRune()
		if err != nil {
			return more
		}
		if c == utf8.RuneError && size == 1 {
			_ = in.UnreadRune()
			rest, _ := in.Peek(utf8.UTFMax)
			return more && !utf8.FullRune(rest) // it ends inside of a character
		}
		more = more || size > 1
	}
}

func decodedBy(enc encoding.Encoding, b []byte) []byte {
	out, _ := enc.NewDecoder().Bytes(b) // what ends inside of a character does not matter
	return out
}

// encodingOf looks a label up, as browsers know it and as IANA does, also with other punctuation than it should have.
func encodingOf(label string) encoding.Encoding {
	for _, name := range []string{label, strings.NewReplacer("-", "", "_", "", " ", "").Replace(label)} {
		if enc, err := htmlindex.Get(name); err == nil {
			return enc
		}
		if enc, err := ianaindex.IANA.Encoding(name); err == nil && enc != nil {
			return enc
		}
	}
	return nil
}

// tell reports something once: a file may have it in every value.
func (t *text) tell(detail string) {
	if !t.told[detail] && !t.padding {
		t.told[detail] = true
		t.report(t.offset, detail)
	}
}

// ReadByte implements io.ByteReader, so that the decoder reads no further than it has to.
func (t *text) ReadByte() (byte, error) {
	for len(t.out) == 0 {
		b, err := t.in.ReadByte()
		if err != nil {
			t.err = err
			return 0, err
		}
		if b < utf8.RuneSelf && b != '&' && allowed(rune(b)) && !t.step(rune(b)) { // nearly all are; to step twice does no harm
			t.last = b
			t.offset++
			return b, nil
		}
		_ = t.in.UnreadByte()
		if err := t.next(); err != nil {
			t.err = err
			return 0, err
		}
	}
	t.last, t.out = t.out[0], t.out[1:]
	t.offset++
	return t.last, nil
}

// Read implements io.Reader, which the decoder asks for and does not use.
func (t *text) Read(p []byte) (int, error) {
	b, err := t.ReadByte()
	if err != nil || len(p) == 0 {
		return 0, err
	}
	p[0] = b
	return 1, nil
}

// resume goes to the next tag after what was malformed; that of a comment is behind it.
func (t *text) resume() {
	comment := t.state == inComment
	if !comment && t.last == '<' {
		t.out, t.offset = append([]byte{'<'}, t.out...), t.offset-1
		return
	}
	if t.out = nil; !comment {
		t.state = inContent
	}
	for !comment || t.state == inComment {
		b, err := t.in.ReadByte()
		switch {
		case err != nil:
			t.err = err
			return
		case comment:
			t.step(rune(b))
		case b == '<':
			_ = t.in.UnreadByte()
			return
		}
		t.offset++
	}
}

// next mends the next character.
func (t *text) next() error {
	c, size, err := t.in.ReadRune()
	if err != nil {
		return err
	}
	switch {
	case c == utf8.RuneError && size == 1:
		_ = t.in.UnreadRune()
		b, _ := t.in.ReadByte()
		if c = charmap.Windows1252.DecodeByte(b); b >= utf8.RuneSelf {
			t.tell("a byte that is not UTF-8, read as Windows-1252")
		}
	case c == utf8.RuneError && t.decoded:
		t.tell("a character that is not in the encoding of the file")
	}
	if c == '&' && (t.state == inValue || t.state == inContent) {
		c = t.referred()
	}
	if !allowed(c) {
		t.tell("a character that XML does not allow")
		if c = ' '; t.state == inValue {
			c = utf8.RuneError
		}
	}
	if t.out = t.room[:0]; t.step(c) {
		t.tell("a value with <")
		t.out = append(t.out, "&lt;"...)
		return nil
	}
	t.out = utf8.AppendRune(t.out, c)
	return nil
}

// referred takes a reference by number away that stands for what XML does not allow, and returns that.
func (t *text) referred() rune {
	const longest = 12
	head, _ := t.in.Peek(longest) // an error comes again
	match := reference.FindSubmatch(head)
	if match == nil {
		return '&'
	}
	n, err := strconv.ParseInt("0"+string(match[1]), 0, 32)
	if match[1][0] != 'x' {
		n, err = strconv.ParseInt(string(match[1]), 10, 32)
	}
	if err == nil && n != 0 && allowed(rune(n)) {
		return '&'
	}
	_, _ = t.in.Discard(len(match[0]))
	return 0
}

// allowed reports whether XML allows a character.
func allowed(c rune) bool {
	return c >= ' ' && c <= '\uD7FF' || c >= '\uE000' && c <= '\uFFFD' || c >= 0x10000 && c <= unicode.MaxRune || c == '\t' || c == '\n' || c == '\r'
}

// step follows where the text is, and reports whether c is a < inside of a value.
func (t *text) step(c rune) bool {
	was := t.previous
	if !unicode.IsSpace(c) {
		t.previous = [2]rune{was[1], c}
	}
	switch t.state {
	case inContent:
		if c == '<' {
			t.state = opened
		}
	case opened:
		switch c {
		case '<':
		case '!', '?':
			t.state = inMarkup
		default:
			t.state = inTag
		}
	case inTag:
		switch {
		case c == '>':
			t.state = inContent
		case c == '<':
			t.state = opened
		case (c == '"' || c == '\'') && was[1] == '=':
			t.state, t.quote = inValue, c
		}
	case inValue:
		if c == t.quote {
			t.state = inTag
		}
		return c == '<'
	case inMarkup:
		if c == '>' {
			t.state = inContent
		} else if c == '-' && was == [2]rune{'!', '-'} {
			t.state = inComment
		}
	case inComment:
		if c == '>' && was == [2]rune{'-', '-'} {
			t.state = inContent
		}
	}
	return false
}
