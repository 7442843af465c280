package publisher_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
)

// onlyReader hides every other method of a reader.
type onlyReader struct{ io.Reader }

// A Body that can be read again is, from where it stands; any other is sent with one attempt.
func TestSendReadsTheBodyForEachAttempt(t *testing.T) {
	payload := strings.Repeat("large ", 100_000)
	path := filepath.Join(t.TempDir(), "file")
	testkit.NoError(t, os.WriteFile(path, []byte("head"+payload), 0o600))
	file := testkit.Must(os.Open(path))(t)
	defer func() { _ = file.Close() }()
	for name, test := range map[string]struct {
		body     io.Reader
		fault    gatewaytest.Fault
		requests int
		outcome  publisher.Outcome
	}{
		"file":                     {body: file, fault: gatewaytest.Fault{Status: 503, Times: 2}, requests: 3, outcome: publisher.Sent},
		"file, answer lost":        {body: file, fault: gatewaytest.Fault{DropAnswer: true, Times: 1}, requests: 2, outcome: publisher.Sent},
		"file, refused":            {body: file, fault: gatewaytest.Fault{Status: 400}, requests: 1, outcome: publisher.NotSent},
		"file, late refusal":       {body: file, fault: gatewaytest.Fault{Status: 400}, requests: 2, outcome: publisher.Unknown},
		"read once":                {body: onlyReader{strings.NewReader(payload)}, requests: 1, outcome: publisher.Sent},
		"read once, 503":           {body: onlyReader{strings.NewReader(payload)}, fault: gatewaytest.Fault{Status: 503}, requests: 1, outcome: publisher.Unknown},
		"read once, not connected": {body: onlyReader{strings.NewReader(payload)}, fault: gatewaytest.Fault{Refuse: true}, requests: 1, outcome: publisher.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			if name == "file, late refusal" {
				f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 1})
			}
			if test.requests > 1 || test.outcome != publisher.Sent {
				f.server.Inject(gatewaytest.OpSendMessage, test.fault)
			}
			if test.body == file {
				testkit.Must(file.Seek(int64(len("head")), io.SeekStart))(t)
			}
			id := uuid.NewString()
			err := f.publisher(f.config()).Send(t.Context(), publisher.Message{Type: typeJSON, UUID: id, Body: test.body, Size: int64(len(payload))})
			if got := f.server.Stats(gatewaytest.OpSendMessage).Requests; got != test.requests {
				t.Errorf("%d requests, want %d", got, test.requests)
			}
			if test.body == file {
				if at, err := file.Seek(0, io.SeekCurrent); at != int64(len("head")) {
					t.Errorf("the file stands at %d (%v), want where it stood", at, err)
				}
			}
			if test.outcome != publisher.Sent {
				if e := publishError(t, err); !slices.Equal(e.Outcomes, []publisher.Outcome{test.outcome}) || e.UUID != id {
					t.Errorf("%v; want %v", err, test.outcome)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range f.server.Ledger() {
				if e.PayloadSHA256 != sha256.Sum256([]byte(payload)) || e.ContextID != id {
					t.Errorf("%d bytes of %s arrived, want %d of %s", e.PayloadSize, e.ContextID, len(payload), id)
				}
			}
		})
	}
}

// Without a token that the service takes, nothing was sent. A Body that was read for the first request cannot be read for the next.
func TestSendWithoutTokenSendsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		once  bool
		token int // status
	}{
		"stale token, read once":   {once: true},
		"tokens refused":           {token: 401},
		"no tokens":                {once: true, token: 503},
		"every token refused":      {token: -1},
		"tokens refused, and once": {once: true, token: 401},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			p := f.publisher(f.config())
			testkit.NoError(t, p.Publish(typeJSON, newMessage(uuid.NewString()))) // has a token now
			f.server.ExpireTokens()
			if test.token > 0 {
				f.server.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: test.token})
			} else if test.token < 0 {
				f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 401})
			}
			var body io.Reader = strings.NewReader("1")
			if test.once {
				body = onlyReader{body}
			}
			err := p.Send(t.Context(), publisher.Message{Type: typeJSON, Body: body, Size: 1})
			if e := publishError(t, err); !slices.Equal(e.Outcomes, []publisher.Outcome{publisher.NotSent}) ||
				!errors.Is(err, sinks.ErrUnavailable) || !strings.HasSuffix(err.Error(), "; send it again") || f.entries() != 1 {
				t.Errorf("%v, %d messages arrived; want not sent", err, f.entries()-1)
			}
		})
	}
}

