package router_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// strictSink is a sink that stores nothing behind what fails. It wants the first messages alone.
type strictSink struct {
	t     *testing.T
	alone int
	work  sync.WaitGroup

	mu      sync.Mutex
	failed  bool
	open    int
	most    int // on their way at once
	stored  []string
	headers int
}

func (s *strictSink) Describe() sinks.Description {
	return sinks.Description{Name: "strict", Ordered: true, Pipelined: true, Strict: true}
}
func (*strictSink) CheckTopic(string) error { return nil }

func (s *strictSink) TopicSegment(v string) string { return sinks.DefaultSegments.Escape(v) }
func (s *strictSink) Health(context.Context) error { return nil }
func (s *strictSink) Close() error                 { s.work.Wait(); return nil }

func (s *strictSink) Publish(string, ...*message.Message) error {
	return errors.New("a message was published without a place")
}

func (s *strictSink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if standing := msgctx.StandingOf(msg.Context()); standing == nil || standing.Since().IsZero() || time.Since(standing.Since()) > testkit.Patience {
		s.t.Errorf("the sink is not told since when messages come: %v", standing)
	}
	if msg.Metadata[sinks.KeyOvertaken] != "" {
		s.headers++
	}
	p, payload := &sinks.Publication{}, string(msg.Payload)
	fails := payload == "1" && !s.failed
	s.failed = s.failed || fails
	if len(s.stored) < s.alone {
		p.HoldBehind()
	}
	s.open++
	s.most = max(s.most, s.open)
	s.work.Go(func() {
		<-time.After(5 * time.Millisecond)
		s.mu.Lock()
		s.open--
		if !fails {
			s.stored = append(s.stored, payload)
		}
		s.mu.Unlock()
		if fails {
			p.Resolve(sinks.Receipt{}, sinks.NewError("strict", topic, sinks.ErrUnavailable, nil))
			return
		}
		p.Resolve(sinks.Receipt{}, nil)
	})
	return p, nil
}

// What a sink wants alone has nothing of its key behind it until it is stored: neither the next
// message, nor the next that was made of the same one.
func TestHeldBehind(t *testing.T) {
	t.Parallel()
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	for i := range 3 {
		if _, err := server.Send(gatewaytest.SendRequest{
			From: sender.ID, MessageType: messageType, Payload: []byte(strconv.Itoa(2 * i)), Recipients: []string{receiver.ID},
		}); err != nil {
			t.Fatal(err)
		}
	}
	sink := &strictSink{t: t, alone: 100}
	client, err := gateway.New(server.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	sub, err := subscriber.New(subscriber.Config{Client: client, Confirm: subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, router.Config{Poison: newSink(nil), Retry: fastRetry}, router.Route{
		Name: "farm", From: sub, Topic: subscriber.AllData, To: shared{sink},
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			n, err := strconv.Atoi(string(msg.Payload))
			second := msg.Copy()
			second.Payload = []byte(strconv.Itoa(n + 1))
			return []*message.Message{msg, second}, err
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := server.WaitConfirmed(ctx, 3); err != nil {
		t.Fatal(err)
	}
	overtaken := sub.Stats().Overtaken
	if err := errors.Join(r.stop(), client.Close(), sink.Close()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0", "0", "1", "2", "3", "4", "5"}; !slices.Equal(sink.stored, want) {
		t.Errorf("stored %q, want %q", sink.stored, want)
	}
	if sink.most != 1 || sink.headers+int(overtaken) > 0 {
		t.Errorf("%d at once, want 1; %d marked, %d counted as overtaken", sink.most, sink.headers, overtaken)
	}
}
