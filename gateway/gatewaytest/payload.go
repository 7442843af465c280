package gatewaytest

import (
	"bytes"
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
// expires: 403, as from object stores); Range and HEAD; an exact Content-Length.
// The payload stays available until
// the last URI issued for it has expired, confirmed or not.
// Every delivery of an event issues a fresh URI.

// payload is one POST /messages. It is immutable except for the last two fields;
// the bytes are stored once, regardless of the number of receivers.
type payload struct {
	outgoing
	id       string
	received time.Time
	// fileAlone means delivery as FILE_RECEIVED alone (Config.FileTypes, FileAlone).
	fileAlone bool

	chunkSize  int64
	digest     [sha256.Size]byte
	messageIDs []string            // of the chunks
	digests    [][sha256.Size]byte // of the chunks

	// uses counts the feed items that refer to it; guarded by Server.mu.
	uses int
	// expires is when the last URI issued for it expires, in Unix milliseconds.
	expires atomic.Int64
}

// wholePayload, as the part of a URI, means all chunks together.
const wholePayload = -1

func (p *payload) part(part int) []byte {
	if part == wholePayload {
		return p.data
	}
	from := int64(part) * p.chunkSize
	return p.data[from:min(from+p.chunkSize, int64(len(p.data)))]
}

// payloadURI returns a URI whose lifetime starts now.
func (s *Server) payloadURI(base string, p *payload, part int) string {
	expires := s.clock.now().Add(s.cfg.PayloadLifetime).UnixMilli()
	for last := p.expires.Load(); last < expires && !p.expires.CompareAndSwap(last, expires); last = p.expires.Load() {
	}
	name := "file"
	if part != wholePayload {
		name = strconv.Itoa(part)
	}
	path, until := payloadPath+p.id+"/"+name, strconv.FormatInt(expires, 10)
	return base + path + "?expires=" + until + "&signature=" + s.signature(path, until)
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
	handle := s.handlePayload
	if s.replay != nil {
		handle = s.playAgain
	}
	s.serve(OpPayload, w, r, func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
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
		return statusError(http.StatusForbidden, "the payload URI has expired")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return unknown
	}
	id, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, payloadPath), "/")
	s.mu.Lock()
	p := s.payloads[id]
	s.mu.Unlock()
	if p == nil {
		return unknown
	}
	part := wholePayload
	if name != "file" {
		if part, err = strconv.Atoi(name); err != nil || part < 0 || part >= len(p.messageIDs) {
			return unknown
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+p.id+"-"+name+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.part(part)))
	return nil
}
