package gatewaytest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// GET payload_uri: the payload host.
//
// Implements: a separate listener, and thus another host than the service; no
// authorization (the signature in the query grants access, until it
// expires: Config.PayloadExpiredStatus); Range and HEAD (Config.PayloadNoRange
// disables ranges); an exact Content-Length. The payload stays available until
// the last URI issued for it has expired, confirmed or not.
// Every delivery of an event issues a fresh URI.

// payload is one POST /messages. It is immutable except for the last two fields;
// the bytes are stored once, regardless of the number of receivers.
type payload struct {
	id               string
	tenantID         string
	senderID         string
	messageType      string
	contextID        string
	sentAt           string // as spelled by the sender
	received         time.Time
	filename         string
	teamsetContextID string
	// fileAlone means delivery as FILE_RECEIVED alone (Config.FileTypes, FileAlone).
	fileAlone bool

	chunks     [][]byte
	messageIDs []string
	digests    [][sha256.Size]byte
	size       int64
	digest     [sha256.Size]byte

	// uses counts the feed items that refer to it; guarded by Server.mu.
	uses int
	// expires is when the last URI issued for it expires, in Unix milliseconds.
	expires atomic.Int64
}

// wholePayload, as the part of a URI, means all chunks together.
const wholePayload = -1

func (p *payload) part(part int) [][]byte {
	if part == wholePayload {
		return p.chunks
	}
	return p.chunks[part : part+1]
}

// appendPayloadURI appends a URI whose lifetime starts now.
func (s *Server) appendPayloadURI(buf []byte, base string, p *payload, part int, now time.Time) []byte {
	expires := now.Add(s.cfg.PayloadLifetime).UnixMilli()
	for last := p.expires.Load(); last < expires && !p.expires.CompareAndSwap(last, expires); last = p.expires.Load() {
	}
	name := "file"
	if part != wholePayload {
		name = strconv.Itoa(part)
	}
	path := "/payloads/" + p.id + "/" + name
	until := strconv.FormatInt(expires, 10)
	buf = append(buf, base...)
	buf = append(buf, path...)
	buf = append(buf, "?expires="...)
	buf = append(buf, until...)
	buf = append(buf, "&signature="...)
	return append(buf, s.signature(path, until)...)
}

func (s *Server) signature(path, expires string) string {
	mac := hmac.New(sha256.New, s.secret)
	_, _ = io.WriteString(mac, path+"?"+expires)
	return SignaturePrefix + hex.EncodeToString(mac.Sum(nil))
}

// sweepLocked drops payloads that no feed needs and no valid URI refers to.
func (s *Server) sweepLocked(now time.Time) {
	for id, p := range s.payloads {
		if p.uses == 0 && (s.cfg.ReleaseConfirmed || now.UnixMilli() >= p.expires.Load()) {
			delete(s.payloads, id)
		}
	}
}

func (s *Server) servePayload(w http.ResponseWriter, r *http.Request) {
	s.serve(OpPayload, w, r, func(w http.ResponseWriter, r *http.Request) {
		if err := s.handlePayload(w, r); err != nil {
			s.writeError(w, r, err)
		}
	})
}

func (s *Server) handlePayload(w http.ResponseWriter, r *http.Request) error {
	unknown := statusError(http.StatusNotFound, "no such payload")
	query := r.URL.Query()
	expires := query.Get("expires")
	if !hmac.Equal([]byte(query.Get("signature")), []byte(s.signature(r.URL.Path, expires))) {
		return unknown
	}
	until, err := strconv.ParseInt(expires, 10, 64)
	if err != nil {
		return unknown
	}
	if s.clock.now().UnixMilli() >= until {
		return statusError(s.cfg.PayloadExpiredStatus, "the payload URI has expired")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return unknown
	}
	id, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/payloads/"), "/")
	s.mu.Lock()
	p := s.payloads[id]
	s.mu.Unlock()
	if p == nil {
		return unknown
	}
	part := wholePayload
	if name != "file" {
		if part, err = strconv.Atoi(name); err != nil || part < 0 || part >= len(p.chunks) {
			return unknown
		}
	}
	content := newChunkReader(p.part(part))
	w.Header().Set("Content-Type", "application/octet-stream")
	if s.cfg.PayloadNoRange {
		w.Header().Set("Accept-Ranges", "none")
		w.Header().Set("Content-Length", strconv.FormatInt(content.size, 10))
		if r.Method == http.MethodGet {
			_, _ = io.Copy(w, content)
		}
		return nil
	}
	w.Header().Set("ETag", `"`+p.id+"-"+name+`"`)
	http.ServeContent(w, r, "", time.Time{}, content)
	return nil
}

// chunkReader reads chunks as one payload, without joining them.
type chunkReader struct {
	chunks [][]byte
	size   int64
	offset int64
}

func newChunkReader(chunks [][]byte) *chunkReader {
	c := &chunkReader{chunks: chunks}
	for _, chunk := range chunks {
		c.size += int64(len(chunk))
	}
	return c
}

// rest returns the remainder of the chunk at the offset.
func (c *chunkReader) rest() []byte {
	at := c.offset
	for _, chunk := range c.chunks {
		if at < int64(len(chunk)) {
			return chunk[at:]
		}
		at -= int64(len(chunk))
	}
	return nil
}

func (c *chunkReader) Read(b []byte) (int, error) {
	n := copy(b, c.rest())
	c.offset += int64(n)
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Seek is required by http.ServeContent for ranges.
func (c *chunkReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.offset
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	c.offset = offset
	return offset, nil
}
