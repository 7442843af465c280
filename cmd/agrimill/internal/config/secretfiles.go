package config

import (
	"crypto/sha256"
	"errors"
	"reflect"
	"strings"
)

// readFiles reads the files with secrets of a section, and checks that its other files are
// readable.
func (d *decoder) readFiles(v reflect.Value, known []field, path string) {
	for _, f := range known {
		at := join(path, f.name)
		name, base := d.secrets[join(path, f.base)], join(path, f.base)
		if f.base == "" {
			if f.tag.Get("file") != "true" || !strings.HasSuffix(f.name, "_file") {
				continue
			}
			name, base = v.FieldByIndex(f.index).String(), at
		}
		if name == "" {
			continue
		}
		place := d.values[at]
		data, err := readBounded(name, maxSecretSize)
		if err != nil {
			d.missing(place, at, base, fileError(err), "")
			continue
		}
		if f.base == "" {
			d.contents[at] = sha256.Sum256(data)
			continue // its user reports what is wrong with it
		}
		text, err := singleLine(data)
		_, both := d.keys[base]
		switch {
		case both:
			d.add(SeverityError, place, at, "cannot be combined with "+f.base, "remove one")
		case err != nil:
			d.add(SeverityError, place, at, "must be a file with a single line, the "+strings.ReplaceAll(f.base, "_", " "), "")
		default:
			v.FieldByIndex(f.index).SetString(text)
		}
	}
}

// ReadSecret reads a file with a single line, a secret. The error does not contain it.
func ReadSecret(name string) (string, error) {
	data, err := readBounded(name, maxSecretSize)
	if err != nil {
		return "", err
	}
	return singleLine(data)
}

func singleLine(data []byte) (string, error) {
	text := strings.TrimRight(strings.TrimPrefix(string(data), "\ufeff"), "\r\n") // some editors write a BOM
	if strings.TrimSpace(text) == "" || strings.ContainsAny(text, "\x00\r\n") {
		return "", errors.New("must be a file with a single line")
	}
	return text, nil
}
