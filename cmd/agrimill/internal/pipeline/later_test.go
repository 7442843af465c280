package pipeline

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/logsink"
)

// A sink that is opened in the background forwards publications once it is open, and is
// an outage before.
func TestPublishAsyncOfWhatIsOpenedLater(t *testing.T) {
	inner := testkit.Must(logsink.New(logsink.Config{Writer: io.Discard}))(t)
	defer func() { _ = inner.Close() }()
	open := func(context.Context) (sinks.Sink, func() error, error) { return inner, inner.Close, nil }
	s := &sink{name: "farm", Later: opening.NewLater(open, watermill.NopLogger{})}
	msg := message.NewMessage("1", nil)
	if _, err := s.PublishAsync("topic", msg); !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, sinks.ErrNotConnected) {
		t.Errorf("before it is open: %v", err)
	}
	testkit.NoError(t, s.Try(t.Context()))
	p := testkit.Must(s.PublishAsync("topic", msg))(t)
	testkit.Must(p.Result())(t)
}
