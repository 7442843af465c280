package nats_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/internal/wakeup"
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

// losses are the sequences of which the loss was told.
type losses struct {
	mu   sync.Mutex
	told []uint64
}

func (l *losses) tell(first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; first <= last; first++ {
		l.told = append(l.told, first)
	}
}

// want waits for each of these to be told, and fails for one that is told twice. A message on its way over the reconnect may be stored in
// place of one that is lost before anybody looks: that one is told later than the others.
func (l *losses) want(t *testing.T, sequences ...uint64) {
	t.Helper()
	var told []uint64
	testkit.Eventually(t, "losses are told", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		told = slices.Sorted(slices.Values(l.told))
		return len(told) >= len(sequences)
	})
	if !slices.Equal(told, sequences) {
		t.Errorf("the loss of %d was told, not of %d", told, sequences)
	}
}

// A server whose store is an older copy has lost acknowledged messages: that is told, with their number and place, before it has
// others there.
func TestBrokerWentBack(t *testing.T) {
	t.Parallel()
	var dir string
	s := natstest.Start(t, func(o *server.Options) { dir = o.StoreDir })
	log := testkit.NewLog()
	var lost losses
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL()}, Lost: lost.tell}, log)
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
	if n := sink.Lost(); n != 0 {
		t.Errorf("%d are lost before anything is", n)
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
	if got := sink.Lost(); got != 4 {
		t.Errorf("%d are lost", got)
	}
	lost.want(t, 4, 5, 6, 7)
	testkit.Contains(t, log.String(), "ERROR the broker has lost acknowledged messages")
}

// The server that has the stream need not be the connected one, which nothing tells of the other one's restart. What is stored then has
// the numbers of what was lost, and may be more of it before anybody looks.
func TestBrokerWentBackBehindAnother(t *testing.T) {
	t.Parallel()
	hub, leaf := natstest.StartLeaf(t)
	dir := hub.Server().StoreDir()
	var lost losses
	config := joined(leaf)
	config.Synced = sinks.Synced(time.Hour)
	config.Lost = lost.tell
	sink := newSink(t, config, nil)
	publish := func(times int) {
		for stored := 0; stored < times; {
			if sink.Publish("t", newMessage("x")) == nil {
				stored++
			}
		}
	}
	publish(3)
	hub.Stop()
	old := filepath.Join(t.TempDir(), "old")
	testkit.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	hub.Restart()
	publish(1)
	began, acked := publishedNow(t, sink)
	publish(2)
	hub.Stop()
	testkit.NoError(t, os.RemoveAll(dir))
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	hub.Restart()
	conn := natstest.ConnectLeaf(t, leaf)
	testkit.Eventually(t, "the stream is there again", func() bool {
		_, err := conn.Request(nats.APIPrefix(natstest.LeafDomain)+"STREAM.INFO."+nats.DefaultStream, nil, time.Second)
		return err == nil
	})
	publish(10)
	testkit.NoError(t, sink.Health(t.Context()))
	if got := sink.Lost(); got != 4 {
		t.Errorf("%d are lost", got)
	}
	lost.want(t, 4, 5, 6, 7)
	if _, err := sink.Survives(began, acked); !errors.Is(err, sinks.ErrPossiblyLost) {
		t.Errorf("what is lost survives: %v", err)
	}
}

// Whoever is told of a loss may take time, publish in vain, and close the sink. Nothing is stored meanwhile.
func TestLostIsTold(t *testing.T) {
	t.Parallel()
	url, js := withStream(t, jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}})
	var sink *nats.Sink
	told, proceed, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	lost := func(first, last uint64) {
		close(told)
		<-proceed
		if err := sink.Publish("t", newMessage("x")); !errors.Is(err, sinks.ErrUnavailable) {
			t.Errorf("published while the loss of %d to %d is told: %v", first, last, err)
		}
		testkit.NoError(t, sink.Close())
		close(closed)
	}
	sink = newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Lost: lost}, nil)
	publishedNow(t, sink)
	testkit.NoError(t, js.DeleteStream(t.Context(), nats.DefaultStream))
	testkit.ErrorIs(t, sink.Publish("t", newMessage("x")), sinks.ErrUnavailable)
	testkit.Ends(t, "the notice", func() { <-told })
	for range 2 { // as often as somebody looks
		testkit.NoError(t, sink.Health(t.Context()))
		if err := sink.Publish("t", newMessage("x")); !errors.Is(err, sinks.ErrUnavailable) || !strings.Contains(err.Error(), "still being reported") {
			t.Errorf("published while the loss is told: %v", err)
		}
	}
	close(proceed)
	testkit.Ends(t, "Close, and what is told", func() { <-closed })
}

