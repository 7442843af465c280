package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

func newDedup(t *testing.T, config router.DedupConfig) *router.Dedup {
	t.Helper()
	if config.Scope == "" {
		config.Scope = "route"
	}
	dedup, err := router.NewDedup(config, nil)
	require.NoError(t, err)
	return dedup
}

func counting(calls *int, err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		*calls++
		return nil, err
	}
}

// What Watermill's own Deduplicator gets wrong: a failure is not a duplicate.
func TestDedupFailedMessageIsNoDuplicate(t *testing.T) {
	calls := 0
	fail := error(errHandler)
	h := newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, fail
	})
	_, err := h(farmMessage("1", "e", "c", "p"))
	require.ErrorIs(t, err, errHandler)
	fail = nil
	_, err = h(farmMessage("1", "e", "c", "p"))
	require.NoError(t, err)
	_, err = h(farmMessage("1", "e", "c", "p"))
	require.NoError(t, err)
	assert.Equal(t, 2, calls)
}

func TestDedupPanicReleases(t *testing.T) {
	h := newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) { panic("x") })
	for range 2 { // the second one would be ErrReserved
		assert.Panics(t, func() { _, _ = h(farmMessage("1", "e", "c", "p")) })
	}
}

// A copy of a message that is being handled is neither handled nor acknowledged.
func TestDedupCopyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var outcome error
		proceed := make(chan struct{})
		retry := newRetry(t, router.RetryConfig{})
		h := retry.Middleware(newDedup(t, router.DedupConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			if calls == 1 {
				<-proceed
				return nil, outcome
			}
			return nil, nil
		}))
		outcome = router.Permanent(errHandler)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := h(farmMessage("1", "e", "c", "p")); first <- err }()
		synctest.Wait()
		go func() { _, err := h(farmMessage("2", "e", "c", "p")); second <- err }()
		time.Sleep(10 * time.Second)
		assert.Empty(t, second, "the copy waits")
		_, out := retry.OutageSince()
		assert.False(t, out, "waiting for a copy is no outage")
		close(proceed)
		require.ErrorIs(t, <-first, errHandler)
		require.NoError(t, <-second)
		assert.Equal(t, 2, calls, "the copy was handled, because the first one was not")

		_, err := h(farmMessage("3", "e", "c", "p"))
		require.NoError(t, err)
		assert.Equal(t, 2, calls)
	})
}

func TestDedupReservedWithoutRetry(t *testing.T) {
	h := newDedup(t, router.DedupConfig{})
	var inner error
	calls := 0
	outer := h.Middleware(func(*message.Message) ([]*message.Message, error) {
		_, inner = h.Middleware(counting(&calls, nil))(farmMessage("2", "e", "c", "p"))
		return nil, nil
	})
	_, err := outer(farmMessage("1", "e", "c", "p"))
	require.NoError(t, err)
	assert.ErrorIs(t, inner, router.ErrReserved)
	assert.Zero(t, calls)
}

// faultyStore fails where told to.
type faultyStore struct {
	router.DedupStore
	reserve, commit, release error
}

func (s *faultyStore) Reserve(ctx context.Context, k router.Key, l time.Duration) (router.ReserveResult, router.Token, error) {
	if s.reserve != nil {
		return 0, 0, s.reserve
	}
	return s.DedupStore.Reserve(ctx, k, l)
}

func (s *faultyStore) Commit(ctx context.Context, k router.Key, token router.Token, ttl time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.commit != nil {
		return s.commit
	}
	return s.DedupStore.Commit(ctx, k, token, ttl)
}

func (s *faultyStore) Release(ctx context.Context, k router.Key, token router.Token) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.release != nil {
		return s.release
	}
	return s.DedupStore.Release(ctx, k, token)
}

