// Package spool buffers payloads whose size must be known before they are used, or that are read more
// than once: in memory, and what is larger in a temporary file.
package spool

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agrimill/agrimill/gateway"
)

// DefaultMemory is how much of a payload is kept in memory unless [Limits] says otherwise, in bytes. The
// container image has no directory for what is larger.
const DefaultMemory = 16 << 20

// Limits says how much is buffered, and where.
type Limits struct {
	// Max is the largest payload that is taken, in bytes.
	Max int64
	// Memory is how much of it is kept in memory, in bytes. What is larger goes into a temporary file. 0 means
	// [DefaultMemory].
	Memory int64
	// Dir is where temporary files are created, empty for the system's directory.
	Dir string
}

// Payload is what can be read from the start any number of times.
type Payload struct {
	// Size is its size in bytes.
	Size int64
	// Open opens it. The caller closes what it returns.
	Open func() (io.ReadCloser, error)
	// Close frees it. It is called once.
	Close func() error
	// At reads what is buffered, for whoever needs more than a stream; nil for a file.
	At io.ReaderAt
	// Data are its bytes if they are in memory.
	Data []byte
}

// Reading calls read with what is to be read; once more to go on.
type Reading func(read func(io.Reader) error) error

// StreamOf returns the stream of a reader that need not be interrupted.
func StreamOf(r io.Reader) Reading { return func(read func(io.Reader) error) error { return read(r) } }

// InMemory returns a payload of bytes, which it keeps.
func InMemory(data []byte) *Payload {
	return &Payload{
		Size:  int64(len(data)),
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		Close: func() error { return nil },
		At:    bytes.NewReader(data),
		Data:  data,
	}
}

// Buffer buffers what is called name. The error of what exceeds the limit matches [gateway.ErrTooLarge]. The caller
// closes the payload.
func Buffer(from Reading, name string, limits Limits) (*Payload, error) {
	limits.Memory = cmp.Or(limits.Memory, DefaultMemory)
	var head bytes.Buffer
	if err := from(func(r io.Reader) error {
		_, err := io.CopyN(&head, r, limits.Memory+1)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	switch size := int64(head.Len()); {
	case size > limits.Max:
		return nil, TooLarge(name, limits.Max)
	case size > limits.Memory:
		return inFile(from, &head, name, limits)
	default:
		return InMemory(head.Bytes()), nil
	}
}

// TooLarge returns the error of a payload called name that exceeds a limit.
func TooLarge(name string, limit int64) error {
	return fmt.Errorf("%s: %w: more than %d bytes", name, gateway.ErrTooLarge, limit)
}

// inFile buffers a stream, of which head was already read, in a temporary file.
func inFile(from Reading, head io.Reader, name string, limits Limits) (_ *Payload, err error) {
	file, err := os.CreateTemp(limits.Dir, "agrimill-spool-*")
	if err != nil {
		return nil, fmt.Errorf("%s exceeds the %d MiB that fit in memory, and no temporary file can be created: %w; "+
			"set a directory with --spool-dir or TMPDIR", name, limits.Memory>>20, err)
	}
	// Where an open file can be removed, nothing is left behind even if the process is
	// killed; elsewhere discard removes it.
	removed := os.Remove(file.Name()) == nil
	discard := func() error {
		err := file.Close()
		if !removed {
			err = errors.Join(err, os.Remove(file.Name()))
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, discard())
		}
	}()
	var size int64
	if err := from(func(r io.Reader) error {
		n, err := io.Copy(file, io.LimitReader(io.MultiReader(head, r), limits.Max+1))
		size = n
		return err
	}); err != nil {
		return nil, err
	}
	if size > limits.Max {
		return nil, TooLarge(name, limits.Max)
	}
	return &Payload{
		Size:  size,
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(file, 0, size)), nil },
		Close: discard,
		At:    file,
	}, nil
}
