package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	short, long := []byte{1, 2, 3}, []byte("more than a time and a key have")
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
				edit(t, file, nil, test.change)
			}
			for range 2 { // it changes nothing
				if n, err := boltstore.Look(boltstore.Config{Path: file}); err != nil || n != test.unreadable {
					t.Errorf("Look: %d, %v, want %d", n, err, test.unreadable)
				}
			}
			log := testkit.NewLog()
			store := testkit.Must(boltstore.New(boltstore.Config{Path: file, Logger: log}))(t)
			if want := fmt.Sprintf("path:%s records:%d", file, test.unreadable); test.unreadable > 0 != strings.Contains(log.String(), want) {
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
			testkit.NoError(t, use(t, store))
			if n, err := boltstore.Look(boltstore.Config{Path: file}); err != nil || n != 0 {
				t.Errorf("afterwards: %d, %v, want none", n, err)
			}
			edit(t, file, nil, timesAgree(t))
		})
	}
}

// Nobody has to listen, and a file that was written without a list of its free pages is mended too.
func TestUnreadableRecordWithoutLoggerAndFreelist(t *testing.T) {
	file, _ := filled(t, 10)
	edit(t, file, &bbolt.Options{NoFreelistSync: true}, func(_, expiry *bbolt.Bucket) error { return replace(expiry, []byte("?")) })
	config := boltstore.Config{Path: file}
	if n, err := boltstore.Look(config); err != nil || n != 1 {
		t.Errorf("Look: %d, %v, want 1", n, err)
	}
	if store := open(t, config); !known(t, store, randomKey(3)) {
		t.Error("a message whose record can be read is not known")
	}
}

// Buckets whose counts do not agree, or that hold something else, are damage: what belongs together cannot be told.
func TestRecordsThatDoNotBelongTogether(t *testing.T) {
	key := randomKey(3)
	for name, change := range map[string]func(commits, expiry *bbolt.Bucket) error{
		"a commit too few": func(commits, _ *bbolt.Bucket) error { return commits.Delete(key[:]) },
		"a time too few":   func(_, expiry *bbolt.Bucket) error { k, _ := expiry.Cursor().First(); return expiry.Delete(k) },
		"another count":    func(_, expiry *bbolt.Bucket) error { return expiry.SetSequence(11) },
		"a bucket for a commit": func(commits, _ *bbolt.Bucket) error {
			err := commits.Delete(key[:])
			_, created := commits.CreateBucket(key[:])
			return errors.Join(err, created)
		},
		"another bucket": func(commits, _ *bbolt.Bucket) error {
			other, err := commits.Tx().CreateBucket([]byte("other"))
			return errors.Join(err, other.Put(key[:], []byte("8 bytes.")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			file, _ := filled(t, 10)
			edit(t, file, nil, change)
			config := boltstore.Config{Path: file}
			_, looked := boltstore.Look(config)
			_, opened := boltstore.New(config)
			for _, err := range []error{looked, opened} {
				if !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), file) {
					t.Errorf("got %v, want damage of %s", err, file)
				}
			}
		})
	}
}

// edit changes a file that no store has open.
func edit(t *testing.T, file string, options *bbolt.Options, change func(commits, expiry *bbolt.Bucket) error) {
	t.Helper()
	db, err := bbolt.Open(file, 0o600, options)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("commits")), tx.Bucket([]byte("expiry"))) })
	testkit.NoError(t, errors.Join(err, db.Close()))
}

// timesAgree checks that there is the time of each commit, and no other one.
func timesAgree(t *testing.T) func(commits, expiry *bbolt.Bucket) error {
	return func(commits, expiry *bbolt.Bucket) error {
		n := 0
		err := commits.ForEach(func(key, until []byte) error {
			if n++; expiry.Get(slices.Concat(until, key)) == nil {
				t.Errorf("a commit has no time")
			}
			return nil
		})
		if times := expiry.Stats().KeyN; times != n || expiry.Sequence() != uint64(n) {
			t.Errorf("%d commits, %d times and a count of %d", n, times, expiry.Sequence())
		}
		return err
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
