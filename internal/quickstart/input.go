package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/agrimill/agrimill/internal/farmfile"
)

// payload is one thing to send.
type payload struct {
	// name is the file name, as a person knows it.
	name        string
	messageType string
	data        []byte
}

// maxPayload is the largest file that can be sent. The quickstart stores every
// payload in one NATS message, whose headers list what the gateway made of it
// (an ID of 36 bytes for each chunk).
const maxPayload = maxMessage - 1<<20

var errNoFiles = errors.New("no file to send")

// readFolder reads the files directly in dir, in the order of their names. Subfolders,
// files whose name begins with a dot, and what is no file (after following links) are
// skipped, and skipped has their names.
func readFolder(dir string) (files []payload, skipped []string, err error) {
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
		if info.Size() > maxPayload {
			return nil, nil, fmt.Errorf("%s has %d bytes; the quickstart takes files up to %d", path, info.Size(), maxPayload)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, payload{name: entry.Name(), messageType: farmfile.MessageType(entry.Name()), data: data})
	}
	if len(files) == 0 {
		return nil, skipped, fmt.Errorf("%s: %w", dir, errNoFiles)
	}
	return files, skipped, nil
}
