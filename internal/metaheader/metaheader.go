// Package metaheader makes headers of metadata and metadata of headers, so that every key comes back.
package metaheader

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// Prefix begins the headers of keys that cannot be headers as they are. The keys are percent-encoded behind it.
const Prefix = "agrimill-key-"

// ContentType is the header of CloudEvents that has no prefix.
const ContentType = "content-type"

// Names are the rules of a broker for headers.
type Names struct {
	// Segments percent-encodes keys.
	Segments sinks.Segments
	// IsPlain reports whether a key can be a header as it is.
	IsPlain func(key string) bool
	// IsEvent reports whether a header is one of CloudEvents.
	IsEvent func(header string) bool
}

// Header returns the header of a key. With events, those of CloudEvents are taken.
func (n *Names) Header(key string, events bool) string {
	if n.IsPlain(key) && !(events && n.IsEvent(key)) {
		return key
	}
	return Prefix + n.Segments.Escape(key)
}

// Key reverses Header. What that never writes stays as it is.
func (n *Names) Key(header string) string {
	if escaped, ok := strings.CutPrefix(header, Prefix); ok {
		if key, err := n.Segments.Unescape(escaped); err == nil && (!n.IsPlain(key) || n.IsEvent(key)) {
			return key
		}
	}
	return header
}

// Reader makes the metadata of a message of its headers.
type Reader struct {
	*Names
	// Events has the headers of CloudEvents left out.
	Events bool
	// Metadata is what is made.
	Metadata message.Metadata

	own []string // keys behind Prefix
}

// Add takes in a header. An attribute of CloudEvents does not replace the message's own metadata of that name.
func (r *Reader) Add(header, value string) {
	if r.Events && r.IsEvent(header) {
		return
	}
	key := r.Key(header)
	if key != header {
		r.own = append(r.own, key)
	} else if slices.Contains(r.own, key) {
		return
	}
	r.Metadata[key] = value
}
