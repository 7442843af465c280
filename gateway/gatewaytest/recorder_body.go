package gatewaytest

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// body writes a line with what came next of an answer.
func (x *exchange) body(data []byte) {
	switch {
	case len(data) == 0:
	case utf8.Valid(data):
		x.line(recordedLine{Text: string(data)})
	default:
		x.line(recordedLine{Bytes: data})
	}
}

// plainBody records an answer that is no event stream: text as a whole at its end, payloads as they come or
// by size and digest, of tokens only the code of an error.
type plainBody struct {
	io.ReadCloser
	x       *exchange
	digest  hash.Hash
	size    int64
	keep    bool // the text
	payload bool // is recorded
	text    []byte
	over    bool
}

// Read passes the answer on.
func (b *plainBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.over {
		return n, err
	}
	_, _ = b.digest.Write(p[:n]) // never fails
	b.size += int64(n)
	switch {
	case b.payload && n > 0:
		b.x.line(recordedLine{Bytes: p[:n]})
	case b.keep || b.x.kind == bodyToken:
		b.text = append(b.text, p[:n]...)
		if len(b.text) > maxEventLine {
			b.keep, b.text = false, nil
		}
	}
	if err != nil {
		b.end(b.x.ended(err))
	}
	if failed := b.x.recorder.failed(); failed != nil {
		return 0, failed
	}
	return n, err
}

var oauthError = regexp.MustCompile(`^[a-z_]{1,64}$`)

func (b *plainBody) end(how string) {
	if b.over {
		return
	}
	b.over = true
	var refused struct {
		Error string `json:"error"`
	}
	switch {
	case b.size == 0, b.payload:
	case b.keep:
		b.x.body(b.x.recorder.redact(b.text))
	case b.x.kind == bodyToken && json.Unmarshal(b.text, &refused) == nil && oauthError.MatchString(refused.Error):
		b.x.body(b.x.recorder.redact([]byte(`{"error":"` + refused.Error + `"}`)))
	default:
		b.x.line(recordedLine{Size: min(b.size, maxRecordedSize), SHA256: hex.EncodeToString(b.digest.Sum(nil))})
	}
	b.x.line(recordedLine{End: how})
}

// Close ends the answer.
func (b *plainBody) Close() error {
	b.end(endClient)
	return b.ReadCloser.Close()
}

// eventBody records an event stream, and passes on whole lines, with the recorder's own payload URIs.
type eventBody struct {
	io.Closer
	x      *exchange
	lines  *bufio.Scanner
	long   bool // the next line goes on with one that is longer than maxEventLine
	output []byte
	err    error
	over   bool
}

func newEventBody(source io.ReadCloser, x *exchange) *eventBody {
	b := &eventBody{Closer: source, x: x, lines: bufio.NewScanner(source)}
	b.lines.Buffer(nil, maxEventLine)
	b.lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n := bytes.LastIndexAny(data, "\r\n") + 1
		if n == 0 && (atEOF || len(data) == maxEventLine) {
			n = len(data)
		}
		if n == 0 {
			return 0, nil, nil
		}
		return n, data[:n], nil
	})
	return b
}

// Read passes the stream on.
func (b *eventBody) Read(p []byte) (int, error) {
	for len(b.output) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		if b.lines.Scan() {
			b.take(b.lines.Bytes())
		} else {
			b.err = cmp.Or(b.lines.Err(), io.EOF)
			b.end(b.x.ended(b.err))
		}
		if failed := b.x.recorder.failed(); failed != nil {
			b.output, b.err = nil, failed
		}
	}
	n := copy(p, b.output)
	b.output = b.output[n:]
	return n, nil
}

// take records lines, of which the last one may have no end.
func (b *eventBody) take(lines []byte) {
	var recorded []byte
	b.output = nil
	for len(lines) > 0 {
		end := bytes.IndexAny(lines, "\r\n")
		n := end + 1
		if end < 0 {
			n = len(lines)
		}
		forward, record := b.one(lines[:n])
		b.output, recorded = append(b.output, forward...), append(recorded, record...)
		b.long = end < 0
		lines = lines[n:]
	}
	b.x.body(recorded)
}

