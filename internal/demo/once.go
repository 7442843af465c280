package demo

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Fate is what became of a file that was sent once.
type Fate struct {
	File
	// Chunks are the messages that the gateway made of it.
	Chunks int
	// Subject is where NATS has its bytes; empty: nowhere.
	Subject             string
	Received, Confirmed bool

	contextID string
}

// Report is what became of all of them.
type Report struct {
	Files []Fate
	// Poisoned are the messages in the poison queue, Mismatched those elsewhere in NATS with other bytes than any
	// file, or a second time.
	Poisoned, Mismatched int
}

// SendOnce sends each file of the last machine, whose samples have one that the gateway splits.
func (w *World) SendOnce(ctx context.Context) (r Report, err error) {
	farm := w.Farms[len(w.Farms)-1]
	m := farm.machines[len(farm.machines)-1]
	for !w.receives(farm.Tenant) {
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, file := range m.files {
		request := sending(farm, m, file)
		if err := w.client.SendMessage(ctx, request); err != nil {
			return r, fmt.Errorf("sending %s: %w", farmfile.Printable(file.Name), err)
		}
		r.Files = append(r.Files, Fate{File: file, contextID: request.ContextID})
	}
	return r, nil
}

// Check completes a report by what the gateway says, and by all that is in NATS, read with its own client.
func (w *World) Check(ctx context.Context, r *Report) error {
	conn, err := natsgo.Connect(w.NATS.URL(), natsgo.Timeout(patience))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, nats.DefaultStream)
	if err != nil {
		return err
	}
	for at := uint64(1); at <= stream.CachedInfo().State.LastSeq; at++ {
		msg, err := stream.GetMsg(ctx, at)
		if err != nil {
			return err
		}
		r.found(msg.Subject, msg.Data)
	}
	ledger := w.Gateway.Ledger()
	for i := range r.Files {
		f := &r.Files[i]
		f.Received, f.Confirmed = true, true
		for _, e := range ledger {
			if e.ContextID == f.contextID {
				f.Chunks++
				f.Received = f.Received && len(e.Deliveries)+len(e.FileDeliveries) > 0
				f.Confirmed = f.Confirmed && e.Confirmed()
			}
		}
		f.Received, f.Confirmed = f.Received && f.Chunks > 0, f.Confirmed && f.Chunks > 0
	}
	return nil
}

// found counts a message in NATS. Two files may be equal: each message is that of one.
func (r *Report) found(subject string, data []byte) {
	i := slices.IndexFunc(r.Files, func(f Fate) bool { return f.Subject == "" && bytes.Equal(f.Data, data) })
	switch {
	case subject == nats.Subject("", router.DefaultPoisonTopic):
		r.Poisoned++
	case i < 0:
		r.Mismatched++
	default:
		r.Files[i].Subject = subject
	}
}

// Line is the report in one line, and whether every file arrived exactly once.
func (r Report) Line(err error) (line string, ok bool) {
	count := func(is func(Fate) bool) (n int) {
		for _, f := range r.Files {
			if is(f) {
				n++
			}
		}
		return n
	}
	sent := len(r.Files)
	received, confirmed := count(func(f Fate) bool { return f.Received }), count(func(f Fate) bool { return f.Confirmed })
	stored := count(func(f Fate) bool { return f.Subject != "" })
	line = fmt.Sprintf("sent=%d received=%d stored=%d confirmed=%d poisoned=%d mismatched=%d", sent, received, stored, confirmed, r.Poisoned, r.Mismatched)
	switch {
	case err != nil:
		return "FAILED " + line + ": " + strings.Join(strings.Fields(router.RedactError(err, nil)), " "), false
	case sent == 0 || min(received, stored, confirmed) < sent || r.Poisoned+r.Mismatched > 0:
		return "FAILED " + line, false
	}
	return "OK " + line, true
}