func TestDedupStoreDown(t *testing.T) {
	broken := errors.New("broken")
	calls := 0

	h := newDedup(t, router.DedupConfig{Store: &faultyStore{DedupStore: newStore(t, 0), reserve: broken}}).Middleware(counting(&calls, nil))
	_, err := h(farmMessage("1", "e", "c", "p"))
	require.ErrorIs(t, err, broken)
	assert.Equal(t, router.ClassOutage, router.Classify(err))
	assert.Zero(t, calls)

	h = newDedup(t, router.DedupConfig{Store: &faultyStore{DedupStore: newStore(t, 0), reserve: context.Canceled}}).Middleware(counting(&calls, nil))
	_, err = h(farmMessage("1", "e", "c", "p"))
	assert.Equal(t, router.ClassShutdown, router.Classify(err))

	// The message is held by now; failing it would make the duplicate.
	var events []router.Event
	h = newDedup(t, router.DedupConfig{
		Store:    &faultyStore{DedupStore: newStore(t, 0), commit: broken},
		Observer: router.ObserverFunc(func(e router.Event) { events = append(events, e) }),
	}).Middleware(counting(&calls, nil))
	_, err = h(farmMessage("1", "e", "c", "p"))
	require.NoError(t, err)
	assert.Equal(t, 1, calls)
	require.Len(t, events, 1)
	assert.Equal(t, router.EventDedupFailed, events[0].Kind)

	h = newDedup(t, router.DedupConfig{Store: &faultyStore{DedupStore: newStore(t, 0), release: broken}}).Middleware(counting(&calls, errHandler))
	_, err = h(farmMessage("1", "e", "c", "p"))
	assert.Equal(t, errHandler, err)
}

// What is known is written down although the message's context has ended.
func TestDedupCommitsAndReleasesInShutdown(t *testing.T) {
	for _, outcome := range []error{nil, errHandler} {
		store := &faultyStore{DedupStore: newStore(t, 0)}
		ctx, cancel := context.WithCancel(t.Context())
		h := newDedup(t, router.DedupConfig{Store: store}).Middleware(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, outcome
		})
		msg := farmMessage("1", "e", "c", "p")
		msg.SetContext(ctx)
		_, err := h(msg)
		assert.Equal(t, outcome, err)

		calls := 0
		_, err = newDedup(t, router.DedupConfig{Store: store}).Middleware(counting(&calls, nil))(farmMessage("2", "e", "c", "p"))
		require.NoError(t, err)
		if outcome == nil {
			assert.Zero(t, calls)
		} else {
			assert.Equal(t, 1, calls)
		}
	}
}

func TestDedupScopeKeepsHandlersApart(t *testing.T) {
	store, calls := newStore(t, 0), 0
	for _, scope := range []string{"a", "b", "a"} {
		h := newDedup(t, router.DedupConfig{Store: store, Scope: scope}).Middleware(counting(&calls, nil))
		_, err := h(farmMessage("1", "e", "c", "p"))
		require.NoError(t, err)
	}
	assert.Equal(t, 2, calls)
}

func TestDedupKeyError(t *testing.T) {
	calls := 0
	h := newDedup(t, router.DedupConfig{KeyFunc: func(string, *message.Message) (router.Key, bool, error) {
		return router.Key{}, false, router.Permanent(errHandler)
	}}).Middleware(counting(&calls, nil))
	_, err := h(farmMessage("1", "e", "c", "p"))
	assert.Equal(t, router.ClassPermanent, router.Classify(err))
	assert.Zero(t, calls)
}

func TestDedupID(t *testing.T) {
	var id string
	var ok bool
	h := newDedup(t, router.DedupConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		id, ok = router.DedupID(msg.Context())
		return nil, nil
	})
	msg := farmMessage("1", "e", "c", "p")
	metadata := fmt.Sprint(msg.Metadata)
	_, err := h(msg)
	require.NoError(t, err)
	key, _, _ := router.DefaultKey("route", msg)
	assert.True(t, ok)
	assert.Equal(t, key.String(), id)
	assert.Equal(t, metadata, fmt.Sprint(msg.Metadata), "the caller's message is not changed")
	_, ok = router.DedupID(msg.Context())
	assert.False(t, ok)
}

func TestDedupConfigValidate(t *testing.T) {
	for name, config := range map[string]router.DedupConfig{
		"ttl": {TTL: -1}, "lease": {Lease: -1}, "timeout": {StoreTimeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := router.NewDedup(config, nil)
			assert.ErrorIs(t, err, router.ErrConfig)
		})
	}
}

func TestKeyOfCannotCollideByConcatenation(t *testing.T) {
	seen := map[router.Key][]string{}
	for _, parts := range [][]string{
		{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"a", "", "b"}, {"\x01a"}, {"\x01a\x01b"},
	} {
		key := router.KeyOf(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the same key", parts, other)
		}
		seen[key] = parts
	}
}

