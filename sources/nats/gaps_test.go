package nats_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

const deletedLine = "NATS messages were deleted before they were delivered"

func (f *field) logged(log *testkit.Log, change ...func(*nats.Config)) *nats.Subscriber {
	f.Helper()
	config := nats.Config{Connection: sinknats.Connection{URL: f.server.URL()}, SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", CloseTimeout: time.Second}
	for _, c := range change {
		c(&config)
	}
	s := testkit.Must(nats.New(config, log))(f)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

// What is deleted before it was delivered is counted and told, and what is there is delivered.
func TestDeletedUnread(t *testing.T) {
	t.Parallel()
	limit := func(n int64) func(*field) {
		return func(f *field) {
			testkit.Must(f.js.UpdateStream(f.Context(), jetstream.StreamConfig{Name: "FIELD", Subjects: []string{"field.>"}, MaxMsgs: n}))(f)
		}
	}
	stream := func(f *field) jetstream.Stream {
		s := testkit.Must(f.js.Stream(f.Context(), "FIELD"))(f)
		return s
	}
	for name, c := range map[string]struct {
		delete  func(f *field)
		deleted int // of the six messages 1 to 6; 0: nothing is said
		want    []string
	}{
		"nothing":         {func(*field) {}, 0, []string{"1", "2", "3", "4", "5", "6", "7"}},
		"limit":           {limit(2), 5, []string{"6", "7"}},
		"all by a limit":  {limit(1), 6, []string{"7"}},
		"one of them":     {func(f *field) { f.delete(4) }, 1, []string{"1", "2", "4", "5", "6", "7"}},
		"of other fields": {func(f *field) { _ = stream(f).Purge(f.Context(), jetstream.WithPurgeSubject("field.other")) }, 0, []string{"1", "2", "3", "4", "5", "6", "7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			log := testkit.NewLog()
			f.put(0, 1)
			s := f.logged(log, func(c *nats.Config) { c.MaxInFlight = 1 })
			messages := testkit.Must(s.Subscribe(t.Context(), "field.>"))(t)
			f.next(messages).Ack()
			testkit.Eventually(t, "it is acked", func() bool { return f.pending() == 0 })
			testkit.NoError(t, s.Close())
			f.put(1, 6)
			c.delete(f)
			f.put(7, 1) // before anything is read: it may be the one that deletes
			messages = testkit.Must(f.logged(log).Subscribe(t.Context(), "field.>"))(t)
			var got []string
			for !slices.Contains(got, "7") {
				msg := f.next(messages)
				got = append(got, string(msg.Payload))
				msg.Ack()
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			told := 0
			for _, line := range log.Lines() {
				if strings.HasSuffix(line.Msg, deletedLine) {
					told += int(line.Fields["deleted"].(int64))
				}
			}
			if told != c.deleted {
				t.Errorf("the log tells of %d, want %d: %s", told, c.deleted, log)
			}
		})
	}
}

// A stream is purged under a running subscription: what it did not hold is told.
func TestPurgedWhileRunning(t *testing.T) {
	t.Parallel()
	f := newField(t)
	log := testkit.NewLog()
	messages := testkit.Must(f.logged(log, func(c *nats.Config) { c.MaxInFlight = 1 }).Subscribe(t.Context(), "field.>"))(t)
	const held, n = 4, 20
	f.put(0, n)
	stuck := f.next(messages)
	testkit.Eventually(t, "some are held", func() bool { return f.pending() >= held })
	stream, err := f.js.Stream(t.Context(), "FIELD")
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	stuck.Ack()
	f.put(n, 1)
	got := 1
	for last := ""; last != fmt.Sprint(n); got++ {
		msg := f.next(messages)
		last = string(msg.Payload)
		msg.Ack()
	}
	lines := log.Lines()
	i := slices.IndexFunc(lines, func(line watermill.CapturedMessage) bool { return strings.HasSuffix(line.Msg, deletedLine) })
	if i < 0 || lines[i].Fields["deleted"] != int64(n+1-got) {
		t.Errorf("%d of %d came: %s", got, n+1, log)
	}
}

func (f *field) delete(sequence uint64) {
	f.Helper()
	stream, err := f.js.Stream(f.Context(), "FIELD")
	if err == nil {
		err = stream.DeleteMsg(f.Context(), sequence)
	}
	if err != nil {
		f.Logf("delete %d: %v", sequence, err)
	}
}

// A consumer of a part of the stream cannot tell what is of others, and says nothing.
func TestGapsOfOthers(t *testing.T) {
	t.Parallel()
	f := newField(t)
	log := testkit.NewLog()
	for i := range 4 {
		testkit.Must(f.js.Publish(t.Context(), "field.other", nil))(t)
		f.put(i, 1)
	}
	messages := f.subscribe(f.logged(log))
	for range 4 {
		f.next(messages).Ack()
	}
	if strings.Contains(log.String(), deletedLine) {
		t.Error(log)
	}
}

// Whatever goes while it reads, a subscriber for new messages passes over none that came since it began.
func TestNewOnlyIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		newOnly bool
		lose    func(f *field) // and store the messages 5 and 6
		again   []string       // may come again
		line    string
	}{
		"consumer deleted, new": {true, func(f *field) { f.deleteConsumer(); f.put(5, 2) }, []string{"2", "3", "4"}, "since it existed"},
		"consumer deleted":      {false, func(f *field) { f.deleteConsumer(); f.put(5, 2) }, []string{"0", "1", "2", "3", "4"}, "delivers the whole stream again"},
		"stream recreated, new": {true, func(f *field) { f.recreate(); f.put(5, 2) }, nil, "since it existed"},
		"stream recreated":      {false, func(f *field) { f.recreate(); f.put(5, 2) }, nil, "delivers the whole stream again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			f.put(0, 2)
			log := testkit.NewLog()
			messages := f.subscribe(f.logged(log, func(config *nats.Config) { config.NewOnly = c.newOnly }))
			f.put(2, 3)
			seen := map[string]bool{}
			until := func(last string) {
				for !seen[last] {
					msg := f.next(messages)
					seen[string(msg.Payload)] = true
					msg.Ack()
				}
			}
			until("4")
			if seen["0"] == c.newOnly || !seen["2"] || !seen["3"] {
				t.Errorf("got %v before", seen)
			}
			clear(seen)
			c.lose(f)
			until("6")
			for payload := range seen {
				if !slices.Contains(append(c.again, "5", "6"), payload) {
					t.Errorf("%s came again", payload)
				}
			}
			if !seen["5"] {
				t.Error("5 was passed over")
			}
			testkit.Contains(t, log.String(), c.line)
		})
	}
}