// A server that syncs later than somebody has said says so, if the account may ask it.
func TestServerTellsHowItSyncs(t *testing.T) {
	t.Parallel()
	const accounts = `accounts {
  SYS: {users: [{user: sys, password: x}], exports: [{service: "$SYS.REQ.SERVER.PING.VARZ"}]}
  FARM: {jetstream: enabled, users: [{user: farm, password: x}], imports: [{service: {account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ"}}]}
  OTHER: {jetstream: enabled, users: [{user: other, password: x}, {user: narrow, password: x, permissions: {publish: ["$JS.>", "agrimill.>"]}}]}
}
system_account: SYS
`
	file := filepath.Join(t.TempDir(), "nats.conf")
	for _, test := range []struct {
		user       string
		jetstream  string
		said, want sinks.Synced
	}{
		{"farm", "sync_interval: 30s", sinks.Synced(time.Second), sinks.Synced(30 * time.Second)},
		{"farm", "sync_interval: 30s", sinks.SyncedAlways, sinks.Synced(30 * time.Second)},
		{"farm", "sync_interval: 30s", sinks.Synced(time.Hour), sinks.Synced(time.Hour)},
		{"farm", "sync_interval: always", sinks.Synced(time.Hour), sinks.Synced(time.Hour)},
		{"farm", "sync_interval: 30s", sinks.SyncedUnknown, sinks.SyncedUnknown},
		{"other", "sync_interval: 30s", sinks.Synced(time.Second), sinks.Synced(time.Second)},
		{"narrow", "sync_interval: 30s", sinks.Synced(time.Second), sinks.Synced(time.Second)},
	} {
		testkit.NoError(t, os.WriteFile(file, []byte(accounts+"jetstream {"+test.jetstream+"}\n"), 0o600))
		parsed := testkit.Must(server.ProcessConfigFile(file))(t)
		s := natstest.Start(t, func(o *server.Options) {
			o.Accounts, o.Users, o.SystemAccount = parsed.Accounts, parsed.Users, parsed.SystemAccount
			o.SyncInterval, o.SyncAlways = parsed.SyncInterval, parsed.SyncAlways
		})
		log := testkit.NewLog()
		sink := newSink(t, nats.Config{Connection: nats.Connection{URL: s.URL(), User: test.user, Password: "x"}, Synced: test.said}, log)
		testkit.Eventually(t, fmt.Sprintf("%s, %s, said %s: it is %s", test.user, test.jetstream, test.said, test.want),
			func() bool { return sink.Describe().Synced == test.want }) // after a look in which the server had time to answer
		if told := strings.Contains(log.String(), "later than configured"); told != (test.want != test.said) {
			t.Errorf("%s, %s, said %s: it is told: %t", test.user, test.jetstream, test.said, told)
		}
		if strings.Contains(log.String(), "ERROR") {
			t.Errorf("%s: %s", test.user, log)
		}
		testkit.Must(sink.Survives(time.Now(), time.Now()))(t)
	}
}

// A stream that lost its subjects gets them again if the sink may change it. Otherwise what waits is woken when somebody else gives
// them back, and not by each look at it.
func TestSubjectsTakenAway(t *testing.T) {
	t.Parallel()
	for _, provision := range []nats.Provision{nats.ProvisionNone, nats.ProvisionCreate, nats.ProvisionUpdate} {
		t.Run(provision.String(), func(t *testing.T) {
			t.Parallel()
			url, js := withStream(t, jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}})
			sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Provision: provision}, nil)
			publishedNow(t, sink)
			subjects := func(is string) {
				t.Helper()
				testkit.Must(js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{is}}))(t)
			}
			subjects("agrimill.other.>")
			wake := sink.Recovered()
			testkit.ErrorIs(t, sink.Publish("t", newMessage("x")), sinks.ErrUnavailable)
			if provision != nats.ProvisionUpdate {
				testkit.NoError(t, sink.Health(t.Context()))
				if wakeup.Raised(wake) {
					t.Error("it is woken, and nothing has changed")
				}
				testkit.NoError(t, sink.Publish("other.t", newMessage("x")))
				subjects("agrimill.>")
				testkit.NoError(t, sink.Health(t.Context()))
			}
			testkit.Ends(t, "the wait", func() { <-wake })
			publishedNow(t, sink)
		})
	}
}

// A stream that is gone and that nobody publishes to is made again by the next look, which then wakes what waits.
func TestStreamGoneUnnoticed(t *testing.T) {
	t.Parallel()
	url, js := withStream(t, jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}})
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}, Synced: sinks.Synced(40 * time.Millisecond)}, nil)
	publishedNow(t, sink)
	wake := sink.Recovered()
	testkit.NoError(t, js.DeleteStream(t.Context(), nats.DefaultStream))
	testkit.Ends(t, "the wait", func() { <-wake })
	testkit.EventuallyNil(t, func() error { return sink.Publish("t", newMessage("x")) })
	if sink.Lost() == 0 {
		t.Error("what the stream held is not counted")
	}
}

// A stream that was made again as one that counts takes no messages, and none of them is to blame.
func TestStreamCounts(t *testing.T) {
	t.Parallel()
	counts := jetstream.StreamConfig{Name: nats.DefaultStream, Subjects: []string{"agrimill.>"}}
	url, js := withStream(t, counts)
	sink := newSink(t, nats.Config{Connection: nats.Connection{URL: url}}, nil)
	publishedNow(t, sink)
	testkit.NoError(t, js.DeleteStream(t.Context(), nats.DefaultStream))
	counts.AllowMsgCounter = true
	testkit.EventuallyNil(t, func() error { // the files of the former one are removed in the background
		_, err := js.CreateStream(t.Context(), counts)
		return err
	})
	testkit.NoError(t, sink.Health(t.Context()))
	testkit.ErrorIs(t, sink.Publish("t", newMessage("x")), sinks.ErrUnavailable)
}
