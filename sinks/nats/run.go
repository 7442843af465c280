package nats

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/synctime"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// lookAgainAfter is how long after it did not answer the server is asked again.
const lookAgainAfter = time.Second

// lookEvery is how often the server is asked for the stream at least.
const lookEvery = 10 * time.Second

// run is what is known of how long the server has run on: from one look at the stream to the next it is the same process, and
// the stream has what was acknowledged.
type run struct {
	synctime.Horizon
	look chan struct{} // holds a token when the server is to be asked at once

	told atomic.Int64 // what the server says of how it syncs, a [sinks.Synced]

	answers    sync.Mutex // held while an answer is taken in
	counts     time.Time  // answers to what was asked before do not count: a later one was faster, or the stream was gone since
	durability string     // of the stream, as it was told last
	telling    int        // calls of Config.Lost that have not returned

	mu      sync.Mutex
	server  string    // the ID of the server's process
	created time.Time // the stream; zero before the first look
	highest uint64    // sequence that was acknowledged
	losses  uint64
}

// asked is what was known when the server was asked.
type asked struct {
	at         time.Time
	server     string
	highest    uint64
	losses     uint64
	connection uint64
}

// acked takes in an acknowledgment. The sequence of a message that was sent after another one was acknowledged is higher, unless the
// stream went back in between, which nobody may see otherwise: the server that has it need not be the connected one.
func (s *Sink) acked(f *flight, ack jetstream.PubAck) {
	if ack.Duplicate {
		return
	}
	r := &s.run
	r.mu.Lock()
	last := r.highest
	back := ack.Sequence <= min(last, f.after)
	if back {
		r.highest, r.created = 0, time.Time{} // the next look is as the first one
		r.losses += last - ack.Sequence + 1
		r.Restarted(time.Now(), s.settings().Synced.After())
	}
	r.highest = max(r.highest, ack.Sequence)
	r.mu.Unlock()
	if back {
		s.unlook(errWentBack)
		r.answers.Lock()
		s.tellLost(ack.Sequence, last)
		r.answers.Unlock()
		r.lookNow()
	}
}

// lookNow has the server asked at once.
func (r *run) lookNow() {
	wakeup.Token(r.look)
}

// errWentBack is what is logged with acknowledged messages that the stream no longer has.
var errWentBack = errors.New("the stream has fewer messages than it has acknowledged: the server lost its power, its files were restored, or the stream was made again")

// errTelling is why nothing is stored while Config.Lost is being called.
var errTelling = errors.New("the loss of acknowledged messages is still being reported")

// compare compares the stream with what was acknowledged before the server was asked for it. It reports whether the answer counts: a loss
// that was found after it was asked for is not to be found again.
func (s *Sink) compare(asked asked, info *jetstream.StreamInfo) bool {
	r := &s.run
	r.mu.Lock()
	if asked.losses != r.losses {
		r.mu.Unlock()
		return false
	}
	first := r.created.IsZero()
	ranOn := first && asked.highest == 0 || r.server == asked.server && r.created.Equal(info.Created) && info.State.LastSeq >= asked.highest
	same := s.conn.ConnectedServerId() == asked.server
	has := min(info.State.LastSeq, asked.highest)
	if !first && !r.created.Equal(info.Created) {
		has = 0
	}
	if same {
		if !ranOn {
			r.Restarted(time.Now(), s.settings().Synced.After())
		}
		if has < asked.highest {
			r.highest = info.State.LastSeq
			r.losses += asked.highest - has
		}
		r.server, r.created = asked.server, info.Created
		r.Alive(asked.at)
	}
	r.mu.Unlock()
	if same && has < asked.highest { // else another one has answered, perhaps
		s.tellLost(has+1, asked.highest)
	}
	return true
}

// tellLost has Config.Lost called. It is called with answers locked.
func (s *Sink) tellLost(first, last uint64) {
	s.logger.Error("the broker has lost acknowledged messages", errWentBack, watermill.LogFields{
		"stream": s.config.Stream, "lost": last - first + 1, "first_sequence": first, "last_sequence": last,
	})
	if s.config.Lost == nil {
		return
	}
	r := &s.run
	r.telling++
	s.looked.Store(0)
	go func() { // ends with it
		s.config.Lost(first, last)
		r.answers.Lock()
		r.telling--
		r.answers.Unlock()
		r.lookNow()
	}()
}

// Lost returns how many messages the stream has acknowledged and was found not to have any longer after a reconnect: it went back in
// time, because the server lost its power or its files were restored, or was deleted.
func (s *Sink) Lost() uint64 {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	return s.run.losses
}