// What cannot be sent is never sent completely, nor with another size.
func TestSendRefuses(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	enveloped := f.config()
	enveloped.Marshaler = publisher.EnvelopeMarshaler{}
	metadata := func(key, value string) message.Metadata { return message.Metadata{key: value} }
	for name, test := range map[string]struct {
		cfg  publisher.Config
		m    publisher.Message
		text string
	}{
		"no body":          {m: publisher.Message{Size: 1}, text: "Body is required"},
		"no size":          {m: publisher.Message{Body: strings.NewReader("1")}, text: "Size must be the exact size of Body: it is longer"},
		"longer":           {m: publisher.Message{Body: strings.NewReader("123"), Size: 2}, text: "it is longer"},
		"shorter":          {m: publisher.Message{Body: strings.NewReader("123"), Size: 4}, text: "it is shorter"},
		"negative":         {m: publisher.Message{Body: strings.NewReader("1"), Size: -1}, text: "Size must not be negative"},
		"too large":        {m: publisher.Message{Body: strings.NewReader("1"), Size: 1 << 40}, text: "must have at most"},
		"with an envelope": {cfg: enveloped, m: publisher.Message{Body: strings.NewReader("1"), Size: 1}, text: "use Publish"},
		"another payload":  {m: publisher.Message{Body: strings.NewReader("1"), Size: 1, Metadata: metadata(gateway.KeyPayloadMode, gateway.PayloadModeLazy)}, text: "the payload is the Body"},
		"another type":     {m: publisher.Message{Body: strings.NewReader("1"), Size: 1, Metadata: metadata(gateway.KeyMessageType, "other")}, text: "a message has one type"},
		"header":           {m: publisher.Message{Body: strings.NewReader("1"), Size: 1, Metadata: metadata(gateway.KeyFilename, "a\nb")}, text: "metadata x-router-filename must not"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.cfg.Client == nil {
				test.cfg = f.config()
			}
			test.m.Type = typeJSON
			err := f.publisher(test.cfg).Send(t.Context(), test.m)
			if !errors.Is(err, gateway.ErrInvalid) || !errors.Is(err, sinks.ErrRejected) || !strings.Contains(err.Error(), test.text) {
				t.Fatalf("got %v, want %q", err, test.text)
			}
			if e := publishError(t, err); !slices.Equal(e.Outcomes, []publisher.Outcome{publisher.NotSent}) {
				t.Errorf("%v, want not sent", e.Outcomes)
			}
		})
	}
	if f.entries() != 0 {
		t.Errorf("%d messages arrived, want none", f.entries())
	}
	if err := f.publisher(f.config()).Send(t.Context(), publisher.Message{Type: typeJSON, Body: strings.NewReader("")}); err != nil || f.entries() != 1 {
		t.Errorf("an empty file: %v, %d messages arrived", err, f.entries())
	}
}

// Two bodies never share the context ID of the received message whose metadata they were sent with.
func TestSendNamesTheBody(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	received := message.Metadata{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyContextID: someID, gateway.KeyMessageType: typeJSON,
		gateway.KeyDedupID: "of the received",
	}
	for _, id := range []string{"", "", "report-1", "report-2"} {
		testkit.NoError(t, f.publisher(f.config()).Send(t.Context(), publisher.Message{
			Type: typeJSON, UUID: id, Metadata: received, Body: strings.NewReader("1"), Size: 1,
		}))
	}
	ids := map[string]bool{someID: true}
	for _, entry := range f.server.Ledger() {
		ids[entry.ContextID] = true
	}
	if len(ids) != 5 || received[gateway.KeyContextID] != someID {
		t.Errorf("sent as %v, with %v", ids, received)
	}
}

// A Body without bytes that does not end is refused: the Size was forgotten.
func TestSendOfABodyThatDoesNotEnd(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.server.ClientConfig()
	cfg.RequestTimeout = 20 * time.Millisecond
	client := testkit.Must(gateway.New(cfg))(t)
	defer client.Close()
	config := f.config()
	config.Client = client
	body, writer := io.Pipe()
	defer writer.Close()
	err := f.publisher(config).Send(t.Context(), publisher.Message{Type: typeJSON, Body: body})
	var invalid *gateway.ValidationError
	if !errors.As(err, &invalid) || invalid.Field != "Size" || f.entries() != 0 {
		t.Errorf("%v, %d messages arrived", err, f.entries())
	}
}

// Whoever ends the context of a call learns what became of each message: what was on its way is never
// told as not sent. The service has it here.
func TestOutcomesSurviveTheEndOfTheContext(t *testing.T) {
	for name, test := range map[string]struct {
		send func(context.Context, *publisher.Publisher) error
		want []publisher.Outcome // of a call whose last request hangs; nil: the context's error alone
		skip int
	}{
		"publish": {want: []publisher.Outcome{publisher.Sent, publisher.Unknown, publisher.NotSent}, skip: 1, send: func(ctx context.Context, p *publisher.Publisher) error {
			last := newMessage("3") // ends the call, although another one is on its way
			last.SetContext(ctx)
			return p.Publish(typeJSON, newMessage("1"), newMessage("2"), last)
		}},
		"publish asynchronously": {want: []publisher.Outcome{publisher.Unknown}, send: func(ctx context.Context, p *publisher.Publisher) error {
			msg := newMessage("1")
			msg.SetContext(ctx)
			publication, err := p.PublishAsync(typeJSON, msg)
			if err != nil {
				return err
			}
			_, err = publication.Wait(context.Background())
			return err
		}},
		"send": {want: []publisher.Outcome{publisher.Unknown}, send: func(ctx context.Context, p *publisher.Publisher) error {
			return p.Send(ctx, publisher.Message{Type: typeJSON, Body: strings.NewReader("1"), Size: 1})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			arrived := make(chan struct{}, 10)
			hang := f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true, Skip: test.skip, Match: func(*http.Request) bool {
				arrived <- struct{}{}
				return true
			}})
			defer hang.Lift()
			pub := f.publisher(f.config())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- test.send(ctx, pub) }()
			for range test.skip + 1 {
				testkit.Receive(t, "the request", arrived)
			}
			cancel()
			err := testkit.Receive(t, "the end of the call", done)
			var class *sinks.Error
			if !errors.Is(err, context.Canceled) || errors.As(err, &class) {
				t.Errorf("got %v, want the error of the context and no other class", err)
			}
			if e := publishError(t, err); !slices.Equal(e.Outcomes, test.want) || !strings.Contains(err.Error(), typeJSON+" to the subscribers) may have been sent") {
				t.Errorf("%v, want %v: %v", e.Outcomes, test.want, err)
			}
			if err := test.send(ctx, pub); err != context.Canceled { // nothing was sent, and there is nothing else to tell
				t.Errorf("with an ended context: %v", err)
			}
		})
	}
}
