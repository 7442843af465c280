package isoxml

import (
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// element is an element of XML with its attributes. The methods that read those
// report what cannot be read.
type element struct {
	spot
	attrs  []xml.Attr
	report func(*farmdata.Finding)
}

// spot is where an element is: in which other one, and where in which file.
type spot struct {
	tag, in string // in is empty for the outermost one
	file    string
	offset  int64
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
// for the element: its children get it as parent, end gets both, and where the element is. What is
// malformed is left out, and what is beyond a limit ends the file early; elements
// that are open then are ended. It returns false if there was no element at all.
func (w *walker) walk(f file, begin func(parent any, e *element) any, end func(parent, object any, at spot)) bool {
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
	all := func() bool { return w.of.isUTF8(f) }
	chars := newText(source, all, func(offset int64, detail string) { finding(farmdata.KindText, offset, detail, nil) })
	decoder, base := newDecoderOf(chars), chars.offset

	stack := []begun{{}}
	closeTo := func(depth int) {
		for ; len(stack) > depth; stack = stack[:len(stack)-1] {
			end(stack[len(stack)-2].object, stack[len(stack)-1].object, stack[len(stack)-1].spot)
		}
	}
	defer func() { closeTo(1) }()
	var any bool
	for {
		source.piece = maxPiece
		chars.padding = any && len(stack) == 1
		offset := base + decoder.InputOffset()
		token, err := decoder.RawToken()
		switch {
		case err == nil:
		case errors.Is(chars.err, errLimit):
			finding(farmdata.KindLimit, offset, "more XML than MaxXML allows, or a megabyte without a break", nil)
			return any
		case chars.err != nil && !errors.Is(chars.err, io.EOF):
			finding(farmdata.KindUnreadable, offset, "", chars.err)
			return any
		case chars.err != nil && (len(stack) > 1 || !errors.Is(err, io.EOF)):
			finding(farmdata.KindCut, offset, "ends inside of an element", nil)
			return any
		case errors.Is(err, io.EOF):
			return any
		default:
			finding(farmdata.KindSyntax, offset, "XML is malformed; this element is left out", nil)
			if w.of.budget.elements--; w.of.budget.elements < 0 {
				finding(farmdata.KindLimit, offset, "more elements than MaxElements allows", nil)
				return any
			}
			chars.resume()
			decoder, base = newDecoderOf(chars), chars.offset
			continue
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
			at := spot{token.Name.Local, stack[len(stack)-1].tag, f.path, offset}
			object := begin(stack[len(stack)-1].object, &element{at, token.Attr, w.report})
			if w.of.budget.memory -= weight(token.Attr, object); w.of.budget.memory < 0 {
				finding(farmdata.KindLimit, offset, "what is read takes more memory than MaxMemory allows", nil)
				return any
			}
			stack = append(stack, begun{at, object})
		case xml.EndElement:
			depth := len(stack) - 1
			for depth > 0 && stack[depth].tag != token.Name.Local {
				depth--
			}
			switch {
			case depth == 0:
				finding(farmdata.KindSyntax, offset, "an end without a beginning", nil)
				continue
			case depth < len(stack)-1:
				finding(farmdata.KindSyntax, offset, "a beginning without an end", nil)
			}
			closeTo(depth)
		}
	}
}

// isUTF8 reports whether all of a file is UTF-8, and not only ASCII, as far as it may be read.
func (o *opener) isUTF8(f file) bool {
	content, err := f.open()
	if err != nil {
		return false
	}
	defer content.Close()
	return isUTF8(io.LimitReader(obedient{o.ctx, content}, o.budget.bytes))
}

// begun is an element that has begun, and what it stands for.
type begun struct {
	spot
	object any
}

// newDecoderOf returns a decoder of what is left of a file.
func newDecoderOf(chars *text) *xml.Decoder {
	decoder := xml.NewDecoder(chars)
	decoder.Strict = false
	decoder.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	return decoder
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
