package gatewaytest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// text returns a part with what is no secret.
func (r *Recorder) text(text []byte) []recordedPart {
	text = r.redact(text)
	switch {
	case len(text) == 0:
		return nil
	case utf8.Valid(text):
		return []recordedPart{{Text: string(text)}}
	}
	return []recordedPart{{Bytes: slices.Clone(text)}}
}

// leftOut returns a part that stands for data.
func leftOut(data []byte, as string) recordedPart {
	digest := sha256.Sum256(data)
	return recordedPart{Size: int64(len(data)), SHA256: hex.EncodeToString(digest[:]), As: as}
}

// plainBody records an answer that is no event stream: text as a whole at its end, payloads as they come or
// by size and digest, of tokens only the code of an error.
type plainBody struct {
	source  io.ReadCloser
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
	n, err := b.source.Read(p)
	if b.over {
		return n, err
	}
	_, _ = b.digest.Write(p[:n]) // never fails
	b.size += int64(n)
	switch {
	case b.payload && n > 0:
		b.x.line(recordedLine{Body: []recordedPart{{Bytes: slices.Clone(p[:n])}}})
	case b.keep || b.x.kind == bodyToken:
		b.text = append(b.text, p[:n]...)
		if len(b.text) > maxEventLine {
			b.keep, b.text = false, nil
		}
	}
	if err == io.EOF {
		b.end(endComplete)
	} else if err != nil {
		b.end(b.x.ended())
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
	line := recordedLine{End: how}
	var refused struct {
		Error string `json:"error"`
	}
	switch {
	case b.size == 0, b.payload:
	case b.keep:
		line.Body = b.x.recorder.text(b.text)
	case b.x.kind == bodyToken && json.Unmarshal(b.text, &refused) == nil && oauthError.MatchString(refused.Error):
		line.Body = b.x.recorder.text([]byte(`{"error":"` + refused.Error + `"}`))
	default:
		as := asRaw
		if b.x.kind != bodyPayload {
			as = asUnreadable
		}
		line.Body = []recordedPart{{Size: min(b.size, maxRecordedSize), SHA256: hex.EncodeToString(b.digest.Sum(nil)), As: as}}
		if as == asUnreadable {
			line.Body[0].Size = min(line.Body[0].Size, maxEventLine)
		}
	}
	b.x.line(line)
}

// Close ends the answer.
func (b *plainBody) Close() error {
	b.end(endClient)
	return b.source.Close()
}

// eventBody records an event stream, and passes on whole lines, with the recorder's own payload URIs.
type eventBody struct {
	source io.ReadCloser
	x      *exchange
	input  []byte
	line   []byte // what came of the next line
	looked int    // how much of it has no end of a line
	long   bool   // the line is longer than maxEventLine
	output []byte
	err    error
	over   bool
}

// Read passes the stream on.
func (b *eventBody) Read(p []byte) (int, error) {
	for len(b.output) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		n, err := b.source.Read(b.input)
		b.line = append(b.line, b.input[:n]...)
		b.err = err
		b.take()
	}
	n := copy(p, b.output)
	b.output = b.output[n:]
	return n, nil
}

// take records the lines that are complete, or all that there is at the end of the stream.
func (b *eventBody) take() {
	var parts []recordedPart
	for {
		end := bytes.IndexAny(b.line[b.looked:], "\r\n")
		cut := b.looked + end + 1
		if end < 0 {
			b.looked = len(b.line)
			if len(b.line) == 0 || b.err == nil && len(b.line) <= maxEventLine {
				break
			}
			cut = len(b.line)
		}
		forward, recorded := b.one(b.line[:cut], end >= 0)
		b.output, parts = append(b.output, forward...), append(parts, recorded...)
		b.long = end < 0
		b.line, b.looked = b.line[cut:], 0
	}
	if len(parts) > 0 {
		b.x.line(recordedLine{Body: parts})
	}
	if failed := b.x.recorder.failed(); failed != nil {
		b.output, b.err = nil, failed
	}
	switch {
	case b.err == nil:
	case errors.Is(b.err, io.EOF):
		b.end(endComplete)
	default:
		b.end(b.x.ended())
	}
}

