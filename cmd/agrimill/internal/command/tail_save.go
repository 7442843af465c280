package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// inbox is a directory for payloads. Nothing is written outside of it, whatever the names
// are.
type inbox struct {
	name string
	root *os.Root
}

func openInbox(name string) (*inbox, error) {
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &inbox{name, root}, nil
}

func (i *inbox) close() { _ = i.root.Close() } // nothing is written by then

// save writes the payload of an event and returns the file name and the size. A payload
// that was saved earlier is left as it is. A file is either complete or absent.
func (i *inbox) save(ctx context.Context, client *gateway.Client, line *eventLine) (string, int64, error) {
	name := savedName(line)
	path := filepath.Join(i.name, name)
	switch info, err := i.root.Lstat(name); {
	case err == nil:
		return path, info.Size(), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", 0, err
	}
	source, err := line.payload.open(ctx, client)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = source.Close() }() // it was read to its end, or failed
	part := ".part-" + uuid.NewString()
	file, err := i.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	size, err := io.Copy(file, source)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = i.root.Rename(part, name)
	}
	if err != nil {
		return "", 0, errors.Join(err, i.root.Remove(part))
	}
	return path, size, nil
}

func (p *eventPayload) open(ctx context.Context, client *gateway.Client) (io.ReadCloser, error) {
	if p.data != nil {
		return io.NopCloser(bytes.NewReader(p.data)), nil
	}
	return client.OpenPayload(ctx, p.uri, p.size)
}

const maxSavedName = 150 // bytes of a file name

func savedName(line *eventLine) string {
	id := uuid.NewString()
	if ids := line.ids(); len(ids) > 0 {
		id = strings.ToLower(ids[0]) // already checked to be a UUID
	}
	if line.Event == gateway.EventFileReceived {
		id = "file-" + id
	}
	name := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, filepath.Base(filepath.ToSlash(line.Filename)))
	if line.Filename == "" {
		name = "payload"
	}
	for len(name) > maxSavedName {
		_, size := utf8.DecodeRuneInString(name)
		name = name[size:] // keep the extension
	}
	return id + "-" + name
}
