package isoxml

import (
	"bufio"
	"errors"
	"io"

	"github.com/agrimill/agrimill/farmdata"
)

// stream is a file that is read.
type stream struct {
	r      io.ReadCloser
	in     *bufio.Reader
	file   string
	next   []byte // what is read and not consumed, of what in has
	offset int64  // of next in the file
	err    error  // why there is no more than next: io.EOF, errLimit or what r says
}

// bufferSize is what a stream holds of its file.
const bufferSize = 64 << 10

// openStream opens a file; nil and a finding if that fails.
func openStream(f file, limit int64) (*stream, *farmdata.Finding) {
	r, err := f.open()
	if err != nil {
		return nil, &farmdata.Finding{Kind: farmdata.KindUnreadable, File: f.path, Offset: -1, Record: -1, Err: err}
	}
	return &stream{r: r, file: f.path, in: bufio.NewReaderSize(&countedReader{r: r, left: &limit, piece: limit}, bufferSize)}, nil
}

func (s *stream) close() { _ = s.r.Close() }

// fill reads until there are n bytes to look at, or no more.
func (s *stream) fill(n int) {
	if len(s.next) < n && s.err == nil {
		_, _ = s.in.Discard(s.in.Buffered() - len(s.next))
		_, s.err = s.in.Peek(n)
		s.next, _ = s.in.Peek(s.in.Buffered())
	}
}

// skip goes behind bytes of next.
func (s *stream) skip(n int) { s.next, s.offset = s.next[n:], s.offset+int64(n) }

// ended says what is to be told when everything before record was consumed and
// the rest is not enough for another one; nil at a proper end.
func (s *stream) ended(record int64) *farmdata.Finding {
	finding := &farmdata.Finding{File: s.file, Offset: s.offset, Record: record}
	switch {
	case errors.Is(s.err, errLimit):
		finding.Kind, finding.Detail = farmdata.KindLimit, "longer than allowed"
	case s.err != nil && !errors.Is(s.err, io.EOF):
		finding.Kind, finding.Err = farmdata.KindUnreadable, s.err
	case len(s.next) == 0 && record == 0:
		finding.Kind, finding.Detail = farmdata.KindEmpty, "nothing in the file"
	case len(s.next) == 0:
		return nil
	default:
		finding.Kind, finding.Detail = farmdata.KindCut, "the file ends inside of it"
	}
	return finding
}
