package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// File is one thing to send.
type File struct {
	// Name is the file name, as a person knows it.
	Name        string
	MessageType string
	Data        []byte
}

// MaxFile is the size of the largest file, in bytes. Every file is stored in one NATS message, whose
// headers list the gateway's ID of each chunk (36 bytes).
const MaxFile = maxMessage - 1<<20

var errNoFiles = errors.New("no file to send")

// ReadFolder reads the files directly in dir, in the order of their names. Subfolders,
// files whose name begins with a dot, and what is no file (after following links) are
// skipped, and skipped has their names.
func ReadFolder(dir string) (files []File, skipped []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, nil, err
		}
		if !info.Mode().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			skipped = append(skipped, entry.Name())
			continue
		}
		if info.Size() > MaxFile {
			return nil, nil, fmt.Errorf("%s has %d bytes; the largest file that can be sent has %d", path, info.Size(), MaxFile)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, newFile(entry.Name(), data))
	}
	if len(files) == 0 {
		return nil, skipped, fmt.Errorf("%s: %w", dir, errNoFiles)
	}
	return files, skipped, nil
}
