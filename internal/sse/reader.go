// Package sse reads a stream of Server-Sent Events according to the WHATWG HTML Living Standard, section 9.2.6
// ("Interpreting an event stream").
//
// It is pull-based and independent of HTTP. Event IDs are ignored, because the service does not resume a stream after one.
// Memory is bounded: a larger event is skipped and reported, and the stream continues.
package sse

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"
)

const (
	// baseSize is the buffer size of a Reader while events are small.
	baseSize = 64 << 10
	// keepSize is the largest buffer that is kept after the event that needed it: growing again for every event of 1 MiB
	// would cost more than it saves.
	keepSize = 2 << 20
	// minRead is the least free space worth a call of Read.
	minRead = 4 << 10
	// headSize bounds TooLargeError.Head.
	headSize = 1 << 10
	// maxEmptyReads is how often the source may return neither data nor an error.
	maxEmptyReads = 100
	// nameLen is the length of the longest field name with its colon, by which a longer line is known.
	nameLen = len("event:")
)

// Event is one dispatched event. Name and Data point into the buffer of the
// Reader and are valid until the next call of Next.
type Event struct {
	// Name is the value of the last `event:` line; empty if there was none.
	Name []byte
	// Data contains the values of the `data:` lines, joined by LF, and is never nil.
	Data []byte
}

// TooLargeError reports that an event was skipped because it exceeds the limit, as soon as that is known. The stream
// continues with the next call of Next.
type TooLargeError struct {
	// Limit is the limit in bytes.
	Limit int
	// Name is the event name as far as it was read, at most 1 KiB of it.
	Name string
	// Head is a copy of the first bytes of the data, at most 1 KiB, to identify
	// the skipped event. It may contain payload data: keep it out of logs.
	Head []byte
}

// Error reports the limit, and nothing from the stream.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("sse: event skipped: larger than %d bytes", e.Limit)
}

// Reader reads events from a stream. It is not safe for concurrent use.
//
// Lines are found by searching for LF and CR separately, each search continuing where it last ended, so that no byte is
// searched twice. Data is joined in place.
type Reader struct {
	src    io.Reader
	srcErr error // kept until the bytes read along with it are consumed

	limit int // of an event, in bytes
	buf   []byte
	pos   int // start of the current line
	end   int // end of the data read
	lf    int // first LF at or after pos; end if none was found so far
	cr    int // first CR at or after pos; end if none was found so far

	started bool // the byte order mark has been handled
	afterCR bool // an LF at pos belongs to the CR before it
	skip    bool // the rest of the current event is discarded

	// The event so far. The data lies before pos.
	name    []byte
	data    span
	hasData bool

	retry    time.Duration
	hasRetry bool
}

// span is a part of the buffer.
type span struct{ from, to int }

func (s span) len() int { return s.to - s.from }

// NewReader returns a Reader of r. maxEventSize is the maximum size, in bytes, of the name and the data of one event together;
// less than 1 means 16 MiB. The buffer never exceeds it by more than 64 KiB.
func NewReader(r io.Reader, maxEventSize int) *Reader {
	if maxEventSize < 1 {
		maxEventSize = 16 << 20
	}
	maxEventSize = min(maxEventSize, math.MaxInt-baseSize)
	return &Reader{src: r, limit: maxEventSize, buf: make([]byte, baseSize)}
}

// Retry returns the latest reconnection time requested by the stream, uncapped, and whether there was one.
func (r *Reader) Retry() (time.Duration, bool) { return r.retry, r.hasRetry }

// Next returns the next event. It blocks as long as the source blocks.
//
// The error is io.EOF at the end of the stream (an unfinished event is dropped, as the standard requires), a *TooLargeError
// if an event was skipped (the only one after which Next may be called again), io.ErrNoProgress if the source keeps returning
// nothing, and otherwise the error of the source.
func (r *Reader) Next() (Event, error) {
	r.forget()
	r.shrink()
	for {
		line, ok := r.line()
		if !ok {
			if err := r.partial(); err != nil {
				return Event{}, err
			}
			if err := r.fill(); err != nil {
				return Event{}, err
			}
			continue
		}
		if r.skip {
			r.skip = line.len() != 0
			continue
		}
		if line.len() == 0 {
			if !r.hasData {
				r.forget()
				continue
			}
			return Event{Name: r.name, Data: r.buf[r.data.from:r.data.to:r.data.to]}, nil
		}
		if err := r.field(line); err != nil {
			return Event{}, err
		}
	}
}

