package isoxml

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agrimill/agrimill/farmdata"
)

// element is an element of XML with its attributes. The methods that read those
// report what cannot be read.
type element struct {
	tag    string
	attrs  []xml.Attr
	file   string
	offset int64
	report func(*farmdata.Finding)
}

func (e *element) lookup(name string) (value string, ok bool) {
	for _, attr := range e.attrs {
		if attr.Name.Local == name {
			return strings.TrimSpace(attr.Value), true
		}
	}
	return "", false
}

func (e *element) str(name string) string {
	value, _ := e.lookup(name)
	return value
}

func (e *element) wrong(name, detail string) {
	e.find(farmdata.KindValue, "attribute "+name+" of "+e.tag+": "+detail)
}

func (e *element) find(kind farmdata.Kind, detail string) {
	e.report(&farmdata.Finding{Kind: kind, File: e.file, Offset: e.offset, Record: -1, Detail: detail})
}

func (e *element) stamp(name string) farmdata.Stamp {
	stamp, err := farmdata.ParseStamp(e.str(name))
	if err != nil {
		e.wrong(name, err.Error())
	}
	return stamp
}

// walker goes through the elements of XML files.
type walker struct {
	of     *opener
	report func(*farmdata.Finding)
}

// walk calls begin and end for every element of a file. What begin returns stands
// for the element: its children get it as parent, end gets both. What is
// malformed, or beyond a limit, ends the file early; elements that are open then
// are ended. It returns false if there was no element at all.
func (w *walker) walk(f file, begin func(parent any, e *element) any, end func(parent, object any)) bool {
	finding := func(kind farmdata.Kind, offset int64, detail string, err error) {
		w.report(&farmdata.Finding{Kind: kind, File: f.path, Offset: offset, Record: -1, Detail: detail, Err: err})
	}
	content, err := f.open()
	if err != nil {
		finding(farmdata.KindUnreadable, -1, "", err)
		return false
	}
	defer content.Close()
	source := &countedReader{r: obedient{w.of.ctx, content}, left: &w.of.budget.bytes, piece: maxPiece}
	decoder := xml.NewDecoder(decoded(source))
	decoder.Strict = false
	decoder.CharsetReader = charsetReader

	stack := []any{nil}
	defer func() {
		for i := len(stack) - 1; i > 0; i-- {
			end(stack[i-1], stack[i])
		}
	}()
	var any bool
	for {
		source.piece = maxPiece
		offset := decoder.InputOffset()
		token, err := decoder.RawToken()
		switch {
		case errors.Is(err, errLimit) || errors.Is(source.err, errLimit):
			finding(farmdata.KindLimit, offset, "more XML than MaxXML allows, or a megabyte without a break", nil)
			return any
		case source.err != nil && !errors.Is(source.err, io.EOF):
			finding(farmdata.KindUnreadable, offset, "", source.err)
			return any
		case errors.Is(err, io.EOF) && len(stack) > 1:
			finding(farmdata.KindCut, offset, "ends inside of an element", nil)
			return any
		case errors.Is(err, io.EOF):
			return any
		case err != nil:
			finding(farmdata.KindSyntax, offset, "XML is malformed", nil)
			return any
		}
		switch token := token.(type) {
		case xml.StartElement:
			if w.of.budget.elements--; w.of.budget.elements < 0 {
				finding(farmdata.KindLimit, offset, "more elements than MaxElements allows", nil)
				return any
			}
			if len(stack) > w.of.cfg.MaxDepth {
				finding(farmdata.KindLimit, offset, "elements nested deeper than MaxDepth allows", nil)
				return any
			}
			any = true
			object := begin(stack[len(stack)-1], &element{token.Name.Local, token.Attr, f.path, offset, w.report})
			if w.of.budget.memory -= weight(token.Attr, object); w.of.budget.memory < 0 {
				finding(farmdata.KindLimit, offset, "what is read takes more memory than MaxMemory allows", nil)
				return any
			}
			stack = append(stack, object)
		case xml.EndElement:
			if len(stack) == 1 {
				finding(farmdata.KindSyntax, offset, "an end without a beginning", nil)
				return any
			}
			end(stack[len(stack)-2], stack[len(stack)-1])
			stack = stack[:len(stack)-1]
		}
	}
}