func (f *field) deleteConsumer() {
	f.Helper()
	testkit.NoError(f, f.js.DeleteConsumer(f.Context(), "FIELD", "out"))
}

func (f *field) recreate() {
	f.Helper()
	testkit.NoError(f, f.js.DeleteStream(f.Context(), "FIELD"))
	f.createStream()
}

// An existing durable goes on where it is, whatever NewOnly says.
func TestNewOnlyWithADurable(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.put(0, 1)
	s := f.subscriber()
	f.next(f.subscribe(s)).Ack()
	testkit.Eventually(t, "it is acked", func() bool { return f.pending() == 0 })
	testkit.NoError(t, s.Close())
	f.put(1, 1)
	if msg := f.next(f.subscribe(f.subscriber(func(c *nats.Config) { c.NewOnly = true }))); string(msg.Payload) != "1" {
		t.Errorf("got %s, want 1", msg.Payload)
	}
}

// What Subscribe is asked for and cannot read is an error.
func TestSubjectOfSubscribe(t *testing.T) {
	t.Parallel()
	f := newField(t)
	for name, c := range map[string]struct {
		stream, subject string
		want            error
	}{
		"found":                   {"", fieldSubject, nil},
		"of the stream":           {"FIELD", fieldSubject, nil},
		"part of it":              {"FIELD", "*.data", nil},
		"everything":              {"FIELD", ">", nil},
		"of no stream":            {"FIELD", "nothing.here", nats.ErrConfig},
		"shorter than the stream": {"FIELD", "field", nats.ErrConfig},
		"empty":                   {"FIELD", "", nats.ErrConfig},
		"an empty token":          {"FIELD", "field..data", nats.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := nats.New(nats.Config{
				Connection: sinknats.Connection{URL: f.server.URL()}, SubjectPrefix: sinknats.NoSubjectPrefix, Stream: c.stream,
				Durable: strings.NewReplacer("/", "-").Replace(t.Name()), CloseTimeout: time.Second,
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			var messages <-chan *message.Message
			if messages, err = s.Subscribe(t.Context(), c.subject); !errors.Is(err, c.want) || err == nil != (messages != nil) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, again := s.Subscribe(t.Context(), c.subject); !errors.Is(again, nats.ErrConfig) {
				t.Errorf("a second subscription: got %v, want ErrConfig", again)
			}
		})
	}
}
