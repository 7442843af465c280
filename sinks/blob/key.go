package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks"
)

const (
	// maxElement and maxKey keep keys within the limits of common file systems
	// (255 bytes) and object stores (1024 bytes), with room for SidecarSuffix
	// and the names of temporary files.
	maxElement = 200
	maxKey     = 900
	// minElement is the shortest that elements are cut to: room for the digest, and something to read.
	minElement = 50
	// digestMark begins the digest of an element that was cut. No escape does: two upper-case
	// hexadecimal digits follow its mark.
	digestMark = "%h"
)

// Variables of Path beside those of topics, as metadata keys that exist only
// while the template is applied.
const (
	topicVariable = "\x00topic"
	idVariable    = "\x00id"
	dateVariable  = "\x00date"
)

// TopicSegment is that of [sinks.DefaultSegments].
func (Config) TopicSegment(value string) string { return sinks.DefaultSegments.Escape(value) }

// CheckTopic implements [sinks.Topics]. It also covers the fixed parts and fallbacks of Path.
func (c Config) CheckTopic(topic string) error {
	c = c.WithDefaults()
	path, err := c.template()
	if err != nil {
		return sinks.NewError(c.Name, topic, sinks.ErrRejected, err)
	}
	if err := try(path, topic); err != nil {
		return sinks.NewError(c.Name, topic, sinks.ErrRejected, err)
	}
	return nil
}

// try returns an error if no message in the topic can have a key, or none without the values that have a fallback.
func try(path *sinks.TopicTemplate, topic string) error {
	for _, values := range path.Samples() {
		if _, err := render(path, topic, values); err != nil {
			return err
		}
	}
	return nil
}

// Required returns the metadata keys without which a message has no key, by the names of their variables in
// Path. It returns none for a Path that is not valid.
func (c Config) Required() map[string]string {
	c = c.WithDefaults()
	path, err := c.template()
	if err != nil {
		return nil
	}
	required := path.Required()
	maps.DeleteFunc(required, func(name, _ string) bool { return name == "topic" || name == "id" || name == "date" })
	return required
}

// Key returns the key of a message's payload in the topic. Without [gateway.KeyDedupID] it is another one each time.
// The error matches [sinks.ErrRejected]: the message cannot be stored.
func (c Config) Key(topic string, msg *message.Message) (string, error) {
	c = c.WithDefaults()
	path, err := c.template()
	if err == nil {
		var key string
		if key, err = render(path, topic, msg.Metadata); err == nil {
			return key, nil
		}
	}
	return "", sinks.NewError(c.Name, topic, sinks.ErrRejected, err)
}

// render returns the key of the payload of a message with the metadata.
func render(path *sinks.TopicTemplate, topic string, metadata message.Metadata) (string, error) {
	if err := checkTopic(topic); err != nil {
		return "", err
	}
	values := maps.Clone(metadata)
	if values == nil {
		values = message.Metadata{}
	}
	values[topicVariable] = topic
	values[dateVariable] = time.Now().UTC().Format(time.DateOnly)
	if id := metadata[gateway.KeyDedupID]; id != "" {
		// A digest, so that an ID never looks like the unique ones below.
		digest := sha256.Sum256([]byte(id))
		values[idVariable] = hex.EncodeToString(digest[:16])
	} else {
		unique, err := uuid.NewV7()
		if err != nil {
			return "", err
		}
		values[idVariable] = unique.String()
	}
	key, err := path.Render(values, func(name, value string) string {
		if name == "topic" { // made of escaped segments, as checked
			return strings.ReplaceAll(topic, ".", "/")
		}
		return escape(value)
	})
	if err != nil {
		return "", err
	}
	return fit(key)
}

// fit makes each element of a key, and the key itself, short enough. It refuses keys that no bucket takes.
func fit(key string) (string, error) {
	elements := strings.Split(key, "/")
	for i, element := range elements {
		if element == "" || element == "." || element == ".." {
			return "", fmt.Errorf("%w: it has a path element that is empty, '.' or '..'", errBadKey)
		}
		if strings.ContainsFunc(element, unicode.IsControl) || !utf8.ValidString(element) {
			return "", fmt.Errorf("%w: it has a control character, or is no UTF-8", errBadKey)
		}
		for _, suffix := range reservedSuffixes {
			if rest, reserved := strings.CutSuffix(element, suffix); reserved {
				elements[i] = rest + "%2E" + suffix[1:]
			}
		}
	}
	for limit := maxElement; limit >= minElement; limit /= 2 {
		short := make([]string, len(elements))
		for i, element := range elements {
			short[i] = cut(element, limit)
		}
		if key := strings.Join(short, "/"); len(key) <= maxKey {
			return key, nil
		}
	}
	return "", fmt.Errorf("%w: %d bytes long, the limit is %d", errBadKey, len(key), maxKey)
}

// cut returns an element of at most limit bytes: a longer one ends with its digest.
func cut(element string, limit int) string {
	if len(element) <= limit {
		return element
	}
	digest := sha256.Sum256([]byte(element))
	tail := digestMark + hex.EncodeToString(digest[:16])
	return strings.ToValidUTF8(element[:limit-len(tail)], "") + tail
}

// checkTopic returns an error unless topic consists of segments as
// sinks.DefaultSegments makes them.
func checkTopic(topic string) error {
	for segment := range strings.SplitSeq(topic, ".") {
		if _, err := sinks.DefaultSegments.Unescape(segment); err != nil {
			return err
		}
	}
	return nil
}

// escapes makes values parts of path elements. A dot may stay, but not in front:
// no value becomes "..", or hidden.
var escapes = sinks.Segments{Mark: '%', Legal: func(b byte) bool {
	return b == '.' || sinks.DefaultSegments.Legal(b)
}}

func escape(value string) string {
	escaped := escapes.Escape(value)
	if rest, ok := strings.CutPrefix(escaped, "."); ok {
		escaped = "%2E" + rest
	}
	return escaped
}
