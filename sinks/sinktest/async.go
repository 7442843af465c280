package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// result waits for a publication, from the goroutine of the test.
func result(t *testing.T, p *sinks.Publication) (sinks.Receipt, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	receipt, err := p.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatalf("a publication is not resolved after %v", testkit.Patience)
	}
	return receipt, err
}

// publishAsync publishes one message for each payload, without waiting for any.
func publishAsync(t *testing.T, sink sinks.Sink, topic string, payloads ...string) []*sinks.Publication {
	t.Helper()
	publications := make([]*sinks.Publication, len(payloads))
	for i, payload := range payloads {
		var err error
		if publications[i], err = sink.PublishAsync(topic, newMessage(payload)); err != nil {
			t.Fatalf("PublishAsync: %v", err)
		}
	}
	return publications
}

func numbers(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%04d", i) // sorted as they are
	}
	return all
}

// testAsyncStores: what is published stays in its order, a call of Publish in between takes its place behind the publications
// before it, and each receipt is that of its message.
func testAsyncStores(t *testing.T, h Suite) {
	b, sink := start(t, h)
	const topic = "async.stores"
	want := numbers(400) // more than are under way at once in most sinks
	publications := publishAsync(t, sink, topic, want[:200]...)
	publish(t, sink, topic, newMessage(want[200]), newMessage(want[201]))
	publications = append(publications, publishAsync(t, sink, topic, want[202:]...)...)
	sent := slices.Delete(slices.Clone(want), 200, 202)
	receipts := map[sinks.Receipt]bool{}
	for i, p := range publications {
		receipt, err := result(t, p)
		if err != nil || receipt.Duplicate {
			t.Fatalf("message %s: %+v, %v", sent[i], receipt, err)
		}
		receipts[receipt] = true
		if h.Features.AtReceipt == nil || i%20 > 0 { // it may be expensive
			continue
		}
		if got := h.Features.AtReceipt(t, b, topic, receipt); got == nil || string(got.Payload) != sent[i] {
			t.Errorf("message %s is not where %+v says", sent[i], receipt)
		}
	}
	if h.Features.AtReceipt != nil && len(receipts) != len(sent) {
		t.Errorf("%d receipts of %d messages", len(receipts), len(sent))
	}
	got := payloads(b.Read(t, topic))
	if !sink.Describe().Ordered {
		slices.Sort(got)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the topic holds %d messages %.200q, want %d in their order", len(got), got, len(want))
	}
}

// testAsyncDuplicate: a copy is reported, with the receipt of the first one.
func testAsyncDuplicate(t *testing.T, h Suite) {
	b, sink := start(t, h)
	var receipts [2]sinks.Receipt
	for i := range receipts {
		msg := newMessage(fmt.Sprint("copy ", i))
		msg.Metadata[gateway.KeyDedupID] = "an id"
		p := testkit.Must(sink.PublishAsync("async.duplicate", msg))(t)
		receipts[i] = testkit.Must(result(t, p))(t)
	}
	wantPayloads(t, b, "async.duplicate", "copy 0")
	first := receipts[0]
	first.Duplicate = true
	if receipts[0].Duplicate || receipts[1] != first {
		t.Errorf("receipts %+v", receipts)
	}
}

// asyncError returns the error of a publication, wherever it shows.
func asyncError(t *testing.T, sink sinks.Sink, topic string, msg *message.Message) error {
	t.Helper()
	p, err := sink.PublishAsync(topic, msg)
	if err != nil {
		if p != nil {
			t.Error("PublishAsync returned an error and a publication")
		}
		return err
	}
	_, err = result(t, p)
	return err
}

// testAsyncClose: Close while publications are under way resolves every one, and what
// is reported as stored is.
func testAsyncClose(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	const topic = "async.close"
	all := numbers(100)
	publications := publishAsync(t, sink, topic, all...)
	testkit.Ends(t, "Close", func() { closeSink(t, sink) })
	wantResolved(t, b, topic, all, publications, sinks.ErrClosed)
}

// wantResolved fails the test unless every publication is resolved without an error, or
// with one of these kinds, and what is reported as stored is.
func wantResolved(t *testing.T, b Backend, topic string, sent []string, publications []*sinks.Publication, kinds ...error) {
	t.Helper()
	held := payloads(b.Read(t, topic))
	for i, p := range publications {
		_, err := result(t, p)
		if err == nil {
			if !slices.Contains(held, sent[i]) {
				t.Errorf("%s was acked and is not stored", sent[i])
			}
			continue
		}
		if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
			t.Errorf("%s: %v", sent[i], err)
		}
	}
}

// testAsyncOutage: a broker that goes away while publications are under way resolves
// every one, and those that it stored are in their order.
func testAsyncOutage(t *testing.T, h Suite) {
	b, sink := start(t, h)
	const topic = "async.outage"
	publish(t, sink, topic, newMessage("-"))
	var sent []string
	var publications []*sinks.Publication
	failed := false
	for i, payload := range numbers(300) {
		if i == 100 {
			b.Break(t)
		}
		p, err := sink.PublishAsync(topic, newMessage(payload))
		if err != nil {
			failed = true
			wantKind(t, "PublishAsync", err, sinks.ErrUnavailable)
			if i > 100 {
				break
			}
			continue
		}
		sent, publications = append(sent, payload), append(publications, p)
	}
	for _, p := range publications {
		if _, err := result(t, p); err != nil {
			failed = true
		}
	}
	if !failed {
		t.Error("nothing failed without a broker")
	}
	b.Repair(t)
	recovered(t, sink, topic, "recovered")
	wantResolved(t, b, topic, sent, publications, sinks.ErrUnavailable)
	got := payloads(b.Read(t, topic))
	got = slices.DeleteFunc(got, func(payload string) bool { return payload == "-" || payload == "recovered" })
	if sink.Describe().Ordered && !slices.IsSorted(got) {
		t.Errorf("stored in another order: %q", got)
	}
}

// testAsyncWhileHanging: neither a broker that does not answer nor one that is full
// holds a caller longer than its context, and Close resolves what is under way.
func testAsyncWhileHanging(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	const topic = "async.hang"
	publish(t, sink, topic, newMessage("before"))
	b.Hang(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var sent []string
	var publications []*sinks.Publication
	testkit.Ends(t, "PublishAsync", func() {
		for _, payload := range numbers(2000) {
			msg := newMessage(payload)
			msg.SetContext(ctx)
			p, err := sink.PublishAsync(topic, msg)
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sinks.ErrUnavailable) {
					t.Errorf("PublishAsync: %v", err)
				}
				return
			}
			sent, publications = append(sent, payload), append(publications, p)
		}
	})
	testkit.Ends(t, "Close", func() { _ = sink.Close() })
	for _, p := range publications { // although the broker still hangs
		_, _ = result(t, p)
	}
	b.Resume(t)
	wantResolved(t, b, topic, sent, publications, sinks.ErrClosed, sinks.ErrUnavailable, context.DeadlineExceeded)
}