// one returns what to pass on of a line, and to record. What cannot be read might be a payload: it is left out.
func (b *eventBody) one(line []byte) (forward, recorded []byte) {
	content := bytes.TrimRight(line, "\r\n")
	rest := line[len(content):]
	data, isData := bytes.CutPrefix(content, []byte("data:"))
	switch {
	case b.long || len(line) == maxEventLine:
	case isData:
		forward, recorded = b.x.event(data)
		return slices.Concat([]byte("data:"), forward, rest), slices.Concat([]byte("data:"), recorded, rest)
	case len(content) == 0, slices.ContainsFunc([]string{":", "event:", "id:", "retry:"}, func(p string) bool { return bytes.HasPrefix(content, []byte(p)) }):
		return line, b.x.recorder.redact(line)
	}
	return line, slices.Concat(unreadable(content), rest)
}

func (b *eventBody) end(how string) {
	if !b.over {
		b.over = true
		b.x.line(recordedLine{End: how})
	}
}

// Close ends the stream.
func (b *eventBody) Close() error {
	b.end(endClient)
	return b.Closer.Close()
}

// unreadable stands for what might be a payload, and stays unreadable.
func unreadable(data []byte) []byte { return bytes.Repeat([]byte("*"), len(data)) }

// event returns what to pass on and to record of the data of an event. What is below a key that begins with payload may
// be one, and so may what cannot be read.
func (x *exchange) event(data []byte) (forward, recorded []byte) {
	e := &eventData{x: x, data: data, tokens: json.NewDecoder(bytes.NewReader(data))}
	e.tokens.UseNumber()
	err := errors.New("no object")
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		err = e.value(0)
	}
	end := int(e.tokens.InputOffset())
	if err == nil && len(bytes.TrimSpace(data[end:])) == 0 {
		end = len(data)
	}
	e.keep(end)
	e.replace(len(data), data[end:], unreadable(data[end:]))
	return e.forward, e.recorded
}

// eventData is the data of an event that is being read.
type eventData struct {
	x                 *exchange
	data              []byte
	done              int // how much of data is in forward and recorded
	tokens            *json.Decoder
	forward, recorded []byte
}

func (e *eventData) replace(until int, forward, recorded []byte) {
	e.forward, e.recorded, e.done = append(e.forward, forward...), append(e.recorded, recorded...), until
}

// keep passes on and records what is no payload.
func (e *eventData) keep(until int) {
	text := e.data[e.done:until]
	e.replace(until, text, e.x.recorder.redact(text))
}

// value reads a value that is no payload.
func (e *eventData) value(depth int) error {
	token, err := e.tokens.Token()
	if token != json.Delim('{') && token != json.Delim('[') {
		return err
	}
	if depth == maxEventDepth {
		return errors.New("too deep")
	}
	for err == nil && e.tokens.More() {
		var key json.Token = ""
		if token == json.Delim('{') {
			if key, err = e.tokens.Token(); err != nil {
				break
			}
		}
		if name := strings.ToLower(key.(string)); strings.HasPrefix(name, "payload") {
			err = e.payload(name)
		} else {
			err = e.value(depth + 1)
		}
	}
	if err == nil {
		_, err = e.tokens.Token()
	}
	return err
}

// payload reads a value that may be a payload.
func (e *eventData) payload(key string) error {
	var raw json.RawMessage
	if err := e.tokens.Decode(&raw); err != nil {
		return err
	}
	end := int(e.tokens.InputOffset())
	e.keep(end - len(raw))
	var text string
	isText := json.Unmarshal(raw, &text) == nil // as null is
	uri, err := url.Parse(text)
	switch {
	case isText && text == "":
		e.keep(end)
	case isText && key == "payload_uri" && err == nil:
		own := []byte(`"` + e.x.ownURI(uri) + `"`)
		e.replace(end, own, own)
	case isText && key == "payload" && e.x.recorder.cfg.Payloads:
		e.keep(end)
	case isText && key == "payload":
		e.replace(end, raw, otherPayload(raw, text))
	default: // another form, or another place, than the specification says
		e.replace(end, raw, unreadable(raw))
	}
	return nil
}

// otherPayload returns what is recorded of an embedded payload: another one of its size, which depends on it alone, so that
// copies stay copies, and others stay others.
func otherPayload(raw []byte, text string) []byte {
	other := unreadable(raw[1 : len(raw)-1])
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if payload, err := encoding.DecodeString(text); err == nil {
			_, _ = rand.NewChaCha8(sha256.Sum256(payload)).Read(payload) // never fails
			other = encoding.AppendEncode(nil, payload)
			break
		}
	}
	return slices.Concat([]byte(`"`), other, []byte(`"`))
}
