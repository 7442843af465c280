package logsink_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/logsink"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend reads the lines back. The race detector watches that the sink writes
// one at a time.
type backend struct {
	sinktest.NoFaults
	text *bytes.Buffer
}

func (b backend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	sink := testkit.Must(logsink.New(logsink.Config{Writer: b.text, PayloadBytes: 1 << 20}))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func (b backend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	var messages []*message.Message
	for text := range bytes.Lines(b.text.Bytes()) {
		var line logsink.Line
		testkit.NoError(t, json.Unmarshal(text, &line))
		if line.Topic == topic {
			msg := message.NewMessage(line.UUID, line.Payload)
			msg.Metadata = line.Metadata
			messages = append(messages, msg)
		}
	}
	return messages
}

func TestConformance(t *testing.T) {
	sinktest.Run(t, sinktest.Suite{
		New:      func(*testing.T, sinktest.Settings) sinktest.Backend { return backend{text: &bytes.Buffer{}} },
		Features: sinktest.Features{UUID: true, UnescapeTopicSegment: sinks.DefaultSegments.Unescape},
	})
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestErrors(t *testing.T) {
	if _, err := logsink.New(logsink.Config{}); err == nil {
		t.Error("no error without a Writer")
	}
	sink := testkit.Must(logsink.New(logsink.Config{Writer: failing{}}))(t)
	defer sink.Close()
	if err := sink.Publish("topic", message.NewMessage("1", nil)); !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
}

func ExampleNew() {
	sink, err := logsink.New(logsink.Config{Writer: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()

	msg := message.NewMessage("1", []byte("secret"))
	msg.Metadata["x-router-message-type"] = "gps:info"
	if err := sink.Publish("tenant.gps:info", msg); err != nil {
		fmt.Println(err)
	}
	// Output: {"topic":"tenant.gps:info","uuid":"1","size":6,"metadata":{"x-router-message-type":"gps:info"}}
}
