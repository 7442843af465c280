package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func newPoison(t *testing.T, config router.PoisonConfig) *router.PoisonQueue {
	t.Helper()
	queue, err := router.NewPoisonQueue(config, nil)
	require.NoError(t, err)
	return queue
}

func TestPoisonKeepsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSink(nil)
		h := newPoison(t, router.PoisonConfig{Publisher: store, Name: "farm"}).Middleware(
			newRetry(t, router.RetryConfig{MaxAttempts: 3}).Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, errHandler
			}))
		first := time.Now()
		msg := farmMessage("1", "e", "c", "payload \x00 bytes")
		msg.Metadata[sinks.KeyDedupID] = "where it comes from"
		before := fmt.Sprint(msg.Metadata)
		_, err := h(msg)
		require.NoError(t, err)
		assert.Equal(t, before, fmt.Sprint(msg.Metadata), "the caller's message is not changed")

		require.Len(t, store.all(), 1)
		got := store.all()[0]
		assert.Equal(t, router.DefaultPoisonTopic, got.topic)
		assert.Equal(t, msg.UUID, got.msg.UUID)
		assert.Equal(t, msg.Payload, got.msg.Payload)
		for key, value := range msg.Metadata {
			if key != sinks.KeyDedupID {
				assert.Equal(t, value, got.msg.Metadata[key], key)
			}
		}
		meta := got.msg.Metadata
		assert.Equal(t, "handler failed", meta[router.KeyPoisonReason])
		assert.Equal(t, "handler", meta[router.KeyPoisonClass])
		assert.Equal(t, "farm", meta[router.KeyPoisonRoute])
		assert.Equal(t, "3", meta[router.KeyPoisonAttempts])
		assert.Equal(t, first.UTC().Format(time.RFC3339Nano), meta[router.KeyPoisonFirst])
		assert.Equal(t, time.Now().UTC().Format(time.RFC3339Nano), meta[router.KeyPoisonLast])
		assert.Equal(t, "1", meta[router.KeyPoisonCount])
		assert.Equal(t, "where it comes from", meta[router.KeyPoisonDedupID])
		assert.Empty(t, meta[sinks.KeyDedupID])

		// It is replayed and fails again: the history goes on.
		time.Sleep(time.Hour)
		_, err = h(got.msg)
		require.NoError(t, err)
		again := store.all()[1].msg.Metadata
		assert.Equal(t, "6", again[router.KeyPoisonAttempts])
		assert.Equal(t, "2", again[router.KeyPoisonCount])
		assert.Equal(t, meta[router.KeyPoisonFirst], again[router.KeyPoisonFirst])
		assert.NotEqual(t, meta[router.KeyPoisonLast], again[router.KeyPoisonLast])
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
				require.NoError(t, err)
				assert.Len(t, store.all(), 1)
			} else {
				require.ErrorIs(t, err, errHandler)
				assert.Empty(t, store.all())
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
		assert.Equal(t, router.ClassShutdown, router.Classify(err))
		assert.Empty(t, store.all())
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
	h := newPoison(t, router.PoisonConfig{Publisher: store}).Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, router.Permanent(errHandler)
	})
	_, err := h(message.NewMessageWithContext(ctx, "1", nil))
	require.NoError(t, err)
	assert.True(t, deadline)
}

func TestPoisonStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failure := range []error{errors.New("disk full"), sinks.NewError("s", "t", sinks.ErrTooLarge, nil)} {
			book := newLogBook()
			queue, err := router.NewPoisonQueue(router.PoisonConfig{
				Publisher: newSink(func(string, *message.Message) error { return failure }),
			}, book)
			require.NoError(t, err)
			h := queue.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) })
			began := time.Now()
			for range 10 {
				_, err = h(message.NewMessage("1", nil))
				require.ErrorIs(t, err, errHandler)
				require.ErrorIs(t, err, failure)
				assert.Equal(t, router.ClassOutage, router.Classify(err), "open, not poisoned by a queue further out")
			}
			assert.GreaterOrEqual(t, time.Since(began), 5*time.Second, "not in a tight loop")
			errorLines := 0
			for _, line := range book.all() {
				if strings.HasPrefix(line, "ERROR") {
					errorLines++
				}
			}
			assert.Equal(t, 1, errorLines, "logged once")
		}
	})
}

func TestPoisonPanickingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPoison(t, router.PoisonConfig{Publisher: newSink(func(string, *message.Message) error { panic("x") })}).
			Middleware(func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) })
		_, err := h(message.NewMessage("1", nil))
		require.ErrorIs(t, err, errHandler)
	})
}

func TestPoisonConfigValidate(t *testing.T) {
	_, err := router.NewPoisonQueue(router.PoisonConfig{}, nil)
	require.ErrorIs(t, err, router.ErrConfig)
	_, err = router.NewPoisonQueue(router.PoisonConfig{Publisher: newSink(nil), Timeout: -1}, nil)
	require.ErrorIs(t, err, router.ErrConfig)
}

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
		{"control characters", "a\r\nb\x00c", "a  b c"},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, router.RedactError(errors.New(test.text), msg))
		})
	}
	assert.Empty(t, router.RedactError(nil, msg))
	assert.Equal(t, "x", router.RedactError(errors.New("x"), nil))
	long := router.RedactError(errors.New(strings.Repeat("ä", 100_000)), nil)
	assert.LessOrEqual(t, len(long), 512)
	assert.True(t, strings.HasSuffix(long, "ä…"), long)
	short := message.NewMessage("1", []byte("12345678"))
	assert.Equal(t, "bad [payload]", router.RedactError(errors.New("bad 12345678"), short))
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
