package efdi

import (
	"bufio"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agrimill/agrimill/farmdata"
)

// section is a part of the source.
type section struct {
	r            io.ReaderAt
	offset, size int64
}

// field is a field of a message.
type field struct {
	number protowire.Number
	wire   protowire.Type
	start  int64 // of its tag, in the source
	body   int64 // of what is behind the tag and the length, in the source
	length int64 // of that
}

func (f field) end() int64 { return f.body + f.length }

// walker goes through the fields of a message without holding more than a buffer
// of it.
type walker struct {
	in  *bufio.Reader
	at  int64 // the next byte, in the source
	end int64
}

func walk(s section) *walker {
	const buffer = 64 << 10
	return &walker{in: bufio.NewReaderSize(io.NewSectionReader(s.r, s.offset, s.size), int(min(s.size, buffer))), at: s.offset, end: s.offset + s.size}
}

// next returns the next field, positioned at its body; io.EOF at the end of the
// message. Other errors are findings without a file.
func (w *walker) next() (field, error) {
	f := field{start: w.at}
	if w.at >= w.end {
		return f, io.EOF
	}
	tag, err := w.varint(f.start)
	if err != nil {
		return f, err
	}
	f.number, f.wire = protowire.DecodeTag(tag)
	if !f.number.IsValid() {
		return f, damaged(farmdata.KindSyntax, f.start, "no field has such a number", nil)
	}
	switch f.wire {
	case protowire.VarintType:
		f.body = w.at
		if _, err := w.varint(f.start); err != nil {
			return f, err
		}
		f.length = w.at - f.body
		return f, nil
	case protowire.Fixed32Type:
		f.body, f.length = w.at, 4
	case protowire.Fixed64Type:
		f.body, f.length = w.at, 8
	case protowire.BytesType:
		length, err := w.varint(f.start)
		if err != nil {
			return f, err
		}
		f.body, f.length = w.at, int64(min(length, 1<<62))
	default: // groups are older than EFDI
		return f, damaged(farmdata.KindSyntax, f.start, "unknown wire type", nil)
	}
	if f.length > w.end-f.body {
		return f, damaged(farmdata.KindCut, f.start, "the message ends inside of a field", nil)
	}
	if f.wire != protowire.BytesType {
		return f, w.skip(f)
	}
	return f, nil
}

func (w *walker) varint(start int64) (uint64, error) {
	const longest = 10
	b, err := w.in.Peek(int(min(longest, w.end-w.at)))
	n, size := protowire.ConsumeVarint(b)
	switch {
	case size >= 0:
		_, _ = w.in.Discard(size) // which is there
		w.at += int64(size)
		return n, nil
	case len(b) == longest:
		return 0, damaged(farmdata.KindSyntax, start, "number of more than 64 bits", nil)
	case err != nil:
		return 0, damaged(farmdata.KindUnreadable, w.at+int64(len(b)), "", unexpected(err))
	}
	return 0, damaged(farmdata.KindCut, start, "the message ends inside of a field", nil)
}

// skip goes behind the body of a field.
func (w *walker) skip(f field) error {
	for w.at < f.end() {
		n, err := w.in.Discard(int(min(f.end()-w.at, 1<<30)))
		w.at += int64(n)
		if err != nil {
			return damaged(farmdata.KindUnreadable, w.at, "", unexpected(err))
		}
	}
	return nil
}

// read appends the body of a field to b.
func (w *walker) read(f field, b []byte) ([]byte, error) {
	from := len(b)
	b = append(b, make([]byte, f.length)...)
	n, err := io.ReadFull(w.in, b[from:])
	w.at += int64(n)
	if err != nil {
		return b[:from], damaged(farmdata.KindUnreadable, w.at, "", unexpected(err))
	}
	return b, nil
}

// unexpected: the source ends before the size that it was said to have.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func damaged(kind farmdata.Kind, offset int64, detail string, err error) *farmdata.Finding {
	return &farmdata.Finding{Kind: kind, Offset: offset, Record: -1, Detail: detail, Err: err}
}
