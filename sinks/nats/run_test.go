package nats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

// publishedNow publishes one message and returns when.
func publishedNow(t *testing.T, sink *nats.Sink) (began, acked time.Time) {
	t.Helper()
	began = time.Now()
	testkit.NoError(t, sink.Publish("t", newMessage("x")))
	return began, time.Now()
}

// What was acknowledged survives once the server has run on for twice its interval; if it was restarted before that, it may be lost.
func TestSurvives(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, Synced: sinks.Synced(20 * time.Millisecond)}, nil)
	if got := sink.Describe().Synced; got != sinks.Synced(20*time.Millisecond) {
		t.Errorf("synced %s", got)
	}
	began, acked := publishedNow(t, sink)
	testkit.Eventually(t, "it survives", func() bool {
		is, err := sink.Survives(began, acked)
		return is && err == nil && time.Since(acked) >= 40*time.Millisecond
	})
	slow := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, Synced: sinks.Synced(time.Hour)}, nil)
	began, acked = publishedNow(t, slow)
	if is, err := slow.Survives(began, acked); is || err != nil {
		t.Errorf("before it is synced: %t, %v", is, err)
	}
	s.Restart()
	testkit.Eventually(t, "it may be lost", func() bool {
		_, err := slow.Survives(began, acked)
		return errors.Is(err, sinks.ErrPossiblyLost)
	})
	_ = slow.Close()
	began, acked = time.Now(), time.Now()
	if _, err := slow.Survives(began, acked); !errors.Is(err, sinks.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A server whose store is an older copy has lost acknowledged messages: that is told, with their number and place, before it has
// others there.
func TestBrokerWentBack(t *testing.T) {
	t.Parallel()
	var dir string
	s := natstest.Start(t, func(o *server.Options) { dir = o.StoreDir })
	log := testkit.NewLog()
	var told [2]uint64
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, Lost: func(first, last uint64) { told = [...]uint64{first, last} }}, log)
	for range 3 {
		publishedNow(t, sink)
	}
	s.Stop()
	old := filepath.Join(t.TempDir(), "old")
	testkit.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	s.Restart()
	testkit.Eventually(t, "it is there again", func() bool { return sink.Health(t.Context()) == nil })
	for range 4 {
		publishedNow(t, sink)
	}
	if lost := sink.Lost(); lost != 0 {
		t.Errorf("%d are lost before anything is", lost)
	}
	s.Stop()
	testkit.NoError(t, os.RemoveAll(dir))
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	s.Restart()
	for stored := 0; stored < 10; { // more than it has lost, as soon as it takes them
		if sink.Publish("t", newMessage("x")) == nil {
			stored++
		}
	}
	if got := sink.Lost(); got != 4 || told != [...]uint64{4, 7} {
		t.Errorf("%d are lost, and %d were told", got, told)
	}
	if !strings.Contains(log.String(), "ERROR the broker has lost acknowledged messages") {
		t.Errorf("got %s", log)
	}
}
