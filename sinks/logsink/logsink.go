// Package logsink is a sink for looking: it writes one line of JSON per message
// to an io.Writer, e.g. os.Stdout. It stores nothing.
//
// A line has the topic, the UUID, the size of the payload and the metadata, in
// which bytes that are not UTF-8 are replaced, and, if asked for, the beginning
// of the payload in base64:
//
//	{"topic":"tenant.type","uuid":"…","size":4,"metadata":{"x-router-message-type":"…"},"payload":"AAECAw=="}
package logsink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// Line is one line, for programs that read them.
type Line struct {
	Topic    string            `json:"topic"`
	UUID     string            `json:"uuid"`
	Size     int               `json:"size"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Payload is the beginning of the payload, at most Config.PayloadBytes.
	Payload []byte `json:"payload,omitempty"`
}

// Config configures the sink.
type Config struct {
	// Writer gets the lines, each in one call of Write, never two at a time.
	// Required. It is not closed.
	Writer io.Writer `yaml:"-"`
	// PayloadBytes is how many bytes of each payload are shown. Default, and for
	// negative values: none, since payloads are other people's data.
	PayloadBytes int `yaml:"payload_bytes" unit:"bytes"`
}

// New returns the sink. A failing Write is sinks.ErrUnavailable.
func New(config Config) (sinks.Sink, error) {
	if config.Writer == nil {
		return nil, errors.New("sinks/logsink: no writer is given")
	}
	return sinks.FromPublisher("log", &publisher{config: config}, sinks.PublisherConfig{Description: sinks.Description{
		Durability:     sinks.DurabilityNone,
		DurabilityNote: "for looking: messages are written to a stream of text and stored nowhere",
	}}), nil
}

type publisher struct {
	config Config
	turn   sync.Mutex // of who writes
}

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		line, err := json.Marshal(Line{
			Topic: topic, UUID: msg.UUID, Size: len(msg.Payload), Metadata: msg.Metadata,
			Payload: msg.Payload[:min(len(msg.Payload), max(0, p.config.PayloadBytes))],
		})
		if err != nil {
			return fmt.Errorf("%w: %w", sinks.ErrRejected, err)
		}
		p.turn.Lock()
		_, err = p.config.Writer.Write(append(line, '\n'))
		p.turn.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) Close() error { return nil }