func TestDefaultKey(t *testing.T) {
	base := func() *message.Message { return farmMessage("1", "endpoint", "context", "payload") }
	with := func(change func(*message.Message)) *message.Message { m := base(); change(m); return m }
	set := func(key, value string) *message.Message {
		return with(func(m *message.Message) { m.Metadata[key] = value })
	}
	key := func(m *message.Message) router.Key {
		t.Helper()
		k, ok, err := router.DefaultKey("route", m)
		require.NoError(t, err)
		require.True(t, ok)
		return k
	}

	same := map[string]*message.Message{
		"repeated delivery":       base(),
		"a sender's repetition":   set(gateway.KeyMessageID, "another"),
		"other received time":     set(gateway.KeyReceivedTimestamp, "2026-01-01T00:00:00Z"),
		"other UUID of Watermill": with(func(m *message.Message) { m.UUID = "another" }),
	}
	for name, msg := range same {
		t.Run(name, func(t *testing.T) { assert.Equal(t, key(base()), key(msg)) })
	}
	different := map[string]*message.Message{
		"other endpoint":   set(gateway.KeyReceivingEndpointID, "endpoint2"),
		"other context":    set(gateway.KeyContextID, "context2"),
		"other chunk":      with(func(m *message.Message) { m.Payload = []byte("payload2") }),
		"other event":      set(gateway.KeyEventType, string(gateway.EventFileReceived)),
		"other sender":     set(gateway.KeyEndpointID, "sender"),
		"other recipients": set(gateway.KeyDirectRecipients, "r"),
		"moved border": with(func(m *message.Message) {
			m.Metadata[gateway.KeyReceivingEndpointID] = "endpointc"
			m.Metadata[gateway.KeyContextID] = "ontext"
		}),
		"claim check": set(gateway.KeyPayloadSHA256, "aa"),
		"lazy":        set(gateway.KeyPayloadMode, gateway.PayloadModeLazy),
	}
	seen := map[router.Key]string{key(base()): "base"}
	for name, msg := range different {
		k := key(msg)
		assert.Empty(t, seen[k], "%s and %s", name, seen[k])
		seen[k] = name
	}
	k, _, _ := router.DefaultKey("another route", base())
	assert.NotEqual(t, key(base()), k)
}

func TestDefaultKeyOfFiles(t *testing.T) {
	file := func(ids, payload string) *message.Message {
		m := farmMessage("", "endpoint", "", payload)
		delete(m.Metadata, gateway.KeyMessageID)
		m.Metadata[gateway.KeyEventType] = string(gateway.EventFileReceived)
		m.Metadata[gateway.KeyMessageIDs] = ids
		return m
	}
	key := func(m *message.Message) router.Key {
		k, ok, err := router.DefaultKey("route", m)
		require.NoError(t, err)
		require.True(t, ok)
		return k
	}
	assert.Equal(t, key(file("a,b,c", "p")), key(file("c, a,b", "p")))
	assert.NotEqual(t, key(file("a,b,c", "p")), key(file("a,b", "p")))
	assert.NotEqual(t, key(file("a,b", "p")), key(file("ab", "p")))

	// A lazy payload is not there to be hashed: two files of one context stay two.
	lazy := func(ids string) *message.Message {
		m := file(ids, "")
		m.Metadata[gateway.KeyContextID] = "context"
		m.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
		return m
	}
	assert.NotEqual(t, key(lazy("a,b")), key(lazy("c,d")))
	assert.Equal(t, key(lazy("a,b")), key(lazy("b,a")))

	// A claim check is keyed by what was stored, under whatever reference.
	claim := func(sum, reference string) *message.Message {
		m := lazy("a,b")
		m.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeClaimCheck
		m.Metadata[gateway.KeyPayloadSHA256] = sum
		m.Metadata[gateway.KeyPayloadReference] = reference
		m.Payload = []byte(reference)
		return m
	}
	assert.Equal(t, key(claim("s1", "r1")), key(claim("s1", "r2")))
	assert.NotEqual(t, key(claim("s1", "r1")), key(claim("s2", "r1")))
}

func TestDefaultKeyWithoutIdentity(t *testing.T) {
	event := message.NewMessage("1", []byte("{}"))
	event.Metadata[gateway.KeyEventType] = string(gateway.EventAuthorizationAdded)
	noIDs := farmMessage("", "endpoint", "", "p")
	delete(noIDs.Metadata, gateway.KeyMessageID)
	own := message.NewMessage("1", []byte("p"))
	own.Metadata[gateway.KeyContextID] = "c"
	for _, msg := range []*message.Message{event, noIDs, own} {
		_, ok, err := router.DefaultKey("route", msg)
		require.NoError(t, err)
		assert.False(t, ok)
	}
}