// weight is about what an element takes in memory.
func weight(attrs []xml.Attr, object any) (bytes int64) {
	for _, attr := range attrs {
		bytes += int64(len(attr.Value))
	}
	switch object.(type) {
	case nil:
	case *logRef, *farmdata.Grid:
		bytes += 1 << 10 // for what is read of the log or grid, and its summary
	default:
		bytes += int64(reflect.TypeOf(object).Elem().Size())
	}
	return bytes
}

// maxPiece is how many bytes one tag, text or comment may have: what is in memory at a
// time. The attributes of a tag take ten times the room that they have in the file.
const maxPiece = 1 << 20

// countedReader stops with errLimit when nothing is left, and remembers why the
// reading ended.
type countedReader struct {
	r     io.Reader
	left  *int64
	piece int64 // what is left for what is read at present
	err   error
}

func (c *countedReader) Read(p []byte) (int, error) {
	left := min(*c.left, c.piece)
	if left <= 0 {
		// The limit is exceeded only if there is more.
		n, err := c.r.Read(make([]byte, 1))
		if n > 0 {
			err = errLimit
		}
		c.err = err
		return 0, err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), left)])
	*c.left -= int64(n)
	c.piece -= int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

// decoded makes UTF-8 of UTF-16 with a byte order mark, and takes the mark of UTF-8 away.
func decoded(r io.Reader) io.Reader {
	var mark [3]byte
	n, err := io.ReadFull(r, mark[:])
	rest := io.MultiReader(bytes.NewReader(mark[:n]), r)
	if err != nil {
		return rest // the error comes again
	}
	switch {
	case mark == [3]byte{0xEF, 0xBB, 0xBF}:
		return r
	case mark[0] == 0xFF && mark[1] == 0xFE:
		return &utf16Reader{r: io.MultiReader(bytes.NewReader(mark[2:]), r), order: binary.LittleEndian}
	case mark[0] == 0xFE && mark[1] == 0xFF:
		return &utf16Reader{r: io.MultiReader(bytes.NewReader(mark[2:]), r), order: binary.BigEndian}
	}
	return rest
}

type utf16Reader struct {
	r     io.Reader
	order binary.ByteOrder
	high  rune   // a first half of a pair
	out   []byte // decoded and not read
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	for len(u.out) == 0 {
		var unit [2]byte
		if _, err := io.ReadFull(u.r, unit[:]); err != nil {
			return 0, err
		}
		r := rune(u.order.Uint16(unit[:]))
		switch {
		case u.high != 0:
			r, u.high = utf16.DecodeRune(u.high, r), 0
		case utf16.IsSurrogate(r):
			u.high = r
			continue
		}
		u.out = utf8.AppendRune(u.out[:0], r)
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}

// windows1252 are the characters 0x80 to 0x9F of that code page; the rest is Latin 1.
var windows1252 = []rune("€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008DŽ\u008F\u0090‘’“”•–—˜™š›œ\u009DžŸ")

// charsetReader reads what declares another encoding than UTF-8.
func charsetReader(label string, input io.Reader) (io.Reader, error) {
	switch strings.ToLower(label) {
	case "utf-16", "us-ascii", "ascii": // the first one is decoded already
		return input, nil
	case "iso-8859-1", "latin1", "iso-8859-15", "windows-1252", "cp1252":
		return &byteReader{r: input}, nil
	}
	return nil, errors.New("unknown encoding")
}

// byteReader makes UTF-8 of Windows-1252.
type byteReader struct {
	r   io.Reader
	out []byte
}

func (b *byteReader) Read(p []byte) (int, error) {
	for len(b.out) == 0 {
		var in [512]byte
		n, err := b.r.Read(in[:])
		if n == 0 {
			return 0, err
		}
		b.out = b.out[:0]
		for _, c := range in[:n] {
			r := rune(c)
			if c >= 0x80 && c <= 0x9F {
				r = windows1252[c-0x80]
			}
			b.out = utf8.AppendRune(b.out, r)
		}
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}
