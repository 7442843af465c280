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
	asked  uint32   // letters of attributes, one bit each
	names  []string // of longer ones that were asked for
	report func(*farmdata.Finding)
}

// spot is where an element is: in which other one, and where in which file.
type spot struct {
	tag, in string // in is empty for the outermost one
	file    string
	offset  int64
}

// lookup returns an attribute, the first one of that name. One with a prefix is somebody else's.
func (e *element) lookup(name string) (value string, ok bool) {
	first := e.asked
	if len(name) == 1 {
		e.asked |= 1 << (name[0] - 'A')
	} else {
		e.names = append(e.names, name)
	}
	for _, attr := range e.attrs {
		switch {
		case attr.Name.Space != "" || attr.Name.Local != name:
		case !ok:
			value, ok = strings.TrimSpace(attr.Value), true
		case first != e.asked: // told once
			first = e.asked
			e.find(farmdata.KindDuplicate, "attribute "+name+" of "+e.tag+" is there twice; the first one counts")
		}
	}
	return value, ok
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

// walk calls begin and end for every element of a file. What begin returns stands
// for the element: its children get it as parent, end gets both, and where the element is. What is
// malformed is left out, and what is beyond a limit ends the file early; elements
// that are open then are ended. It returns false if there was no element at all.
func (o *opener) walk(f file, report func(*farmdata.Finding), begin func(parent any, e *element) any, end func(parent, object any, at spot)) bool {
	k := &walk{of: o, report: report, file: f.path, begin: begin, end: end, stack: []begun{{}}}
	content, err := f.open()
	if err != nil {
		k.find(farmdata.KindUnreadable, -1, "", err)
		return false
	}
	defer content.Close()
	source := &countedReader{r: obedient{o.ctx, content}, left: &o.budget.bytes, piece: maxPiece}
	all := func() bool { return o.isUTF8(f) }
	k.chars = newText(source, all, func(offset int64, detail string) { k.find(farmdata.KindText, offset, detail, nil) })
	decoder, base := newDecoderOf(k.chars), k.chars.offset

	defer func() { k.closeTo(1) }()
	for {
		source.piece = maxPiece
		k.chars.padding = k.any && len(k.stack) == 1
		offset := base + decoder.InputOffset()
		token, err := decoder.RawToken()
		if err != nil {
			if !k.skip(offset, err) {
				return k.any
			}
			decoder, base = newDecoderOf(k.chars), k.chars.offset
			continue
		}
		switch token := token.(type) {
		case xml.StartElement:
			if !k.start(offset, token) {
				return k.any
			}
		case xml.EndElement:
			k.finish(offset, token)
		}
	}
}

// walk is the way through one file.
type walk struct {
	of     *opener
	report func(*farmdata.Finding)
	file   string
	begin  func(parent any, e *element) any
	end    func(parent, object any, at spot)
	chars  *text
	stack  []begun // the elements that are open, below one that stands for the file
	any    bool    // an element has begun
}

func (k *walk) find(kind farmdata.Kind, offset int64, detail string, err error) {
	k.report(&farmdata.Finding{Kind: kind, File: k.file, Offset: offset, Record: -1, Detail: detail, Err: err})
}

// closeTo ends the innermost elements until depth are open.
func (k *walk) closeTo(depth int) {
	for ; len(k.stack) > depth; k.stack = k.stack[:len(k.stack)-1] {
		k.end(k.stack[len(k.stack)-2].object, k.stack[len(k.stack)-1].object, k.stack[len(k.stack)-1].spot)
	}
}

// skip says why there is no token, and goes behind XML that is malformed. It returns false at the end of what can be read.
func (k *walk) skip(offset int64, err error) bool {
	switch {
	case errors.Is(k.chars.err, errLimit):
		k.find(farmdata.KindLimit, offset, "more XML than the limit allows, or a megabyte without a break", nil)
	case k.chars.err != nil && !errors.Is(k.chars.err, io.EOF):
		k.find(farmdata.KindUnreadable, offset, "", k.chars.err)
	case k.chars.err != nil && (len(k.stack) > 1 || !errors.Is(err, io.EOF)):
		k.find(farmdata.KindCut, offset, "ends inside of an element", nil)
	case errors.Is(err, io.EOF):
	default:
		k.find(farmdata.KindSyntax, offset, "XML is malformed; this element is left out", nil)
		if !k.oneMore(offset) {
			return false
		}
		k.chars.resume()
		return true
	}
	return false
}

// oneMore counts an element, and returns false if there are more than allowed.
func (k *walk) oneMore(offset int64) bool {
	if k.of.budget.elements--; k.of.budget.elements < 0 {
		k.find(farmdata.KindLimit, offset, "more elements than the limit allows", nil)
		return false
	}
	return true
}

// start begins an element. It returns false if that is beyond a limit.
func (k *walk) start(offset int64, token xml.StartElement) bool {
	if !k.oneMore(offset) {
		return false
	}
	if len(k.stack) > k.of.cfg.MaxDepth {
		k.find(farmdata.KindLimit, offset, "elements nested deeper than the limit allows", nil)
		return false
	}
	k.any = true
	parent := k.stack[len(k.stack)-1]
	at := spot{token.Name.Local, parent.tag, k.file, offset}
	object := k.begin(parent.object, &element{spot: at, attrs: token.Attr, report: k.report})
	if k.of.budget.memory -= weight(token, object); k.of.budget.memory < 0 {
		k.find(farmdata.KindLimit, offset, "the data takes more memory than the limit allows", nil)
		return false
	}
	k.stack = append(k.stack, begun{at, object})
	return true
}

// finish ends the innermost element of a name, and those that are open in it.
func (k *walk) finish(offset int64, token xml.EndElement) {
	depth := len(k.stack) - 1
	for depth > 0 && k.stack[depth].tag != token.Name.Local {
		depth--
	}
	if depth == 0 {
		k.find(farmdata.KindSyntax, offset, "an end without a beginning", nil)
		return
	}
	if depth < len(k.stack)-1 {
		k.find(farmdata.KindSyntax, offset, "a beginning without an end", nil)
	}
	k.closeTo(depth)
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
func weight(token xml.StartElement, object any) (bytes int64) {
	for _, attr := range token.Attr {
		bytes += int64(len(attr.Value))
	}
	switch tag := token.Name.Local; {
	case object == nil:
	case tag == "TLG" || tag == "GRD":
		bytes += 1 << 10 // for what is read of the log or grid, and its summary
	default:
		bytes += int64(reflect.TypeOf(object).Elem().Size())
	}
	return bytes
}

// maxPiece is how many bytes one tag, text or comment may have: what is in memory at a
// time. The attributes of a tag take ten times the room that they have in the file.
const maxPiece = 1 << 20

// countedReader stops with errLimit when nothing is left.
type countedReader struct {
	r     io.Reader
	left  *int64
	piece int64 // what is left for what is read at present
}

func (c *countedReader) Read(p []byte) (int, error) {
	left := min(*c.left, c.piece)
	if left <= 0 {
		// The limit is exceeded only if there is more.
		n, err := c.r.Read(make([]byte, 1))
		if n > 0 {
			err = errLimit
		}
		return 0, err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), left)])
	*c.left -= int64(n)
	c.piece -= int64(n)
	return n, err
}
