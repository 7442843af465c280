package blob

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks"
)

// Sidecar is the content of the object beside a payload, as JSON.
type Sidecar struct {
	Topic string `json:"topic"`
	UUID  string `json:"uuid"`
	Size  int64  `json:"size"`
	// SHA256 of the payload, in hexadecimal.
	SHA256 string `json:"sha256"`
	// Metadata are the entries that are UTF-8, but those that say that the payload
	// is elsewhere: it is here now.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Bytes are the other entries, names and values in base64.
	Bytes []BytesEntry `json:"metadata_bytes,omitempty"`
}

// BytesEntry is one metadata entry that is not UTF-8.
type BytesEntry struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

// AllMetadata returns Metadata and Bytes together.
func (s Sidecar) AllMetadata() message.Metadata {
	all := make(message.Metadata, len(s.Metadata)+len(s.Bytes))
	maps.Copy(all, s.Metadata)
	for _, entry := range s.Bytes {
		all[string(entry.Name)] = string(entry.Value)
	}
	return all
}

// storeSidecar writes the sidecar unless there is one.
func (p *publisher) storeSidecar(ctx context.Context, key string, about Sidecar) (there bool, err error) {
	text, err := json.Marshal(about)
	if err != nil {
		return false, fmt.Errorf("%w: %w", sinks.ErrRejected, err)
	}
	return p.write(ctx, key+SidecarSuffix, "application/json", false, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func (p *publisher) readSidecar(ctx context.Context, key string) (about Sidecar, err error) {
	text, err := p.bucket.ReadAll(ctx, key+SidecarSuffix)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return about, nil // gone again, with whatever it said
	}
	if err == nil && json.Unmarshal(text, &about) != nil {
		about = Sidecar{} // fits nothing
	}
	return about, err
}

func sidecar(topic string, msg *message.Message, size int64, digest []byte) Sidecar {
	s := Sidecar{Topic: topic, UUID: msg.UUID, Size: size, SHA256: hex.EncodeToString(digest)}
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		if len(msg.Payload) == 0 && (name == gateway.KeyPayloadMode || name == gateway.KeyPayloadReference) {
			continue
		}
		value := msg.Metadata[name]
		if utf8.ValidString(name) && utf8.ValidString(value) {
			if s.Metadata == nil {
				s.Metadata = map[string]string{}
			}
			s.Metadata[name] = value
		} else {
			s.Bytes = append(s.Bytes, BytesEntry{Name: []byte(name), Value: []byte(value)})
		}
	}
	return s
}
