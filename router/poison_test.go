package router_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func newPoison(t *testing.T, config router.PoisonConfig) *router.PoisonQueue {
	t.Helper()
	queue := testkit.Must(router.NewPoisonQueue(config, nil))(t)
	return queue
}

func TestPoisonKeepsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSink(nil)
		h := newPoison(t, router.PoisonConfig{Publisher: store, Name: "farm"}).Middleware(
			newRetry(t, router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 3}}).Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, errHandler
			}))
		now := func() string { return time.Now().UTC().Format(time.RFC3339Nano) }
		first := now()
		msg := farmMessage("1", "e", "c", "payload \x00 bytes")
		msg.Metadata[gateway.KeyDedupID] = "where it comes from"
		before := maps.Clone(msg.Metadata)
		handle(t, h, msg)
		testkit.Equal(t, msg.Metadata, before) // the caller's message is not changed

		store.wantStored(t, 1)
		got := store.all()[0]
		if got.topic != router.DefaultPoisonTopic || got.msg.UUID != msg.UUID || !bytes.Equal(got.msg.Payload, msg.Payload) {
			t.Errorf("stored %s with %q in %q, want %s with %q in %q", got.msg.UUID, got.msg.Payload, got.topic, msg.UUID, msg.Payload, router.DefaultPoisonTopic)
		}
		before[gateway.KeyDedupID] = ""
		wantMetadata(t, got.msg, before)
		wantMetadata(t, got.msg, map[string]string{
			router.KeyPoisonReason: "handler failed", router.KeyPoisonClass: "handler", router.KeyPoisonRoute: "farm",
			router.KeyPoisonAttempts: "3", router.KeyPoisonFirst: first, router.KeyPoisonLast: now(), router.KeyPoisonCount: "1",
			router.KeyPoisonDedupID: "where it comes from",
		})

		// It is replayed and fails again: the history goes on.
		time.Sleep(time.Hour)
		handle(t, h, got.msg)
		wantMetadata(t, store.all()[1].msg, map[string]string{
			router.KeyPoisonAttempts: "6", router.KeyPoisonFirst: first, router.KeyPoisonLast: now(), router.KeyPoisonCount: "2",
		})
	})
}

func TestPoisonTakesOnlyVerdicts(t *testing.T) {
	tests := map[router.Class]bool{
		router.ClassPermanent: true, router.ClassHandler: true,
		router.ClassOutage: false, router.ClassShutdown: false, router.ClassRedeliver: false,
	}
	for class, poisoned := range tests {
		t.Run(class.String(), func(t *testing.T) {
			store := newSink(nil)
			h := newPoison(t, router.PoisonConfig{Publisher: store}).Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, router.WithClass(errHandler, class)
			})
			_, err := h(message.NewMessage("1", nil))
			if poisoned {
				if err != nil {
					t.Fatal(err)
				}
				store.wantStored(t, 1)
			} else {
				testkit.ErrorIs(t, err, errHandler)
				store.wantStored(t, 0)
			}
		})
	}
}

// Whatever a handler says when its context has ended, nothing is poisoned.
func TestPoisonNothingAfterContextEnd(t *testing.T) {
	for _, failure := range []error{errHandler, router.Permanent(errHandler), context.Canceled} {
		store := newSink(nil)
		ctx, cancel := context.WithCancel(t.Context())
		h := newPoison(t, router.PoisonConfig{Publisher: store}).Middleware(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, failure
		})
		_, err := h(message.NewMessageWithContext(ctx, "1", nil))
		wantClass(t, err, router.ClassRedeliver)
		store.wantStored(t, 0)
	}
}

// A verdict that is known is written down during a shutdown.
func TestPoisonPublishOutlivesContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var deadline bool
	store := newSink(func(_ string, msg *message.Message) error {
		cancel()
		_, deadline = msg.Context().Deadline()
		return msg.Context().Err()
	})
	handle(t, newPoison(t, router.PoisonConfig{Publisher: store}).Middleware(broken), message.NewMessageWithContext(ctx, "1", nil))
	if !deadline {
		t.Error("nothing ends the publish, want a deadline")
	}
}

func TestPoisonStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failure := range []error{errors.New("disk full"), sinks.NewError("s", "t", sinks.ErrTooLarge, nil)} {
			book := testkit.NewLog()
			queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: newSink(func(string, *message.Message) error { return failure })}, book)
			if err != nil {
				t.Fatal(err)
			}
			h, began := queue.Middleware(broken), time.Now()
			for range 10 {
				_, err = h(message.NewMessage("1", nil))
				testkit.ErrorIs(t, err, errHandler)
				testkit.ErrorIs(t, err, failure)
				wantClass(t, err, router.ClassOutage) // open, not poisoned by a queue further out
			}
			if got, want := time.Since(began), 5*time.Second; got < want {
				t.Errorf("10 attempts took %v, want at least %v: not in a tight loop", got, want)
			}
			if got := len(book.Lines(watermill.ErrorLogLevel)); got != 1 {
				t.Errorf("%d lines, want 1: logged once", got)
			}
		}
	})
}

func TestPoisonPanickingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPoison(t, router.PoisonConfig{Publisher: newSink(func(string, *message.Message) error { panic("x") })}).
			Middleware(broken)
		_, err := h(message.NewMessage("1", nil))
		testkit.ErrorIs(t, err, errHandler)
	})
}

// What a sink cannot store is refused where it is configured: the topics of routes, with their fallbacks, and that
// of the poison queue.
func TestTopicsThatTheSinkCannotStore(t *testing.T) {
	for _, c := range []struct {
		topic, poison string
		ok            bool
	}{
		{"", "", true},
		{"{tenant}.{type|no type}", "poison", true},
		{"plain.{type}", "dead.letters", true},
		{"t/{type}", "", false},
		{"{type}.", "", false},
		{"a..{type|none}", "", false},
		{"", "dead/letters", false},
		{"", "dead letters", false},
		{"", ".", false},
	} {
		sink := sinks.FromPublisher("own", newSink(nil), sinks.PublisherConfig{Topics: oneWordTopics{}})
		r, err := router.New(router.Config{Poison: wrapped{sink}, PoisonTopic: c.poison}, nil)
		if err == nil {
			err = r.Add(router.Route{Name: "farm", From: newSource(), Topic: "all", To: wrapped{sink}, ToTopic: c.topic})
			_ = r.Close()
		}
		if (err == nil) != c.ok || err != nil && !(errors.Is(err, router.ErrConfig) && errors.Is(err, sinks.ErrRejected)) {
			t.Errorf("topic %q, poison topic %q: got %v, want an error: %t", c.topic, c.poison, err, !c.ok)
		}
	}
}

// oneWordTopics takes topics of escaped words.
type oneWordTopics struct{ sinks.AnyTopics }

func (oneWordTopics) CheckTopic(topic string) error {
	for segment := range strings.SplitSeq(topic, ".") {
		if _, err := sinks.DefaultSegments.Unescape(segment); err != nil {
			return err
		}
	}
	return nil
}

// A sender names its message type like the poison queue, which is in the same sink, or like what that makes of its name.
func TestNoMessageHasTheTopicOfThePoisonQueue(t *testing.T) {
	for _, poison := range []string{router.DefaultPoisonTopic, "dead letters"} {
		t.Run(poison, func(t *testing.T) { testTopicOfThePoisonQueue(t, poison) })
	}
}

func testTopicOfThePoisonQueue(t *testing.T, poison string) {
	both, from := newSink(nil), newSource()
	start(t, router.Config{Poison: both, PoisonTopic: poison, Retry: fastRetry}, router.Route{
		Name: "farm", From: from, Topic: "all", To: wrapped{both}, ToTopic: "{type}",
		Filter: func(msg *message.Message) (bool, error) {
			if string(msg.Payload) == "bad" {
				panic("bad")
			}
			return true, nil
		},
	})
	send := func(i int, messageType, payload string) storedMessage {
		msg := farmMessage(strconv.Itoa(i), "endpoint", "context"+strconv.Itoa(i), payload)
		msg.Metadata[gateway.KeyMessageType] = messageType
		from.deliver(t, msg)
		return both.wait(t, i+1)[i]
	}
	types := []string{poison, poison + "\x00", poison + "\x00\x00", poison + "%00", poison + "ed", poison[:4]}
	topics := map[string]bool{sinks.DefaultSegments.Escape(poison): true}
	for i, messageType := range types {
		got := send(i, messageType, "payload")
		wantMetadata(t, got.msg, map[string]string{gateway.KeyMessageType: messageType})
		wantNoPoison(t, got.msg)
		topics[got.topic] = true
		name, err := sinks.DefaultSegments.Unescape(got.topic)
		if err != nil || name != messageType && name != messageType+"\x00" {
			t.Errorf("type %q is in topic %q, %v", messageType, got.topic, err)
		}
	}
	if len(topics) != 1+len(types) {
		t.Errorf("the topics are %v, want one for each type, and none that of the poison queue", topics)
	}
	if got := send(len(types), poison, "bad").topic; got != poison {
		t.Errorf("what is poisoned is in %q, want %q", got, poison)
	}
}

