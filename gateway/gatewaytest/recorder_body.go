package gatewaytest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	case b.x.kind == bodyPayload:
		line.Body = []recordedPart{{Size: min(b.size, maxRecordedSize), SHA256: hex.EncodeToString(b.digest.Sum(nil)), As: asRaw}}
	default:
		line.Body = []recordedPart{{Size: min(b.size, maxEventLine), SHA256: hex.EncodeToString(b.digest.Sum(nil)), As: asUnreadable}}
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
	if b.err != nil {
		b.end(b.x.ended(b.err))
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

// level is an object or array that is open.
type level struct {
	object bool
	hidden bool   // may be a payload
	key    string // in lower case
	keyed  bool   // its value comes next
}

// event returns what to pass on and to record of the data of an event. What is below a key that begins with payload may
// be one, and so may what cannot be read.
func (x *exchange) event(data []byte) (forward []byte, parts []recordedPart) {
	tokens := json.NewDecoder(bytes.NewReader(data))
	tokens.UseNumber()
	done, end := 0, 0 // how much of data is in forward and parts, and was read
	keep := func(until int) {
		forward, parts = append(forward, data[done:until]...), append(parts, x.recorder.text(data[done:until])...)
		done = until
	}
	levels := []level{{}}
	for (end == 0 || len(levels) > 1) && len(levels) < maxEventDepth && len(parts) < maxEventParts {
		token, err := tokens.Token()
		if err != nil || end == 0 && token != json.Delim('{') {
			break
		}
		start := len(data) - len(bytes.TrimLeft(data[end:], " \t\r\n:,"))
		end = int(tokens.InputOffset())
		in := &levels[len(levels)-1]
		text, isText := token.(string)
		if in.object && !in.hidden && !in.keyed && isText {
			in.key, in.keyed = strings.ToLower(text), true
			continue
		}
		hidden := in.hidden || in.keyed && strings.HasPrefix(in.key, "payload")
		in.keyed = false
		switch token {
		case json.Delim('{'), json.Delim('['):
			levels = append(levels, level{object: token == json.Delim('{'), hidden: hidden})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		case nil, "":
		default:
			if hidden {
				keep(start)
				replaced, recorded := x.hidden(in, data[start:end], text)
				forward, parts, done = append(forward, replaced...), append(parts, recorded...), end
			}
		}
	}
	if end > 0 && len(levels) == 1 && len(bytes.TrimSpace(data[end:])) == 0 {
		end = len(data)
	}
	keep(end)
	if end < len(data) {
		forward, parts = append(forward, data[end:]...), append(parts, leftOut(data[end:], asUnreadable))
	}
	return forward, parts
}

// hidden is event for a value that may be a payload. text is that of a string.
func (x *exchange) hidden(in *level, value []byte, text string) (forward []byte, parts []recordedPart) {
	quote := recordedPart{Text: `"`}
	switch {
	case in.hidden || text == "": // another form, or another place, than the specification says
	case in.key == "payload_uri":
		number, own := x.ownURI(text)
		return []byte(`"` + own + `"`), []recordedPart{quote, {PayloadURI: number}, quote}
	case in.key == "payload" && x.recorder.cfg.Payloads:
		return value, x.recorder.text(value)
	case in.key == "payload":
		for _, e := range encodings {
			if payload, err := e.DecodeString(text); err == nil {
				return value, []recordedPart{quote, leftOut(payload, e.as), quote}
			}
		}
		return value, []recordedPart{quote, leftOut(value[1:len(value)-1], asUnreadable), quote}
	}
	return value, []recordedPart{leftOut(value, asUnreadable)}
}
