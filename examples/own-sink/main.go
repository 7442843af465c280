// Command own-sink shows how to deliver messages to something that agrimill has no sink
// for. The type webhook is all it takes; main_test.go runs the conformance suite for sinks
// on it. The rest moves messages from a gateway to a service that accepts webhooks, and
// checks the result. The last line of the output is
//
//	OK: 100 messages confirmed, 101 requests: one was refused and retried
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// webhook posts each message as a form. It is a Watermill publisher.
type webhook struct {
	url    string
	client *http.Client
}

// newSink turns a webhook into a sink. FromPublisher adds what all sinks have in common:
// they respect the contexts of messages, and Close waits for calls of Publish.
func newSink(url string, timeout time.Duration) sinks.Sink {
	hook := &webhook{url: url, client: &http.Client{
		Timeout: timeout, Transport: &http.Transport{},
		// A redirected POST becomes a GET: it would succeed without delivering anything.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return sinks.FromPublisher("webhook", hook, sinks.PublisherConfig{Health: func(ctx context.Context) error {
		return hook.request(ctx, http.MethodGet, nil)
	}})
}

// Publish returns nil only if the service has accepted every message.
func (h *webhook) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		form := url.Values{"topic": {topic}, "uuid": {msg.UUID}, "payload": {string(msg.Payload)}}
		for name, value := range msg.Metadata {
			form.Set("metadata."+name, value)
		}
		if err := h.request(msg.Context(), http.MethodPost, form); err != nil {
			return err
		}
	}
	return nil
}

func (h *webhook) request(ctx context.Context, method string, form url.Values) error {
	req, err := http.NewRequestWithContext(ctx, method, h.url, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := h.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // so that the connection is reused
		return err
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent:
		return nil
	case http.StatusRequestEntityTooLarge: // to the claim check, or to the poison queue
		return fmt.Errorf("%w: %s", sinks.ErrTooLarge, resp.Status)
	case http.StatusBadRequest, http.StatusUnprocessableEntity: // to the poison queue
		return fmt.Errorf("%w: %s", sinks.ErrRejected, resp.Status)
	default: // an outage: retried until it succeeds, like connection errors
		return fmt.Errorf("%w: %s", sinks.ErrUnavailable, resp.Status)
	}
}

// Close is called after the last Publish has returned.
func (h *webhook) Close() error {
	h.client.CloseIdleConnections()
	return nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := demo(ctx, 100, "iso:11783:-10:taskdata:zip"); err != nil {
		log.Fatal(err)
	}
}

func demo(ctx context.Context, count int, messageType string) error {
	var requests atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer service.Close()
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	for range count {
		if _, err := gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte("task data")}); err != nil {
			return err
		}
	}

	sink := newSink(service.URL, 10*time.Second)
	defer sink.Close()
	sub, err := subscriber.New(subscriber.Config{Client: gate.Client()}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: sink}, nil)
	if err != nil {
		return err
	}
	if err := r.Add(router.Route{Name: "webhook", From: sub, Topic: subscriber.AllData, To: sink}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- r.Run(running) }()
	err = gate.WaitConfirmed(ctx, count)
	stop()
	if err := errors.Join(err, <-result); err != nil {
		return err
	}
	if got := requests.Load(); got != int64(count)+1 {
		return fmt.Errorf("%d requests for %d messages", got, count)
	}
	fmt.Printf("OK: %d messages confirmed, %d requests: one was refused and retried\n", count, requests.Load())
	return nil
}