func TestPoisonTopicOfARoute(t *testing.T) {
	both := newSink(nil)
	r := build(t, router.Config{Poison: both, PoisonTopic: "dead"})
	route := router.Route{Name: "farm", From: newSource(), Topic: "all", To: wrapped{both}, ToTopic: "dead"}
	testkit.ErrorIs(t, r.Add(route), router.ErrConfig)
	route.To = newSink(nil) // has a topic of that name to itself
	testkit.NoError(t, r.Add(route))
}

// wrapped is a sink with something around it.
type wrapped struct{ sinks.Sink }

func (w wrapped) Unwrap() sinks.Sink { return w.Sink }

func TestRedactError(t *testing.T) {
	payload := "lat=52.1234567890;lon=9.9876543210;field=Hinterm Deich"
	msg := message.NewMessage("1", []byte(payload))
	tests := []struct{ name, text, want string }{
		{"plain", "no such field", "no such field"},
		{"query", "GET https://host/p/a?sig=secret&x=1: 403", "GET https://host/p/a?…: 403"},
		{"userinfo", "dial nats://user:pass@host:4222: refused", "dial nats://host:4222: refused"},
		{"fragment", "see https://host/p#token=1", "see https://host/p?…"},
		{"quoted address", `Get "https://host/p?sig=secret": EOF`, `Get "https://host/p?…": EOF`},
		{"payload", "cannot parse " + payload + " at all", "cannot parse [payload] at all"},
		{"piece of payload", `bad value "lon=9.9876543210;f"`, `bad value "[payload]"`},
		{"two pieces", payload[:20] + " and " + payload[30:], "[payload] and [payload]"},
		{"short words stay", "field lat is missing", "field lat is missing"},
		{"control characters", "a\rb\x00c", "a b c"},
		{"a line break of Windows", "a\r\nb\x00c", "a; b c"},
		{"joined errors", "a\nb\n", "a; b"},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := router.RedactError(errors.New(test.text), msg); got != test.want {
				t.Errorf("RedactError = %q, want %q", got, test.want)
			}
		})
	}
	if got := router.RedactError(nil, msg); got != "" {
		t.Errorf("router.RedactError(nil, msg) = %q, want none", got)
	}
	if got := router.RedactError(errors.New("x"), nil); got != "x" {
		t.Errorf("RedactError = %q, want x", got)
	}
	long := router.RedactError(errors.New(strings.Repeat("ä", 100_000)), nil)
	if len(long) > 512 {
		t.Errorf("len(long) = %d, want at most 512", len(long))
	}
	if !strings.HasSuffix(long, "ä…") {
		t.Errorf("the reason is cut to %q, want a whole letter and an ellipsis at its end", long)
	}
	// The @ that ends a password is behind the place where the text is cut short.
	field := strings.Repeat("0123456789abcdef", 125)
	cut := router.RedactError(errors.New(field+" at nats://farmer:s3cr-and-much-longer-than-that-so-that-it-is-cut@host"), message.NewMessage("1", []byte(field)))
	if got, want := cut, "[payload] at nats://host"; got != want {
		t.Errorf("cut = %q, want %q", got, want)
	}
	short := message.NewMessage("1", []byte("12345678"))
	if got, want := router.RedactError(errors.New("bad 12345678"), short), "bad [payload]"; got != want {
		t.Errorf("RedactError = %q, want %q", got, want)
	}
}

func FuzzRedactErrorShowsNoSecret(f *testing.F) {
	f.Add("dial ", "s3cr@zzet", ": refused", "payload", true)
	f.Add(strings.Repeat("0123456789abcdef", 127), "s3cr/zzet and more", ": refused", "0123456789abcdef", true)
	f.Add("", "s3cr et", "", "", false)
	f.Fuzz(func(t *testing.T, before, secret, after, payload string, userinfo bool) {
		if len(secret) < 6 || strings.Contains(secret, "://") || len(before)+len(secret) > 60<<10 {
			return // no address that can be told from the rest
		}
		text := func(secret string) string {
			if userinfo {
				return before + "nats://farmer:" + secret + "@broker.example:4222" + after
			}
			return before + " " + strconv.Quote("https://store.example/p/17?signature="+secret) + " " + after
		}
		msg := message.NewMessage("1", []byte(payload))
		got, rest := router.RedactError(errors.New(text(secret)), msg), text("")
		// What the secret has in common with the rest is no secret.
		if strings.Contains(got, secret) && !strings.Contains(rest+router.RedactError(errors.New(rest), msg), secret) {
			t.Fatalf("%q\nbecame %q", text(secret), got)
		}
	})
}

