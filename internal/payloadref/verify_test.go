package payloadref

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestVerify(t *testing.T) {
	errChanged := errors.New("changed")
	const text = "some payload"
	digest := sha256.Sum256([]byte(text))
	for name, read := range map[string]func(io.Reader) io.Reader{
		"plain":         func(r io.Reader) io.Reader { return r },
		"bytewise":      iotest.OneByteReader,
		"EOF with data": iotest.DataErrReader,
	} {
		for content, want := range map[string]error{text: nil, "": errChanged, text[1:]: errChanged, text + "!": errChanged} {
			r := Verify(io.NopCloser(read(strings.NewReader(content))), digest, errChanged)
			got, err := io.ReadAll(r)
			if !errors.Is(err, want) || string(got) != content {
				t.Errorf("%s, %q: got %q, error %v, want %v", name, content, got, err, want)
			}
		}
	}
	errRead := fmt.Errorf("broken: %w", io.EOF) // which is not the end
	if _, err := io.ReadAll(Verify(io.NopCloser(iotest.ErrReader(errRead)), digest, errChanged)); !errors.Is(err, errRead) || errors.Is(err, errChanged) {
		t.Errorf("error of the reader became %v", err)
	}
}

func TestParseDigest(t *testing.T) {
	good := strings.Repeat("0f", sha256.Size)
	if d, ok := ParseDigest(good); !ok || d[0] != 0x0f || d[sha256.Size-1] != 0x0f {
		t.Errorf("%s: %x, %v", good, d, ok)
	}
	for _, bad := range []string{"", good[2:], good + "00", strings.Repeat("0g", sha256.Size)} {
		if _, ok := ParseDigest(bad); ok {
			t.Errorf("%q passes", bad)
		}
	}
}
