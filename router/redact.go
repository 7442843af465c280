package router

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// maxReasonLength caps the text of an error in logs and metadata, in bytes.
	maxReasonLength = 512
	// minPayloadRun is how many bytes in a row have to be equal for a piece of
	// an error's text to count as a piece of the payload. Shorter ones, such as
	// single words, would hide the error itself.
	minPayloadRun = 16
	// maxPayloadScan bounds the work on large payloads.
	maxPayloadScan = 1 << 20
)

// urlTail finds what may be secret in an address: userinfo, query and fragment.
var (
	urlUserinfo = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.\-]*://)[^\s/?#@"']*@`)
	urlTail     = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.\-]*://[^\s?#"'<>]*)[?#][^\s"'<>]*`)
)

// RedactError returns the text of err fit for logs and metadata: userinfo, query
// and fragment of addresses are cut off, pieces of msg's payload of 16 bytes and
// more are replaced (looked for in its first MiB), control characters become
// spaces, and the length is capped at 512 bytes. msg may be nil. The text of nil
// is empty.
func RedactError(err error, msg *message.Message) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	// Work is bounded before anything else: a text can be as long as a payload.
	if len(text) > 4*maxReasonLength {
		text = text[:4*maxReasonLength]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if msg != nil {
		text = cutPayload(text, msg.Payload)
	}
	text = urlUserinfo.ReplaceAllString(text, "$1")
	text = urlTail.ReplaceAllString(text, "$1?…")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	return capText(text, maxReasonLength)
}

// capText cuts text to at most limit bytes, at the border of a character.
func capText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	cut := limit - len("…")
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// cutPayload replaces the pieces of text that also occur in payload.
func cutPayload(text string, payload []byte) string {
	payload = payload[:min(len(payload), maxPayloadScan)]
	if len(payload) == 0 || len(text) == 0 {
		return text
	}
	if len(payload) < minPayloadRun {
		// Too short to be told apart from ordinary words, unless quoted whole.
		if len(payload) >= minPayloadRun/2 {
			return strings.ReplaceAll(text, string(payload), "[payload]")
		}
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		end := i + minPayloadRun
		if end > len(text) {
			b.WriteString(text[i:])
			break
		}
		at := bytes.Index(payload, []byte(text[i:end]))
		if at < 0 {
			b.WriteByte(text[i])
			i++
			continue
		}
		for n := at + minPayloadRun; n < len(payload) && end < len(text) && payload[n] == text[end]; n++ {
			end++
		}
		b.WriteString("[payload]")
		i = end
	}
	return b.String()
}

// redacted is an error for a logger: it has a text and nothing behind it.
type redacted string

func (r redacted) Error() string { return string(r) }
