package kvbucket_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// store is what the stores have in common.
type store interface {
	Health(ctx context.Context) error
}

// opened calls test for each kind of store, with a function that opens one and closes it when the test ends.
func opened(t *testing.T, conn *natsgo.Conn, logger watermill.LoggerAdapter, test func(kind string, open func(domain, bucket string) (store, error))) {
	t.Helper()
	test("dedup", func(domain, bucket string) (store, error) {
		s, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn, Domain: domain, Bucket: bucket, Logger: logger})
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return s, err
	})
	test("lease", func(domain, bucket string) (store, error) {
		s, err := kvlease.New(t.Context(), kvlease.Config{Conn: conn, Domain: domain, Bucket: bucket, Logger: logger})
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return s, err
	})
	test("devices", func(domain, bucket string) (store, error) {
		return devicestore.New(t.Context(), devicestore.Config{Conn: conn, Domain: domain, Bucket: bucket, Logger: logger})
	})
}

// A bucket of another domain is opened, with an account that may subscribe to one prefix only; without the domain, the error says so.
func TestStoresInDomain(t *testing.T) {
	t.Parallel()
	_, leaf := natstest.StartLeaf(t)
	opened(t, natstest.ConnectLeaf(t, leaf), nil, func(kind string, open func(domain, bucket string) (store, error)) {
		if _, err := open("", ""); !errors.Is(err, nats.ErrNoJetStream) {
			t.Errorf("%s, without the domain: got %v, want %v", kind, err, nats.ErrNoJetStream)
		}
		s, err := open(natstest.LeafDomain, "")
		if err == nil {
			err = s.Health(t.Context())
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	})
}

// A bucket that acknowledges keys that it does not have is refused, and one that keeps less than configured is told.
func TestStoresCompareTheirBuckets(t *testing.T) {
	t.Parallel()
	conn, js := natstest.Client(t, natstest.Start(t).URL())
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "KV_lossy", Subjects: []string{"$KV.lossy.>"}, Retention: jetstream.InterestPolicy, MaxMsgsPerSubject: 1, AllowRollup: true, AllowDirect: true,
	}))(t)
	testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "memory", Storage: jetstream.MemoryStorage, LimitMarkerTTL: 1e9}))(t)
	log := testkit.NewLog()
	opened(t, conn, log, func(kind string, open func(domain, bucket string) (store, error)) {
		if _, err := open("", "lossy"); !errors.Is(err, nats.ErrStream) {
			t.Errorf("%s: got %v, want %v", kind, err, nats.ErrStream)
		}
		before := strings.Count(log.String(), "storage Memory (configured: File)")
		if _, err := open("", "memory"); err != nil || strings.Count(log.String(), "storage Memory (configured: File)") != before+1 {
			t.Errorf("%s: %v; logged:\n%s", kind, err, log)
		}
	})
}

// The bucket of one store is of no use to another one: what it keeps, for how long, and up to what size, is made for the first.
func TestStoresHaveBucketsOfTheirOwn(t *testing.T) {
	t.Parallel()
	conn, _ := natstest.Client(t, natstest.Start(t).URL())
	opened(t, conn, nil, func(owner string, create func(domain, bucket string) (store, error)) {
		testkit.Must(create("", owner))(t)
		opened(t, conn, nil, func(kind string, open func(domain, bucket string) (store, error)) {
			_, err := open("", owner)
			if refused := errors.Is(err, nats.ErrStream); refused != (kind != owner) || err != nil && !refused {
				t.Errorf("%s in the bucket of %s: got %v", kind, owner, err)
			}
		})
	})
}

// A bucket that somebody changes while it is used is compared again by the next look at it, once.
func TestStoresCompareChangedBuckets(t *testing.T) {
	t.Parallel()
	conn, js := natstest.Client(t, natstest.Start(t).URL())
	log := testkit.NewLog()
	opened(t, conn, log, func(kind string, open func(domain, bucket string) (store, error)) {
		s := testkit.Must(open("", kind))(t)
		config := testkit.Must(js.Stream(t.Context(), "KV_"+kind))(t).CachedInfo().Config
		for _, n := range []int64{1000, 100} {
			config.MaxMsgs = n
			testkit.Must(js.UpdateStream(t.Context(), config))(t)
			before := strings.Count(log.String(), "keep less")
			for range 3 {
				testkit.NoError(t, s.Health(t.Context()))
			}
			if told := strings.Count(log.String(), "keep less") - before; told != 1 {
				t.Errorf("%s: %d messages at most: it is told %d times: %s", kind, n, told, log)
			}
		}
		config.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "$KV." + kind + ".>", Destination: "lost.>"}
		testkit.Must(js.UpdateStream(t.Context(), config))(t)
		if err := s.Health(t.Context()); !errors.Is(err, nats.ErrStream) {
			t.Errorf("%s that stores its keys elsewhere: %v", kind, err)
		}
	})
}
