//go:build faults

package faulttest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// record is a message as the reader found it.
type record struct {
	topic     string
	sum       [sha256.Size]byte
	size      int
	dedupID   string
	elsewhere bool              // the payload is in the claim check
	metadata  map[string]string // nil when the archive is lean, apart from files

	// What the quarantine has: an event as it came, or only a notice of one.
	quarantined, notice bool
	// gone: a notice that the payload of a message cannot be downloaded. The message stays with the
	// gateway, and may well come later.
	gone bool
}

// newRecord makes a record of what is stored.
func newRecord(topic string, data []byte, metadata map[string]string) record {
	r := record{topic: topic, sum: sha256.Sum256(data), size: len(data), metadata: metadata}
	// The names are written out: the constants are the subscriber's, which is judged here.
	switch metadata["x-router-poison-class"] {
	case "malformed", "too large":
		r.quarantined, r.notice = true, metadata["x-router-quarantine-body"] != ""
		// It stands for the payload in the event, if that is still available.
		var event struct{ Payload []byte }
		if json.Unmarshal(data, &event) == nil && event.Payload != nil {
			r.sum, r.size = sha256.Sum256(event.Payload), len(event.Payload)
		} else {
			r.notice = true
		}
	case "payload gone":
		r.gone = true
	}
	return r
}

func (r record) poisoned() bool { return strings.HasSuffix(r.topic, ".poison") }

// file says that the record stands for a whole payload.
func (r record) file() bool {
	return r.metadata[gateway.KeyEventType] == string(gateway.EventFileReceived)
}

// identity names a message at a receiving endpoint.
type identity struct{ endpoint, message string }

// identities are those of all messages that the record holds.
func (r record) identities() []identity {
	if id, quarantined := r.metadata["x-router-quarantine-message-ids"]; quarantined {
		return []identity{{r.metadata["x-router-quarantine-endpoint-id"], id}}
	}
	if r.quarantined {
		return nil // nobody knows whose event that was
	}
	endpoint := r.metadata[gateway.KeyReceivingEndpointID]
	if !r.file() {
		return []identity{{endpoint, r.metadata[gateway.KeyMessageID]}}
	}
	var list []identity
	for _, id := range strings.Split(r.metadata[gateway.KeyMessageIDs], ",") {
		list = append(list, identity{endpoint, id})
	}
	return list
}

// source reads what a broker has stored, from where it stopped last.
type source interface {
	// read gives everything that is stored when it is called, and was not given
	// before, to found.
	read(ctx context.Context, found func(record)) error
	close()
}

// archive is what the reader has found so far.
type archive struct {
	source source

	mu      sync.Mutex // also: one read at a time
	records map[identity][]record
	// quarantined are all records of the quarantine by their deduplication ID.
	quarantined map[string][]record
	gone        []record // all notices of payloads that are gone
	lean        bool     // metadata is not kept
}

func newArchive(s source) *archive {
	return &archive{source: s, records: map[identity][]record{}, quarantined: map[string][]record{}}
}

// catchUp reads everything that is stored by now.
func (a *archive) catchUp(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.source.read(ctx, func(r record) {
		r.dedupID, r.elsewhere = r.metadata[gateway.KeyDedupID], r.metadata[gateway.KeyPayloadMode] != ""
		if r.gone {
			a.gone = append(a.gone, r)
			return
		}
		ids := r.identities()
		if r.quarantined {
			a.quarantined[r.dedupID] = append(a.quarantined[r.dedupID], r)
		}
		if r.notice {
			return // it does not hold a message
		}
		if a.lean && !r.file() {
			r.metadata = nil
		}
		for _, id := range ids {
			a.records[id] = append(a.records[id], r)
		}
	})
}

func (a *archive) find(id identity) []record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records[id]
}

// all is a copy of everything.
func (a *archive) all() map[identity][]record {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[identity][]record, len(a.records))
	for id, records := range a.records {
		all[id] = records
	}
	return all
}

// goneMessages are those of all notices of payloads that are gone, and problems what is wrong with
// these notices.
func (a *archive) goneMessages() (messages []identity, problems []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.gone {
		ids := r.metadata["x-router-quarantine-message-ids"]
		if r.size > 0 || r.metadata["x-router-quarantine-body"] != "absent" || ids == "" {
			problems = append(problems, fmt.Sprintf("a notice that a payload is gone has %d bytes and %v", r.size, r.metadata))
			continue
		}
		for _, id := range strings.Split(ids, ",") {
			messages = append(messages, identity{r.metadata["x-router-quarantine-endpoint-id"], id})
		}
	}
	return messages, problems
}

