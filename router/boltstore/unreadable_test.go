package boltstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

// A record that cannot be read, in a file that is sound otherwise, costs itself: the others are recognized, the file takes
// commits, and the log says how many are gone.
func TestUnreadableRecords(t *testing.T) {
	short, long := []byte{1, 2, 3}, []byte("more than a time")
	key := func(i int) []byte { k := randomKey(i); return k[:] }
	for name, test := range map[string]struct {
		change     func(commits, expiry *bbolt.Bucket) error
		lost       []int
		unreadable int
	}{
		"none":                {},
		"a short value":       {func(commits, _ *bbolt.Bucket) error { return commits.Put(key(3), short) }, []int{3}, 1},
		"an empty value":      {func(commits, _ *bbolt.Bucket) error { return commits.Put(key(3), nil) }, []int{3}, 1},
		"a long value":        {func(commits, _ *bbolt.Bucket) error { return commits.Put(key(3), long) }, []int{3}, 1},
		"the value of a time": {func(_, expiry *bbolt.Bucket) error { k, _ := expiry.Cursor().First(); return expiry.Put(k, short) }, nil, 1},
		"the key of a time":   {func(_, expiry *bbolt.Bucket) error { return replace(expiry, short) }, nil, 1},
		"the key of a commit": {func(commits, _ *bbolt.Bucket) error { return replaceKey(commits, key(3), short) }, []int{3}, 1},
		"two, and two of times": {func(commits, expiry *bbolt.Bucket) error {
			for _, err := range []error{commits.Put(key(3), short), commits.Put(key(4), long), replace(expiry, short), replace(expiry, long)} {
				if err != nil {
					return err
				}
			}
			return nil
		}, []int{3, 4}, 4},
		"all of the values": {func(commits, _ *bbolt.Bucket) error {
			for i := range 10 {
				if err := commits.Put(key(i), short); err != nil {
					return err
				}
			}
			return nil
		}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			file, _ := filled(t, 10)
			if test.change != nil {
				db, err := bbolt.Open(file, 0o600, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := db.Update(func(tx *bbolt.Tx) error {
					return test.change(tx.Bucket([]byte("commits")), tx.Bucket([]byte("expiry")))
				}); err != nil {
					t.Fatal(err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // it changes nothing
				if n, err := boltstore.Look(boltstore.Config{Path: file}); err != nil || n != test.unreadable {
					t.Errorf("Look: %d, %v, want %d", n, err, test.unreadable)
				}
			}
			log := testkit.NewLog()
			store, err := boltstore.New(boltstore.Config{Path: file, Logger: log})
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("records:%d", test.unreadable); test.unreadable > 0 != strings.Contains(log.String(), want) {
				t.Errorf("the log says %q, want %q", log, want)
			}
			lost := map[int]bool{}
			for _, i := range test.lost {
				lost[i] = true
			}
			for i := range 10 {
				got, err := store.Reserve(context.Background(), claim(randomKey(i)), time.Minute)
				if err != nil || (got.State == router.Committed) == lost[i] {
					t.Errorf("message %d: state %d, %v, lost: %v", i, got.State, err, lost[i])
				}
			}
			if err := use(t, store); err != nil {
				t.Fatal(err)
			}
			if n, err := boltstore.Look(boltstore.Config{Path: file}); err != nil || n != 0 {
				t.Errorf("afterwards: %d, %v, want none", n, err)
			}
		})
	}
}

// replace puts another key in the place of the first one of the times.
func replace(times *bbolt.Bucket, with []byte) error {
	cursor := times.Cursor()
	first, _ := cursor.First()
	for len(first) != 8+len(router.Key{}) {
		first, _ = cursor.Next()
	}
	return replaceKey(times, first, with)
}

func replaceKey(bucket *bbolt.Bucket, key, with []byte) error {
	value := append([]byte(nil), bucket.Get(key)...)
	if err := bucket.Delete(append([]byte(nil), key...)); err != nil {
		return err
	}
	return bucket.Put(with, value)
}
