package devicestore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/router/farm/devicestoretest"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, url string, config devicestore.Config) *devicestore.Store {
	t.Helper()
	conn, _ := natstest.Client(t, url)
	config.Conn = conn
	return testkit.Must(devicestore.New(t.Context(), config))(t)
}

func TestStore(t *testing.T) {
	var server *natstest.Server
	devicestoretest.Run(t, devicestoretest.Suite{
		New: func(t *testing.T) farm.DeviceStore {
			server = natstest.Start(t)
			return open(t, server.URL(), devicestore.Config{})
		},
		Peer: func(t *testing.T, _ farm.DeviceStore) farm.DeviceStore {
			return open(t, server.URL(), devicestore.Config{})
		},
	})
}

// A bucket that is gone is made again; what was in it is unknown until it is sent again.
func TestBucketIsGone(t *testing.T) {
	server := natstest.Start(t)
	store := open(t, server.URL(), devicestore.Config{})
	d := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	testkit.NoError(t, store.Put(t.Context(), "team", d))
	_, js := natstest.Client(t, server.URL())
	testkit.NoError(t, js.DeleteKeyValue(t.Context(), devicestore.DefaultBucket))
	if list, err := store.Get(t.Context(), "team"); err != nil || len(list) != 0 {
		t.Errorf("%d descriptions, %v, want none", len(list), err)
	}
	testkit.NoError(t, js.DeleteKeyValue(t.Context(), devicestore.DefaultBucket))
	testkit.NoError(t, store.Put(t.Context(), "team", d))
	if list, err := open(t, server.URL(), devicestore.Config{}).Get(t.Context(), "team"); err != nil || len(list) != 1 || string(list[0].Payload) != "devices" {
		t.Errorf("%d descriptions, %v, want one", len(list), err)
	}
}

// What counts is the TTL of the bucket that is there: a payload that is sent again and in the list again is there as long as the list.
func TestBucketWithItsOwnTTL(t *testing.T) {
	server := natstest.Start(t)
	_, js := natstest.Client(t, server.URL())
	kv := testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: devicestore.DefaultBucket, TTL: time.Hour}))(t)
	store := open(t, server.URL(), devicestore.Config{})
	put := func(at int64, payload string) {
		testkit.NoError(t, store.Put(t.Context(), "team", farm.DeviceDescription{Sent: time.Unix(at, 0), Payload: []byte(payload)}))
	}
	stored := func() uint64 {
		return testkit.Must(kv.Get(t.Context(), fmt.Sprintf("payload.%x", sha256.Sum256([]byte("devices")))))(t).Revision()
	}
	put(1000, "devices")
	put(2000, "others")
	first := stored()
	put(3000, "devices")
	if again := stored(); again <= first {
		t.Errorf("the payload expires %v after it was sent first, and the list names it for longer", time.Hour)
	}
}

// What no message can have is refused for good; the server being away is an outage.
func TestErrors(t *testing.T) {
	server := natstest.Start(t)
	store := open(t, server.URL(), devicestore.Config{})
	err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: make([]byte, 2<<20)})
	if !errors.Is(err, devicestore.ErrTooLarge) || router.ClassOf(err) != router.ClassPermanent {
		t.Errorf("got %v of class %v, want ErrTooLarge", err, router.ClassOf(err))
	}
	server.Stop()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := store.Get(short, "team"); err == nil {
		t.Error("Get succeeds without a server")
	}
	testkit.ErrorIs(t, (devicestore.Config{TTL: -1}).Validate(), devicestore.ErrConfig)
}

// Of a teamset that is described again and again, the last descriptions are kept.
func TestOldDescriptionsAreDropped(t *testing.T) {
	store := open(t, natstest.Start(t).URL(), devicestore.Config{})
	for i := range 20 {
		testkit.NoError(t, store.Put(context.Background(), "team", farm.DeviceDescription{Sent: time.Unix(int64(100-i), 0), Payload: fmt.Append(nil, i)}))
	}
	list, err := store.Get(t.Context(), "team")
	if err != nil || len(list) != 16 || list[15].Sent.Unix() != 100 {
		t.Errorf("%d descriptions, %v", len(list), err)
	}
}

// Whoever only looks creates nothing, and changes nothing.
func TestReadOnly(t *testing.T) {
	server := natstest.Start(t)
	conn, js := natstest.Client(t, server.URL())
	config := devicestore.Config{Conn: conn, ReadOnly: true}
	if _, err := devicestore.New(t.Context(), config); !errors.Is(err, devicestore.ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	d := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	testkit.NoError(t, open(t, server.URL(), devicestore.Config{}).Put(t.Context(), "team", d))
	store := testkit.Must(devicestore.New(t.Context(), config))(t)
	if list, err := store.Get(t.Context(), "team"); err != nil || len(list) != 1 {
		t.Errorf("%d descriptions, %v", len(list), err)
	}
	testkit.ErrorIs(t, store.Put(t.Context(), "team", d), devicestore.ErrReadOnly)
	testkit.NoError(t, js.DeleteKeyValue(t.Context(), devicestore.DefaultBucket))
	if _, err := store.Get(t.Context(), "team"); !errors.Is(err, devicestore.ErrMissing) { // it was deleted meanwhile
		t.Errorf("got %v, want ErrMissing", err)
	}
	if _, err := js.KeyValue(t.Context(), devicestore.DefaultBucket); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("the bucket was created: %v", err)
	}
}