// jetStreamSource reads a stream over a connection of its own, message by
// message.
type jetStreamSource struct {
	conn *natsgo.Conn
	js   jetstream.JetStream
	next uint64
}

func newJetStreamSource(url string) (*jetStreamSource, error) {
	conn, err := natsgo.Connect(url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond), natsgo.ReconnectJitter(0, 0))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &jetStreamSource{conn: conn, js: js, next: 1}, nil
}

func (s *jetStreamSource) close() { s.conn.Close() }

func (s *jetStreamSource) read(ctx context.Context, found func(record)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	look, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	stream, err := s.js.Stream(look, "AGRIMILL")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // nothing is stored
	}
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	s.next = max(s.next, state.FirstSeq)
	for ; s.next <= state.LastSeq; s.next++ {
		msg, err := stream.GetMsg(ctx, s.next)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		metadata := map[string]string{}
		for name, values := range msg.Header {
			metadata[name] = decodeWord(values[0])
		}
		found(newRecord(msg.Subject, msg.Data, metadata))
	}
	return nil
}

// decodeWord reads a header that is an encoded word of RFC 2047.
func decodeWord(value string) string {
	if decoded, err := (&mime.WordDecoder{}).DecodeHeader(textproto.TrimString(value)); err == nil && strings.HasPrefix(value, "=?") {
		return decoded
	}
	return value
}

// kafkaSource reads two topics, past the proxy that the sink has to use.
type kafkaSource struct {
	client    *kgo.Client
	admin     *kadm.Client
	positions map[string]map[int32]int64
}

var kafkaTopics = []string{"agrimill." + dataTopic, "agrimill.poison", "agrimill.quarantine"}

func newKafkaSource(proxy *kafkatest.Proxy) (*kafkaSource, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(proxy.Addr()), kgo.Dialer(proxy.DialBroker),
		kgo.MetadataMinAge(20*time.Millisecond), kgo.MetadataMaxAge(time.Second), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &kafkaSource{client: client, admin: kadm.NewClient(client), positions: map[string]map[int32]int64{}}, nil
}

func (s *kafkaSource) close() { s.client.Close() }

func (s *kafkaSource) read(ctx context.Context, found func(record)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := s.admin.ListEndOffsets(ctx, kafkaTopics...)
	if err != nil {
		return err
	}
	var failed error
	behind := func() bool {
		late := false
		ends.Each(func(end kadm.ListedOffset) {
			if end.Err != nil {
				if !errors.Is(end.Err, kerr.UnknownTopicOrPartition) {
					failed = end.Err
				}
				return
			}
			if s.positions[end.Topic] == nil {
				s.positions[end.Topic] = map[int32]int64{}
			}
			if _, known := s.positions[end.Topic][end.Partition]; !known {
				s.positions[end.Topic][end.Partition] = 0
				s.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
					end.Topic: {end.Partition: kgo.NewOffset().At(0)},
				})
			}
			late = late || s.positions[end.Topic][end.Partition] < end.Offset
		})
		return late
	}
	for behind() {
		if failed != nil {
			return failed
		}
		fetches := s.client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("reader is behind: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			s.positions[r.Topic][r.Partition] = r.Offset + 1
			metadata := map[string]string{}
			for _, h := range r.Headers {
				metadata[h.Key] = string(h.Value)
			}
			found(newRecord(r.Topic, r.Value, metadata))
		})
	}
	return failed
}

// listed is a source of given records.
type listed []record

func (l listed) read(_ context.Context, found func(record)) error {
	for _, r := range l {
		found(r)
	}
	return nil
}

func (listed) close() {}

// A notice that a payload is gone is no copy of its message, and has to be nothing but a notice.
func TestNoticesThatPayloadsAreGone(t *testing.T) {
	t.Parallel()
	notice := func(payload string, ids string) record {
		return newRecord("agrimill.quarantine", []byte(payload), map[string]string{
			"x-router-poison-class": "payload gone", "x-router-quarantine-body": "absent",
			"x-router-quarantine-endpoint-id": "e", "x-router-quarantine-message-ids": ids,
		})
	}
	a := newArchive(listed{notice("", "1"), notice("", "2,3"), notice("payload", "4"), notice("", "")})
	testkit.NoError(t, a.catchUp(t.Context()))
	messages, problems := a.goneMessages()
	if want := []identity{{"e", "1"}, {"e", "2"}, {"e", "3"}}; !slices.Equal(messages, want) || len(problems) != 2 {
		t.Errorf("got %v and %q, want %v and two problems", messages, problems, want)
	}
	if len(a.all()) > 0 {
		t.Errorf("they are copies of messages: %v", a.all())
	}
}
