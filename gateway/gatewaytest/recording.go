package gatewaytest

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// This file contains the format of recordings, which the package comment documents.

const (
	recordingVersion = 2
	// maxRecording and maxRecordingLine bound what is read of a file, in bytes.
	maxRecording     = 256 << 20
	maxRecordingLine = 64 << 20
	// maxRecordedSize bounds what stands in for a payload, in bytes: nothing larger is sent.
	maxRecordedSize = 1 << 30
	// maxEventLine bounds, in bytes, what is looked at of one line of an event stream.
	maxEventLine = 16 << 20
	// maxEventDepth bounds how deep an event is read.
	maxEventDepth = 100
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
	// Text or Bytes are what came next of its body.
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
	// Size and SHA256 are those of a body that was left out.
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// End is in the last line of a request only.
	End string `json:"end,omitempty"`
}

func (l *recordedLine) hasBody() bool { return l.Text != "" || len(l.Bytes) > 0 || l.SHA256 != "" }

// The values of recordedLine.End.
const (
	endComplete = "complete" // the answer ended properly
	endCut      = "cut"      // the gateway ended it before, or gave none
	endClient   = "client"   // the program went away
)

// recordedHeaders are the headers of an answer that are kept. Others may have secrets.
var recordedHeaders = []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Retry-After"}

// payloadPath is where a recorder and a replay have the payloads of the URIs in events.
const payloadPath = "/payloads/"

var recordedURI = regexp.MustCompile(`https?://[^/"\\\s]+(/payloads/[A-Z2-7]{26})`)

// recordedRequest is one request with its answer.
type recordedRequest struct {
	key   string // method and path
	lines []recordedLine
}

// readRecording reads a file into the requests of each method and path, in their order.
func readRecording(path string) (map[string][]*recordedRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	requests, err := decodeRecording(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
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
	digest, err := hex.DecodeString(l.SHA256)
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
	case l.hasBody() && !answered:
		return fmt.Errorf("request %d has a body before its status", l.Request)
	case l.SHA256 != "" && (err != nil || len(digest) != 32) || l.Size < 0 || l.Size > maxRecordedSize:
		return fmt.Errorf("request %d has a bad size or sha256", l.Request)
	case !slices.Contains([]string{"", endComplete, endCut, endClient}, l.End) || l.End == endComplete && !answered:
		return fmt.Errorf("request %d has a bad end", l.Request)
	case !first && l.Status == 0 && !l.hasBody() && l.End == "":
		return fmt.Errorf("request %d has a line that says nothing", l.Request)
	}
	for name := range l.Header {
		if !slices.Contains(recordedHeaders, name) {
			return fmt.Errorf("header %q is none of a recording", name)
		}
	}
	return nil
}

// content returns what was recorded of the body. base is where the payloads are.
func (l *recordedLine) content(base string) []byte {
	if l.Text == "" {
		return l.Bytes
	}
	return recordedURI.ReplaceAll([]byte(l.Text), []byte(base+"$1"))
}

// standIn returns bytes that depend on the digest alone: copies stay copies, and others stay others.
func (l *recordedLine) standIn() io.Reader {
	var seed [32]byte
	_, _ = hex.Decode(seed[:], []byte(l.SHA256)) // checked
	return io.LimitReader(rand.NewChaCha8(seed), l.Size)
}
