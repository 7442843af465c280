package sinks_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

func TestPublicationIsResolvedOnce(t *testing.T) {
	var p sinks.Publication
	var order []string
	p.Then(func(r sinks.Receipt, err error) { order = append(order, "first "+r.Key) })
	p.Then(func(r sinks.Receipt, err error) { order = append(order, "second "+r.Key) })
	select {
	case <-p.Done():
		t.Fatal("Done is closed before the result is there")
	default:
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context: %v", err)
	}

	cause := errors.New("cause")
	if !p.Resolve(sinks.Receipt{Key: "a"}, cause) || p.Resolve(sinks.Receipt{Key: "b"}, nil) {
		t.Error("not the first call alone resolves")
	}
	p.Then(func(r sinks.Receipt, err error) { order = append(order, "late "+r.Key) })
	if len(order) != 3 || order[0] != "first a" || order[1] != "second a" || order[2] != "late a" {
		t.Errorf("called: %q", order)
	}
	<-p.Done()
	for range 2 {
		if r, err := p.Result(); r.Key != "a" || err != cause {
			t.Errorf("Result: %v, %v", r, err)
		}
	}
	if r, err := p.Wait(t.Context()); r.Key != "a" || !errors.Is(err, cause) {
		t.Errorf("Wait: %v, %v", r, err)
	}

	var asked sinks.Publication // for the first time after the result
	asked.Resolve(sinks.Receipt{}, nil)
	<-asked.Done()
}

// TestAwait: the error is that of the first message, and comes when all are resolved,
// or when a context ends.
func TestAwait(t *testing.T) {
	one, two, notSent := errors.New("one"), errors.New("two"), errors.New("not sent")
	messages := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil), message.NewMessage("3", nil)}
	publications := []*sinks.Publication{{}, {}}
	await := func(err error) <-chan error {
		result := make(chan error, 1)
		go func() { result <- sinks.Await(messages, publications, err) }()
		return result
	}
	ctx, cancel := context.WithCancel(t.Context())
	messages[2].SetContext(ctx)
	result := await(notSent)
	publications[1].Resolve(sinks.Receipt{}, two)
	select {
	case err := <-result:
		t.Fatalf("%v while the first message is on its way", err)
	default:
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}

	messages[2].SetContext(t.Context())
	result = await(notSent)
	publications[0].Resolve(sinks.Receipt{}, one)
	if err := <-result; err != one {
		t.Errorf("got %v, want that of the first message", err)
	}
	publications = []*sinks.Publication{publications[1]}
	publications[0] = &sinks.Publication{}
	publications[0].Resolve(sinks.Receipt{}, nil)
	if err := <-await(notSent); err != notSent {
		t.Errorf("got %v, want why the others were not sent", err)
	}
	if err := <-await(nil); err != nil {
		t.Errorf("all stored: %v", err)
	}
}

// TestPublisherThatHangsForPublications: Close resolves publications although the
// publisher does not return, and PublishAsync waits when there are too many.
func TestPublisherThatHangsForPublications(t *testing.T) {
	b := storeBackend{newStore(0)}
	sink := b.NewSink(t)
	b.Hang(t)
	var publications []*sinks.Publication
	for range 256 {
		p := testkit.Must(sink.PublishAsync("topic", message.NewMessage("1", nil)))(t)
		publications = append(publications, p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("one too many", nil)
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() {
		_, err := sink.PublishAsync("topic", msg)
		result <- err
	}()
	select {
	case err := <-result:
		t.Errorf("PublishAsync does not wait: %v", err)
	default:
	}
	cancel()
	testkit.ErrorIs(t, <-result, context.Canceled)
	testkit.NoError(t, sink.Close())
	for _, p := range publications {
		if _, err := p.Result(); !errors.Is(err, sinks.ErrClosed) {
			t.Fatalf("got %v, want ErrClosed", err)
		}
	}
	b.Resume(t)
}

// Whoever asks first to be told costs nothing.
func TestPublicationAllocations(t *testing.T) {
	told := 0
	f := func(sinks.Receipt, error) { told++ }
	if allocs := testing.AllocsPerRun(100, func() {
		p := &sinks.Publication{}
		p.Then(f)
		p.Resolve(sinks.Receipt{}, nil)
	}); allocs > 1 || told != 101 {
		t.Errorf("%v allocations, want that of the publication; told %d times", allocs, told)
	}
}