// forget drops the event so far.
func (r *Reader) forget() {
	r.name, r.data, r.hasData = r.name[:0], span{}, false
}

// line removes the next complete line from the buffer.
func (r *Reader) line() (span, bool) {
	if !r.started && !r.start() {
		return span{}, false
	}
	if r.afterCR && r.pos < r.end {
		r.afterCR = false
		if r.buf[r.pos] == '\n' {
			r.pos++
		}
	}
	// lf and cr can only be before pos because of what was just consumed.
	if r.lf < r.pos {
		r.lf = r.pos + index(r.buf[r.pos:r.end], '\n')
	}
	if r.cr < r.pos {
		r.cr = r.pos + index(r.buf[r.pos:r.end], '\r')
	}
	eol := min(r.lf, r.cr)
	if eol >= r.end {
		return span{}, false
	}
	s := span{r.pos, eol}
	// The LF of a CRLF may not have been read yet.
	r.afterCR = r.buf[eol] == '\r'
	r.pos = eol + 1
	return s, true
}

// index is bytes.IndexByte, with len(b) for "not found".
func index(b []byte, c byte) int {
	if i := bytes.IndexByte(b, c); i >= 0 {
		return i
	}
	return len(b)
}

// start drops one byte order mark. It reports whether enough was read to decide.
func (r *Reader) start() bool {
	const bom = "\xEF\xBB\xBF"
	b := r.buf[r.pos:r.end]
	if len(b) < len(bom) && string(b) == bom[:len(b)] {
		return false
	}
	if len(b) >= len(bom) && string(b[:len(bom)]) == bom {
		r.pos += len(bom)
	}
	r.started = true
	r.lf, r.cr = r.pos-1, r.pos-1
	return true
}

type field int

const (
	fieldNone field = iota
	fieldData
	fieldEvent
	fieldRetry
)

// parse splits a line into field and value. An incomplete one has a field once the colon has been read.
func (r *Reader) parse(line span) (field, span) {
	b := r.buf[line.from:line.to]
	var f field
	var n int
	switch {
	case len(b) >= 5 && string(b[:5]) == "data:":
		f, n = fieldData, 5
	case len(b) >= 6 && string(b[:6]) == "event:":
		f, n = fieldEvent, 6
	case len(b) >= 6 && string(b[:6]) == "retry:":
		f, n = fieldRetry, 6
	default:
		return fieldNone, span{line.to, line.to}
	}
	if n < len(b) && b[n] == ' ' {
		n++
	}
	return f, span{line.from + n, line.to}
}

// field adds a complete, non-empty line to the event.
func (r *Reader) field(line span) error {
	f, v := r.parse(line)
	if f == fieldNone {
		// A line without a colon is a field name with an empty value.
		switch string(r.buf[line.from:line.to]) {
		case "data":
			f = fieldData
		case "event":
			f = fieldEvent
		}
	}
	if f != fieldNone && r.over(f, v) {
		// The line is complete here: the rest of the event is skipped.
		return r.tooLarge(f, v)
	}
	value := r.buf[v.from:v.to]
	switch {
	case f == fieldData && !r.hasData:
		r.hasData, r.data = true, v
	case f == fieldData:
		// In place: the name of this field has left enough room.
		r.buf[r.data.to] = '\n'
		r.data.to += 1 + copy(r.buf[r.data.to+1:], value)
	case f == fieldEvent:
		r.name = append(r.name[:0], value...)
	case f == fieldRetry:
		r.setRetry(value)
	}
	return nil
}