// one returns what to pass on of a line, and to record. What cannot be read might be a payload: it is left out.
func (b *eventBody) one(line []byte, whole bool) (forward []byte, parts []recordedPart) {
	text := b.x.recorder.text
	content := bytes.TrimRight(line, "\r\n")
	rest := text(line[len(content):])
	data, isData := bytes.CutPrefix(content, []byte("data:"))
	switch {
	case len(content) == 0:
		return line, rest
	case b.long || !whole && len(content) > maxEventLine:
	case isData:
		prefix := text(content[:len(content)-len(data)])
		forward, parts = b.x.event(data)
		forward = slices.Concat([]byte("data:"), forward, line[len(content):])
		return forward, slices.Concat(prefix, parts, rest)
	case slices.ContainsFunc([]string{":", "event:", "id:", "retry:"}, func(p string) bool { return bytes.HasPrefix(content, []byte(p)) }):
		return line, text(line)
	}
	return line, append([]recordedPart{leftOut(content, asUnreadable)}, rest...)
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
	return b.source.Close()
}

// event returns what to pass on and to record of the data of an event.
func (x *exchange) event(data []byte) (forward []byte, parts []recordedPart) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	done := 0 // how much of data is in forward and parts
	keep := func(until int) {
		forward, parts = append(forward, data[done:until]...), append(parts, x.recorder.text(data[done:until])...)
		done = until
	}
	unreadable := func() ([]byte, []recordedPart) {
		forward = append(forward, data[done:]...)
		return forward, append(parts, leftOut(data[done:], asUnreadable))
	}
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return unreadable()
	}
	for decoder.More() {
		keep(int(decoder.InputOffset()))
		key, err := decoder.Token()
		if err != nil {
			return unreadable()
		}
		keep(int(decoder.InputOffset()))
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return unreadable()
		}
		name, _ := key.(string)
		end := int(decoder.InputOffset())
		keep(end - len(value))
		replaced, recorded := x.value(strings.ToLower(name), value)
		forward, parts = append(forward, replaced...), append(parts, recorded...)
		done = end
	}
	if _, err := decoder.Token(); err != nil || len(bytes.TrimSpace(data[decoder.InputOffset():])) > 0 {
		return unreadable()
	}
	keep(len(data))
	return forward, parts
}

// value is event for the value of one key.
func (x *exchange) value(name string, value []byte) (forward []byte, parts []recordedPart) {
	quote := recordedPart{Text: `"`}
	var text string
	isText := value[0] == '"' && json.Unmarshal(value, &text) == nil
	// A payload of another form, or at another place, than the specification says.
	known := name == "payload" || name == "payload_uri"
	hidden := known && !isText && string(value) != "null" ||
		!known && strings.HasPrefix(name, "payload") || (value[0] == '{' || value[0] == '[') && hasPayload(value)
	switch {
	case name == "payload_uri" && isText && text != "":
		number, own := x.ownURI(text)
		return []byte(`"` + own + `"`), []recordedPart{quote, {PayloadURI: number}, quote}
	case name == "payload" && isText && text != "" && !x.recorder.cfg.Payloads:
		for _, as := range []string{asBase64, asUnpadded, asURL, asURLUnpadded} {
			if payload, err := encodingOf(as).DecodeString(text); err == nil {
				return value, []recordedPart{quote, leftOut(payload, as), quote}
			}
		}
		return value, []recordedPart{quote, leftOut(value[1:len(value)-1], asUnreadable), quote}
	case hidden:
		return value, []recordedPart{leftOut(value, asUnreadable)}
	}
	return value, x.recorder.text(value)
}

// hasPayload reports whether an object anywhere in a JSON value has a key that begins with payload.
func hasPayload(value []byte) bool {
	var decoded any
	if json.Unmarshal(value, &decoded) != nil {
		return true // it may be anything
	}
	var has func(any) bool
	has = func(v any) bool {
		switch v := v.(type) {
		case []any:
			return slices.ContainsFunc(v, has)
		case map[string]any:
			for name, v := range v {
				if strings.HasPrefix(strings.ToLower(name), "payload") || has(v) {
					return true
				}
			}
		}
		return false
	}
	return has(decoded)
}
