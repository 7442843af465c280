package isoxml

import (
	"errors"
	"io"

	"github.com/agrimill/agrimill/farmdata"
)

// stream is the part of a file that is being looked at.
type stream struct {
	r          io.ReadCloser
	file       string
	buf        []byte
	start, end int   // of what is read and not consumed, in buf
	base       int64 // offset of buf[0] in the file
	left       int64 // what may still be read
	err        error // why there is no more: io.EOF, errLimit or what r says
}

// bufferSize is what a stream holds of its file.
const bufferSize = 64 << 10

// openStream opens a file; nil and a finding if that fails.
func openStream(f file, limit int64) (*stream, *farmdata.Finding) {
	r, err := f.open()
	if err != nil {
		return nil, &farmdata.Finding{Kind: farmdata.KindUnreadable, File: f.path, Offset: -1, Record: -1, Err: err}
	}
	return &stream{r: r, file: f.path, buf: make([]byte, bufferSize), left: limit}, nil
}

func (s *stream) close() { _ = s.r.Close() }

// fill reads until there are n bytes to look at, or no more.
func (s *stream) fill(n int) {
	if s.end-s.start >= n || s.err != nil {
		return
	}
	copy(s.buf, s.buf[s.start:s.end])
	s.base += int64(s.start)
	s.start, s.end = 0, s.end-s.start
	for empty := 0; s.end < n && s.err == nil; {
		room := s.buf[s.end:]
		if s.left == 0 {
			room = room[:1] // the limit is exceeded only if there is more
		} else if int64(len(room)) > s.left {
			room = room[:s.left]
		}
		read, err := s.r.Read(room)
		switch {
		case read > 0 && s.left == 0:
			s.err = errLimit
			return
		case err != nil:
			s.err = err
		case read > 0:
			empty = 0
		default:
			if empty++; empty == 100 {
				s.err = io.ErrNoProgress
			}
		}
		s.end += read
		s.left -= int64(read)
	}
}

// offset is that of the next byte.
func (s *stream) offset() int64 { return s.base + int64(s.start) }

// ended says what is to be told when everything before record was consumed and
// the rest is not enough for another one; nil at a proper end.
func (s *stream) ended(record int64) *farmdata.Finding {
	finding := &farmdata.Finding{File: s.file, Offset: s.offset(), Record: record}
	switch {
	case errors.Is(s.err, errLimit):
		finding.Kind, finding.Detail = farmdata.KindLimit, "longer than allowed"
	case s.err != nil && !errors.Is(s.err, io.EOF):
		finding.Kind, finding.Err = farmdata.KindUnreadable, s.err
	case s.start == s.end && record == 0:
		finding.Kind, finding.Detail = farmdata.KindEmpty, "nothing in the file"
	case s.start == s.end:
		return nil
	default:
		finding.Kind, finding.Detail = farmdata.KindCut, "the file ends inside of it"
	}
	return finding
}