func FuzzRedactErrorShowsNoPayload(f *testing.F) {
	f.Add("some error: ", "a payload that is long enough to be found", " the end")
	f.Add("http://u:p@h/", "a?b=0123456789abcdef", "#")
	f.Fuzz(func(t *testing.T, before, payload, after string) {
		if len(payload) < 16 {
			return
		}
		text := router.RedactError(errors.New(before+payload+after), message.NewMessage("1", []byte(payload)))
		if len(text) > 512 {
			t.Fatalf("%d bytes", len(text))
		}
		// What is searched is the text as it comes out, so only runs that
		// redaction itself cannot have made count.
		for i := 0; i+16 <= len(payload); i++ {
			run := payload[i : i+16]
			if strings.Contains(text, run) && !strings.Contains("[payload]\uFFFD…  ", run) && !strings.Contains(before+after, run) {
				if strings.ContainsAny(run, " \uFFFD") || strings.Contains(run, "payload") {
					continue
				}
				t.Fatalf("%q holds %q of the payload", text, run)
			}
		}
	})
}

// telling is a publisher that tells where messages are, as sinks do.
type telling struct{ sinks.Receipt }

func (p telling) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		sinks.ReportStored(msg, p.Receipt)
	}
	return nil
}

func (telling) Close() error { return nil }

// The observer learns where the queue has a message; nobody else is told that a sink stored it.
func TestPoisonTellsWhere(t *testing.T) {
	for _, receipt := range []sinks.Receipt{{Stream: "QUEUE", Subject: "queue.poison", Sequence: 7}, {}} {
		var events []router.Event
		h := newPoison(t, router.PoisonConfig{
			Publisher: telling{receipt}, Name: "farm", Observer: router.ObserverFunc(func(e router.Event) { events = append(events, e) }),
		}).Middleware(broken)
		handle(t, h, farmMessage("1", "e", "c", "payload"))
		if len(events) != 1 || events[0].Kind != router.EventPoisoned || events[0].Receipt != receipt {
			t.Errorf("events: %+v, want one with %+v", events, receipt)
		}
	}
}

// The line of a poisoned message has what people ask for: the file's name, and the ID by
// which sender and receiver know it.
func TestPoisonLineNamesTheMessage(t *testing.T) {
	logger := testkit.NewLog()
	queue := testkit.Must(router.NewPoisonQueue(router.PoisonConfig{Publisher: newSink(nil), Name: "farm"}, logger))(t)
	h := queue.Middleware(broken)
	msg := farmMessage("1", "e", "context 1", "p")
	msg.Metadata[gateway.KeyFilename] = strings.Repeat("ü", 1000)
	handle(t, h, msg)
	lines := logger.Lines(watermill.ErrorLogLevel)
	if len(lines) != 1 {
		t.Fatalf("lines has %d elements, want 1", len(lines))
	}
	testkit.Equal(t, lines[0].Fields, watermill.LogFields{
		"route": "farm", "message_uuid": "1", "class": "permanent", "poison_topic": "poison", "attempts": 1,
		"context_id": "context 1", "filename": strings.Repeat("ü", 126) + "…", "message_type": "iso:11783:-10:taskdata:zip",
	})

	// A route that poisons everything tells some, and how many it did not tell.
	for range 5000 {
		handle(t, h, msg)
	}
	if n := len(logger.Lines(watermill.ErrorLogLevel)); n != 20 {
		t.Errorf("Lines has %d elements, want 20", n)
	}
	if n := len(logger.Lines(watermill.DebugLogLevel)); n != 4981 {
		t.Errorf("Lines has %d elements, want 4981", n)
	}
}

// A route that reads the poison queue, as into an archive, passes on why each record is there. What comes again to where it was
// received, as from Watermill's Requeuer, leaves that behind.
func TestRecordsOfThePoisonQueueAreRead(t *testing.T) {
	for name, again := range map[string]bool{"in the poison queue": false, "where it was received": true} {
		from, to := newSource(), newSink(nil)
		record := poisonRecord("1", 0)
		record.Metadata[router.KeyPoisonReason], record.Metadata[router.KeyPoisonTopic] = "handler failed", "in"
		route := router.Route{Name: "archive", From: from, Topic: "poison", To: to, ToTopic: "archive"}
		if again {
			route.Topic = "in"
		}
		want := record.Copy().Metadata
		r := start(t, router.Config{Poison: newSink(nil)}, route)
		from.deliver(t, record)
		r.wantStop(t)
		got := to.wait(t, 1)[0].msg
		if again {
			wantNoPoison(t, got)
		} else if delete(got.Metadata, gateway.KeyDedupID); !maps.Equal(got.Metadata, want) {
			t.Errorf("%s: %v, want %v", name, got.Metadata, want)
		}
	}
}