// follow asks for the stream after each reconnect, and at intervals.
func (s *Sink) follow() {
	every, patience := lookEvery, lookAgainAfter
	if interval := time.Duration(s.config.Synced); interval > 0 {
		every = min(every, max(interval/4, 10*time.Millisecond))
	}
	next := time.NewTimer(every)
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-s.run.look:
		case <-s.background.Done():
			return
		}
		next.Reset(every)
		if s.opening.Err() != nil {
			continue
		}
		if err := s.lookAgain(patience); err != nil {
			s.logger.Debug("NATS stream not looked at", watermill.LogFields{"error": err.Error()})
			next.Reset(lookAgainAfter)
			patience = min(2*patience, s.config.PublishTimeout) // an answer that was lost must not cost long, and a slow server not all
		} else {
			patience = lookAgainAfter
		}
	}
}

// lookAgain looks at the stream, which is provisioned if it is gone, or its subjects are.
func (s *Sink) lookAgain(patience time.Duration) error {
	look := func() error {
		ctx, cancel := context.WithTimeout(s.background, patience)
		defer cancel()
		return s.lookAtStream(ctx)
	}
	err := look()
	gone := errors.Is(err, jetstream.ErrStreamNotFound)
	if (gone || err == nil && !s.covered(s.stream.Load())) && s.config.Provision != ProvisionNone {
		if gone { // the new one is compared before anything is stored; one that lost its subjects may well take other topics meanwhile
			s.unlook(err)
			// A server that is still removing the files of the former one would remove those of the new one with them.
			select {
			case <-time.After(lookAgainAfter):
			case <-s.background.Done():
				return err
			}
		}
		if err = s.provision(s.background, s.config.ConnectTimeout); err != nil {
			if s.tells(err) {
				s.logger.Error("NATS stream provisioning failed", err, nil)
			}
			return err
		}
		err = look()
	}
	return err
}

// Survives implements [sinks.Syncing]. The server has run on if from one look at the stream to the next it is the same process, as
// far as the connection tells, the stream was not made anew, and it has what was acknowledged.
func (s *Sink) Survives(began, acked time.Time) (bool, error) {
	said := s.settings().Synced
	if said.After() == 0 {
		return said.Known(), nil
	}
	is, err := s.run.Survives(began, acked, said.After())
	if !is && err == nil && s.background.Err() != nil { // nobody looks any longer
		err = sinks.NewError(s.name, "", sinks.ErrClosed, nil)
	}
	return is, err
}

// askSubject is where servers tell their settings: the system account, to which few accounts have access.
const askSubject = "$SYS.REQ.SERVER.PING.VARZ"

// settings is the Config, and the server's word if it syncs later than that says.
func (s *Sink) settings() Config {
	config := s.config
	if told := sinks.Synced(s.run.told.Load()); told.After() > config.Synced.After() {
		config.Synced = told
	}
	return config
}

// askSynced asks the server that leads the stream how it syncs, if somebody has said how, and the account may ask.
func (s *Sink) askSynced(ctx context.Context, info *jetstream.StreamInfo) {
	if s.config.Synced.After() == 0 && s.config.Synced != sinks.SyncedAlways {
		return
	}
	name := s.conn.ConnectedServerName()
	if info.Cluster != nil && info.Cluster.Leader != "" {
		name = info.Cluster.Leader
	}
	ctx, cancel := context.WithTimeout(ctx, lookAgainAfter)
	defer cancel()
	request, _ := json.Marshal(map[string]any{"server_name": name, "exact_match": true}) // never fails
	var answer struct {
		Data struct {
			JetStream struct {
				Config struct {
					Always   bool          `json:"sync_always"`
					Interval time.Duration `json:"sync_interval"`
				} `json:"config"`
			} `json:"jetstream"`
		} `json:"data"`
	}
	msg, err := s.conn.RequestWithContext(ctx, askSubject, request)
	if err != nil || json.Unmarshal(msg.Data, &answer) != nil || answer.Data.JetStream.Config.Interval < 0 {
		return // as it was
	}
	told := sinks.Synced(answer.Data.JetStream.Config.Interval)
	if answer.Data.JetStream.Config.Always {
		told = sinks.SyncedAlways
	}
	if was := s.run.told.Swap(int64(told)); was != int64(told) && told.After() > s.config.Synced.After() {
		warnlog.Warn(s.logger, "the server syncs later than configured: routes with durable: synced wait for that",
			watermill.LogFields{"server": name, "syncs": told.String(), "configured": s.config.Synced.String()})
	}
}