func (r *Reader) setRetry(value []byte) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	ms := int64(0)
	for _, c := range value {
		if c < '0' || c > '9' {
			return
		}
		ms = min(ms*10+int64(c-'0'), most)
	}
	if len(value) > 0 {
		r.retry, r.hasRetry = time.Duration(ms)*time.Millisecond, true
	}
}

// over reports whether one more value makes the event too large. It holds for a part of a line only if it holds for the line.
func (r *Reader) over(f field, v span) bool {
	n := len(r.name) + r.data.len() + v.len()
	if f == fieldData && r.hasData {
		n++ // the LF between two lines of data
	}
	return n > r.limit
}

func (r *Reader) tooLarge(f field, v span) error {
	r.skip = true
	head := append([]byte(nil), r.buf[r.data.from:min(r.data.to, r.data.from+headSize)]...)
	if f == fieldData {
		if r.hasData && len(head) < headSize {
			head = append(head, '\n')
		}
		head = append(head, r.buf[v.from:min(v.to, v.from+headSize-len(head))]...)
	}
	err := &TooLargeError{
		Limit: r.limit,
		Name:  string(r.name[:min(len(r.name), headSize)]),
		Head:  head,
	}
	r.forget()
	return err
}

// partial handles the unfinished line, so that memory stays bounded.
func (r *Reader) partial() error {
	if !r.started {
		return nil
	}
	line := span{r.pos, r.end}
	if r.skip {
		// It only matters that the line is not empty.
		r.cut(1)
		return nil
	}
	f, v := r.parse(line)
	switch {
	case f == fieldNone:
		// A comment or an ignored field, or too short to decide.
		r.cut(nameLen)
	case r.over(f, v):
		err := r.tooLarge(f, v)
		r.cut(1)
		return err
	}
	return nil
}

// cut drops all but the first n bytes of the unfinished line.
func (r *Reader) cut(n int) {
	if r.end-r.pos > n {
		r.end = r.pos + n
		r.lf, r.cr = r.end, r.end
	}
}

// fill reads once, after making room.
func (r *Reader) fill() error {
	if r.srcErr != nil {
		return r.srcErr
	}
	r.room()
	for range maxEmptyReads {
		n, err := r.src.Read(r.buf[r.end:])
		if n < 0 || n > len(r.buf)-r.end {
			n, err = 0, fmt.Errorf("sse: source returned a count of %d bytes", n)
		}
		if n > 0 {
			// lf and cr are at end: no match so far.
			r.lf += index(r.buf[r.end:r.end+n], '\n')
			r.cr += index(r.buf[r.end:r.end+n], '\r')
			r.end += n
			r.srcErr = err
			return nil
		}
		if err != nil {
			r.srcErr = err
			return err
		}
	}
	r.srcErr = io.ErrNoProgress
	return r.srcErr
}

// room frees at least minRead bytes, by moving or by growing.
func (r *Reader) room() {
	live := r.data.len() + r.end - r.pos
	if live > 0 && len(r.buf)-r.end >= minRead {
		return
	}
	most := r.limit + baseSize
	dst := r.buf
	if live > len(dst)/2 && len(dst) < most {
		dst = make([]byte, min(2*len(dst), most))
	}
	r.move(dst)
}

// move copies the data and the current line to the front of dst, which may be
// the buffer itself. What lies between them (line ends, ignored fields) is dropped.
func (r *Reader) move(dst []byte) {
	n := copy(dst, r.buf[r.data.from:r.data.to])
	r.data = span{0, n}
	k := copy(dst[n:], r.buf[r.pos:r.end])
	r.lf += n - r.pos
	r.cr += n - r.pos
	r.pos, r.end = n, n+k
	r.buf = dst
}

// shrink releases the memory of a very large event.
func (r *Reader) shrink() {
	if len(r.buf) > keepSize && r.end-r.pos <= baseSize-minRead {
		r.move(make([]byte, baseSize))
	}
	if cap(r.name) > baseSize {
		r.name = nil
	}
}
