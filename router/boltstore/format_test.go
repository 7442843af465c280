package boltstore_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

// oldKey is a key as versions without content keys wrote it.
func oldKey(name byte) (k router.Key) {
	for i := range k {
		k[i] = name
	}
	return k
}

// writeOld makes a file as versions without content keys wrote it: bucket commits maps
// a key to the time until which it counts, bucket expiry has the time and the key, and
// counts the entries in its sequence.
func writeOld(t *testing.T, file string, keys map[router.Key]time.Time) {
	t.Helper()
	db, err := bbolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		byKey, err := tx.CreateBucket([]byte("commits"))
		if err != nil {
			return err
		}
		byTime, err := tx.CreateBucket([]byte("expiry"))
		if err != nil {
			return err
		}
		for key, until := range keys {
			at := binary.BigEndian.AppendUint64(nil, uint64(until.UnixNano()))
			if err := byKey.Put(key[:], at); err != nil {
				return err
			}
			if err := byTime.Put(slices.Concat(at, key[:]), nil); err != nil {
				return err
			}
		}
		return byTime.SetSequence(uint64(len(keys)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// What a version without content keys has recorded is recognized by either key.
func TestFileWrittenBeforeContentKeys(t *testing.T) {
	file, hour := path(t), time.Now().Add(time.Hour)
	writeOld(t, file, map[router.Key]time.Time{
		oldKey('a'): hour, oldKey('b'): hour, oldKey('z'): time.Now().Add(-time.Hour),
	})
	store := open(t, boltstore.Config{Path: file})
	for _, c := range []struct {
		keys  router.Keys
		state router.ReserveState
		key   router.KeyKind
	}{
		{router.Keys{Delivery: oldKey('a')}, router.Committed, router.DeliveryKey},
		{router.Keys{Content: oldKey('a')}, router.Committed, router.ContentKey},
		{router.Keys{Delivery: oldKey('n'), Content: oldKey('b')}, router.Committed, router.ContentKey},
		{router.Keys{Delivery: oldKey('z'), Content: oldKey('n')}, router.Reserved, 0},
	} {
		got, err := store.Reserve(t.Context(), router.Claim{Keys: c.keys}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != c.state || got.Key != c.key {
			t.Errorf("%v: state %d by key %d, want %d by %d", c.keys, got.State, got.Key, c.state, c.key)
		}
	}
}

// A message with two keys adds two entries of that same form, so that a version without
// content keys finds both.
func TestFormOfTheFileStays(t *testing.T) {
	file := path(t)
	store := open(t, boltstore.Config{Path: file})
	claim := router.Claim{Keys: router.Keys{Delivery: oldKey('d'), Content: oldKey('c')}}
	reservation, err := store.Reserve(t.Context(), claim, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if err := store.Commit(t.Context(), claim, reservation.Token, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	err = db.View(func(tx *bbolt.Tx) error {
		byKey, byTime := tx.Bucket([]byte("commits")), tx.Bucket([]byte("expiry"))
		for _, key := range []router.Key{oldKey('d'), oldKey('c')} {
			at := byKey.Get(key[:])
			if len(at) != 8 {
				t.Fatalf("the value of %q has %d bytes", key[:1], len(at))
			}
			until := time.Unix(0, int64(binary.BigEndian.Uint64(at)))
			if until.Before(before.Add(time.Hour)) || until.After(time.Now().Add(time.Hour)) {
				t.Errorf("%q is remembered until %v", key[:1], until)
			}
			if byTime.Get(slices.Concat(at, key[:])) == nil {
				t.Errorf("%q has no entry by time", key[:1])
			}
		}
		if n := byTime.Sequence(); n != 2 {
			t.Errorf("%d entries are counted", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
