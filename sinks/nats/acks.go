package nats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/sinks"
)

var (
	errNoAck     = errors.New("no acknowledgment in time")
	errNoRoom    = errors.New("too many messages wait for their acknowledgment")
	errBadAnswer = errors.New("the answer is no acknowledgment")
)

// flight is one message on its way.
type flight struct {
	sinks.Publication
	topic, subject string
	id             string // by which the server recognizes a copy of it; empty: not at all
	ctx            context.Context
	draft          *draft    // what is sent; the sender takes it
	reply          string    // the subject for answers
	after          uint64    // the sequence that was acknowledged when it was sent
	sent           time.Time // when acks took it

	mu        sync.Mutex
	withdrawn bool // its payload is the caller's again
}

// acks knows the messages that wait for their acknowledgment, each by the number in its
// reply subject. The client library's asynchronous publisher makes a timer, a future and a
// decoded answer for each; here they share one subscription and one timer, and an answer that
// differs from the one before in its sequence only is not decoded.
//
// It is a state machine without goroutine or clock, safe for concurrent use.
type acks struct {
	prefix string // of the reply subjects
	max    int    // how many may wait

	mu      sync.Mutex
	flights map[uint64]*flight
	last    uint64 // the latest number
	oldest  uint64 // no flight has a lower one
	room    chan struct{}
	usual   usualAck
}

// usualAck is what the last decoded acknowledgment had before its sequence, and what that says.
type usualAck struct {
	before []byte
	ack    jetstream.PubAck
}

func newAcks(prefix string, most int) *acks {
	return &acks{prefix: prefix, max: most, oldest: 1, flights: make(map[uint64]*flight), room: make(chan struct{}, 1)}
}

// subject is what the reply subjects match.
func (a *acks) subject() string { return a.prefix + "*" }

// add takes f and gives its message a reply subject. Without room it returns false; then the
// caller has to wait for a token of room.
func (a *acks) add(f *flight, now time.Time) (id uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.flights) >= a.max {
		select { // an old token is not for this one
		case <-a.room:
		default:
		}
		return 0, false
	}
	a.last++
	f.sent = now
	var room [64]byte
	f.reply = string(strconv.AppendUint(append(room[:0], a.prefix...), a.last, 36))
	a.flights[a.last] = f
	return a.last, true
}

// take removes a flight; nil when that was done already.
func (a *acks) take(id uint64) *flight {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.remove(id)
}

// remove is take with a.mu held.
func (a *acks) remove(id uint64) *flight {
	f := a.flights[id]
	if f == nil {
		return nil
	}
	delete(a.flights, id)
	wakeup.Token(a.room)
	return f
}

// takeAll removes all flights, in the order in which they were added.
func (a *acks) takeAll() []*flight {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeBefore(time.Time{})
}

// expire removes the flights that were added before a time, in their order, and returns when
// the oldest that is left was added, or now.
func (a *acks) expire(before, now time.Time) (expired []*flight, oldest time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	expired = a.takeBefore(before)
	if f := a.flights[a.oldest]; f != nil {
		return expired, f.sent
	}
	return expired, now
}

// takeBefore removes the flights up to the first that was not added before a time, all if that is zero. a.mu is held.
func (a *acks) takeBefore(before time.Time) []*flight {
	var taken []*flight
	for ; a.oldest <= a.last; a.oldest++ {
		f := a.flights[a.oldest]
		if f == nil {
			continue
		}
		if !before.IsZero() && !f.sent.Before(before) {
			break
		}
		taken = append(taken, a.remove(a.oldest))
	}
	return taken
}

// answered returns the flight that an answer is for, nil if there is none, and what it says.
func (a *acks) answered(answer *natsgo.Msg) (*flight, jetstream.PubAck, error) {
	number, found := strings.CutPrefix(answer.Subject, a.prefix)
	if !found {
		return nil, jetstream.PubAck{}, nil
	}
	id, err := strconv.ParseUint(number, 36, 64)
	if err != nil {
		return nil, jetstream.PubAck{}, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.remove(id)
	if f == nil {
		return nil, jetstream.PubAck{}, nil
	}
	if len(answer.Data) == 0 && answer.Header.Get("Status") == "503" {
		return f, jetstream.PubAck{}, jetstream.ErrNoStreamResponse
	}
	ack, err := a.decode(answer.Data)
	return f, ack, err
}

// decode reads an acknowledgment. a.mu is held.
func (a *acks) decode(data []byte) (jetstream.PubAck, error) {
	if seq, usual := a.usual.sequence(data); usual {
		ack := a.usual.ack
		ack.Sequence = seq
		return ack, nil
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.PubAck
	}
	switch err := json.Unmarshal(data, &answer); {
	case err != nil:
		return jetstream.PubAck{}, fmt.Errorf("%w: %w", errBadAnswer, err)
	case answer.Error != nil:
		return jetstream.PubAck{}, answer.Error
	case answer.Stream == "" || answer.Sequence == 0:
		return jetstream.PubAck{}, errBadAnswer
	}
	a.usual.learn(data, answer.PubAck)
	return answer.PubAck, nil
}

var beforeSequence = []byte(`"seq":`)

// learn keeps what an acknowledgment has before its sequence, if nothing comes behind that.
func (u *usualAck) learn(data []byte, ack jetstream.PubAck) {
	at := bytes.LastIndex(data, beforeSequence)
	if at < 0 {
		return
	}
	candidate := usualAck{before: bytes.Clone(data[:at+len(beforeSequence)]), ack: ack}
	if seq, usual := candidate.sequence(data); usual && seq == ack.Sequence {
		*u = candidate
	}
}

// sequence returns the sequence of an acknowledgment that has nothing else that is new.
func (u *usualAck) sequence(data []byte) (uint64, bool) {
	digits, found := bytes.CutPrefix(data, u.before)
	if !found || len(u.before) == 0 || len(digits) < 2 || len(digits) > 20 || digits[0] == '0' || digits[len(digits)-1] != '}' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits[:len(digits)-1]), 10, 64)
	return n, err == nil
}
