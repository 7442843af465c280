package gatewaytest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// This file contains the format of recordings, which the package comment documents.

const (
	recordingVersion = 1
	// maxRecording and maxRecordingLine bound what is read of a file, in bytes.
	maxRecording     = 256 << 20
	maxRecordingLine = 64 << 20
	// maxRecordedSize bounds what stands in for a payload, in bytes: nothing larger is sent.
	maxRecordedSize = 1 << 30
	// maxEventLine bounds, in bytes, what is looked at of one line of an event stream.
	maxEventLine = 16 << 20
	// maxEventDepth and maxEventParts bound what is kept apart of one event: each takes a hundred times the memory of its text.
	maxEventDepth = 100
	maxEventParts = 1000
)

// recordingHead is the first line.
type recordingHead struct {
	Version  int       `json:"gateway_recording"`
	Started  time.Time `json:"started"`
	Payloads bool      `json:"payloads"`
}

// recordedLine is every other line: something that happened to one request.
type recordedLine struct {
	// At is in microseconds since the recording began.
	At int64 `json:"at"`
	// Request counts from 1.
	Request int `json:"request"`
	// Method and Path are in the first line of a request only.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Status and Header are the head of the answer.
	Status int               `json:"status,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	// Body is what came next of its body.
	Body recordedBody `json:"body,omitempty"`
	// End is in the last line of a request only.
	End string `json:"end,omitempty"`
}

type recordedBody []recordedPart

// UnmarshalJSON refuses a bad part before it reads the next one: parts that say nothing would take thirty times
// the memory of their text.
func (b *recordedBody) UnmarshalJSON(data []byte) error {
	parts := json.NewDecoder(bytes.NewReader(data))
	if token, err := parts.Token(); token != json.Delim('[') {
		return errors.Join(errors.New("body is no list"), err)
	}
	embedded := int64(0)
	for parts.More() {
		var part recordedPart
		if err := errors.Join(parts.Decode(&part), part.check()); err != nil {
			return err
		}
		if part.As != asRaw {
			embedded += part.Size
		}
		*b = append(*b, part)
	}
	if embedded > maxRecordingLine {
		return errors.New("more is left out of the line than fits into it")
	}
	return nil
}

// The values of recordedLine.End.
const (
	endComplete = "complete" // the answer ended properly
	endCut      = "cut"      // the gateway ended it before, or gave none
	endClient   = "client"   // the program went away
)

// recordedPart is one of: text, bytes that are no text, the number of a payload_uri, or the size and
// digest of what was left out.
type recordedPart struct {
	Text       string `json:"text,omitempty"`
	Bytes      []byte `json:"bytes,omitempty"`
	PayloadURI int    `json:"payload_uri,omitempty"`
	Size       int64  `json:"size,omitempty"`
	SHA256     string `json:"sha256,omitempty"`
	As         string `json:"as,omitempty"`
}

// The values of recordedPart.As, with those of encodings: how the left out was written, and its stand-in is.
const (
	asRaw        = "raw"
	asUnreadable = "unreadable" // played as asterisks, so it stays unreadable
)

var encodings = []struct {
	as string
	*base64.Encoding
}{
	{"base64", base64.StdEncoding}, {"base64 without padding", base64.RawStdEncoding},
	{"base64url", base64.URLEncoding}, {"base64url without padding", base64.RawURLEncoding},
}

func encodingOf(as string) *base64.Encoding {
	for _, e := range encodings {
		if e.as == as {
			return e.Encoding
		}
	}
	return nil
}

// recordedHeaders are the headers of an answer that are kept. Others may have secrets.
var recordedHeaders = []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Retry-After"}

// payloadPath is where a recorder and a replay have the payloads of the URIs in events.
const payloadPath = "/payloads/"

// recordedRequest is one request with its answer.
type recordedRequest struct {
	key   string // method and path
	lines []recordedLine
}

// readRecording reads a file into the requests of each method and path, in their order, and warns if it was cut off.
func readRecording(path string, log *slog.Logger) (map[string][]*recordedRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	requests, err := decodeRecording(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	last := make([]byte, 1)
	if _, err := file.Seek(-1, io.SeekEnd); err == nil {
		if _, err := file.Read(last); err == nil && last[0] != '\n' {
			log.Warn("the recording was cut off within its last line; what came then is missing", "file", path)
		}
	}
	return requests, nil
}

func decodeRecording(r io.Reader) (map[string][]*recordedRequest, error) {
	limited := &io.LimitedReader{R: r, N: maxRecording + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxRecordingLine)
	torn := false // the last line has no end
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		torn = atEOF && !bytes.ContainsRune(data, '\n')
		return bufio.ScanLines(data, atEOF)
	})
	number := 1
	bad := func(err error) error { return fmt.Errorf("line %d: %w", number, err) }
	if !lines.Scan() {
		return nil, bad(errors.Join(errors.New("no recording"), lines.Err()))
	}
	var head recordingHead
	if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
		return nil, bad(err)
	}
	if head.Version != recordingVersion {
		return nil, bad(fmt.Errorf("gateway_recording is %d, want %d", head.Version, recordingVersion))
	}
	byNumber := map[int]*recordedRequest{}
	byKey := map[string][]*recordedRequest{}
	for lines.Scan() {
		number++
		var line recordedLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			if syntax := (*json.SyntaxError)(nil); torn && errors.As(err, &syntax) { // the recorder was killed
				break
			}
			return nil, bad(err)
		}
		request := byNumber[line.Request]
		if err := line.check(request); err != nil {
			return nil, bad(err)
		}
		if request == nil {
			request = &recordedRequest{key: line.Method + " " + line.Path}
			byNumber[line.Request] = request
			byKey[request.key] = append(byKey[request.key], request)
		}
		request.lines = append(request.lines, line)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("larger than %d bytes", maxRecording)
	}
	if err := lines.Err(); err != nil {
		return nil, bad(err)
	}
	return byKey, nil
}

// check reports a line that no recorder writes after those before it of the same request.
func (l *recordedLine) check(before *recordedRequest) error {
	first := before == nil
	answered := false
	if !first {
		last := before.lines[len(before.lines)-1]
		answered = slices.ContainsFunc(before.lines[:min(2, len(before.lines))], func(b recordedLine) bool { return b.Status != 0 })
		if last.End != "" || l.At < last.At {
			return fmt.Errorf("request %d goes on after its end, or back in time", l.Request)
		}
	}
	switch {
	case l.Request < 1 || l.At < 0 || l.At > int64(366*24*time.Hour/time.Microsecond):
		return errors.New("request or at is out of range")
	case first != (l.Method != "") || first != strings.HasPrefix(l.Path, "/"):
		return fmt.Errorf("request %d does not begin with method and path, or has them twice", l.Request)
	case l.Status != 0 && (first || answered || l.Status < 200 || l.Status > 599):
		return fmt.Errorf("request %d has a bad status", l.Request)
	case len(l.Body) > 0 && !answered:
		return fmt.Errorf("request %d has a body before its status", l.Request)
	case !slices.Contains([]string{"", endComplete, endCut, endClient}, l.End) || l.End == endComplete && !answered:
		return fmt.Errorf("request %d has a bad end", l.Request)
	case !first && l.Status == 0 && len(l.Body) == 0 && l.End == "":
		return fmt.Errorf("request %d has a line that says nothing", l.Request)
	}
	for name := range l.Header {
		if !slices.Contains(recordedHeaders, name) {
			return fmt.Errorf("header %q is none of a recording", name)
		}
	}
	return nil
}

func (p *recordedPart) check() error {
	kinds := 0
	for _, given := range []bool{p.Text != "", len(p.Bytes) > 0, p.PayloadURI != 0, p.As != ""} {
		if given {
			kinds++
		}
	}
	digest, err := hex.DecodeString(p.SHA256)
	switch {
	case kinds != 1 || p.PayloadURI < 0:
		return errors.New("a part is not one of text, bytes, payload_uri, and size with sha256")
	case p.As == "" && (p.Size != 0 || p.SHA256 != ""):
		return errors.New("a size or digest without as")
	case p.As == "":
		return nil
	case err != nil || len(digest) != 32 || p.Size < 0 || p.Size > maxRecordedSize:
		return errors.New("a size or sha256 is out of range")
	case p.As != asRaw && p.As != asUnreadable && encodingOf(p.As) == nil:
		return fmt.Errorf("as is %q", p.As)
	}
	return nil
}

// write plays the part. base is where the payloads are.
func (p *recordedPart) write(w io.Writer, base string) error {
	switch {
	case p.Text != "":
		_, err := io.WriteString(w, p.Text)
		return err
	case len(p.Bytes) > 0:
		_, err := w.Write(p.Bytes)
		return err
	case p.PayloadURI != 0:
		_, err := fmt.Fprint(w, base, payloadPath, p.PayloadURI)
		return err
	}
	if p.As == asUnreadable {
		_, err := io.WriteString(w, strings.Repeat("*", int(p.Size))) // fits into a line
		return err
	}
	encoding := encodingOf(p.As)
	if encoding == nil {
		_, err := io.CopyN(w, p.standIn(), p.Size)
		return err
	}
	encoder := base64.NewEncoder(encoding, w)
	_, err := io.CopyN(encoder, p.standIn(), p.Size)
	return errors.Join(err, encoder.Close())
}

// standIn returns bytes that depend on the digest alone: copies stay copies, and others stay others.
func (p *recordedPart) standIn() io.Reader {
	var seed [32]byte
	_, _ = hex.Decode(seed[:], []byte(p.SHA256)) // checked
	return rand.NewChaCha8(seed)
}
