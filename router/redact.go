package router

import (
	"encoding/binary"
	"strings"
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/redact"
)

const (
	// maxReasonLength caps the text of an error in logs and metadata, in bytes.
	maxReasonLength = 512
	// minPayloadRun is how many bytes in a row of an error's text have to be in the payload to count as a piece of it.
	// Shorter ones, such as single words, would hide the error itself.
	minPayloadRun = 16
	// payloadMark stands for a piece of the payload.
	payloadMark = "[payload]"
)

// RedactError returns the text of err fit for logs and metadata: userinfo, query and fragment of addresses are cut off, pieces
// of msg's payload of 16 bytes and more are replaced, line breaks become semicolons, other control characters spaces, and the
// length is capped at 512 bytes. Where a password that is not percent-encoded ends cannot be told, so everything up to the last @ before the
// next address goes. msg may be nil. The text of nil is empty.
func RedactError(err error, msg *message.Message) string {
	if err == nil {
		return ""
	}
	// Before the text is cut short: the rest of it tells where a password ends.
	text := redact.Addresses(err.Error())
	if len(text) > 4*maxReasonLength {
		text = text[:4*maxReasonLength]
	}
	if msg != nil {
		text = cutPayload(text, msg.Payload)
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.NewReplacer("\r\n", "; ", "\n", "; ").Replace(strings.TrimRight(text, "\r\n")) // joined errors stay apart
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
	return strings.ToValidUTF8(text[:limit-len("…")], "") + "…"
}

// cutPayload replaces the pieces of text that also occur in payload. One pass
// over the payload, whatever the text: payloads may be large.
func cutPayload(text string, payload []byte) string {
	if len(payload) < minPayloadRun {
		// Too short to be told apart from ordinary words, unless it is there whole.
		if len(payload) >= minPayloadRun/2 {
			return strings.ReplaceAll(text, string(payload), payloadMark)
		}
		return text
	}
	if len(text) < minPayloadRun {
		return text
	}
	// Where in the text each of its runs begins, and a small filter before the
	// map, because nearly every run of the payload is none of them.
	runs := make(map[string][]int, len(text))
	var filter [1 << 12]bool
	for i := 0; i+minPayloadRun <= len(text); i++ {
		run := text[i : i+minPayloadRun]
		runs[run] = append(runs[run], i)
		filter[runHash([]byte(run))] = true
	}
	hidden := make([]bool, len(text))
	found := false
	for i := 0; i+minPayloadRun <= len(payload); i++ {
		run := payload[i : i+minPayloadRun]
		if !filter[runHash(run)] {
			continue
		}
		for _, at := range runs[string(run)] {
			found = true
			for k := range minPayloadRun {
				hidden[at+k] = true
			}
		}
	}
	if !found {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !hidden[i]:
			b.WriteByte(text[i])
		case i == 0 || !hidden[i-1]:
			b.WriteString(payloadMark)
		}
	}
	return b.String()
}

// runHash is a hash of the first 8 of a run's bytes, with 12 bits.
func runHash(run []byte) uint64 { return binary.LittleEndian.Uint64(run) * 0x9E3779B97F4A7C15 >> 52 }

// redacted is an error for a logger: it has a text and nothing behind it.
type redacted string

func (r redacted) Error() string { return string(r) }
