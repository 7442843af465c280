package payloadref

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
)

// ParseDigest parses a hexadecimal SHA-256.
func ParseDigest(text string) (digest [sha256.Size]byte, ok bool) {
	if len(text) != hex.EncodedLen(sha256.Size) {
		return digest, false
	}
	_, err := hex.Decode(digest[:], []byte(text))
	return digest, err == nil
}

// Verify returns a reader that yields the bytes of payload, and err instead of
// io.EOF if their SHA-256 is not digest.
func Verify(payload io.ReadCloser, digest [sha256.Size]byte, err error) io.ReadCloser {
	return &verifier{ReadCloser: payload, hash: sha256.New(), want: digest, err: err}
}

type verifier struct {
	io.ReadCloser
	hash hash.Hash
	want [sha256.Size]byte
	err  error
}

func (v *verifier) Read(b []byte) (int, error) {
	n, err := v.ReadCloser.Read(b)
	_, _ = v.hash.Write(b[:n]) // never fails
	if err == io.EOF && [sha256.Size]byte(v.hash.Sum(nil)) != v.want {
		return n, v.err
	}
	return n, err
}
