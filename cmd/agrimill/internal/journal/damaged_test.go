package journal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/internal/testkit"
)

// chunks calls f with each chunk of a file that is closed, and stores what it returns; nil deletes it.
func chunks(t *testing.T, path string, f func(n int, chunk []byte) []byte) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		changed := map[string][]byte{}
		err := tx.Bucket([]byte("entries")).ForEach(func(key, chunk []byte) error {
			changed[string(key)] = f(int(binary.BigEndian.Uint64(key)), bytes.Clone(chunk))
			return nil
		})
		for key, chunk := range changed {
			err = errors.Join(err, tx.Bucket([]byte("entries")).Put([]byte(key), chunk))
		}
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// What of a file cannot be read is left out and told; the rest is there, and since when it is complete is said. Three chunks
// have two entries each, an hour apart.
func TestFileInPartUnreadable(t *testing.T) {
	const began = -1 // complete since the beginning
	change := func(n int, f func(chunk []byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			chunks(t, path, func(number int, chunk []byte) []byte {
				if number == n {
					return f(chunk)
				}
				return chunk
			})
		}
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, path string)
		left   []string
		since  int // hours
		told   string
		aside  bool // the file was renamed
	}{
		"nothing":                   {func(*testing.T, string) {}, []string{"a0", "b0", "a1", "b1", "a2", "b2"}, began, "", false},
		"the last chunk is torn":    {change(3, func(c []byte) []byte { return c[:len(c)-3] }), []string{"a0", "b0", "a1", "b1", "a2"}, 3, "1 of its chunks", false},
		"the first chunk is torn":   {change(1, func(c []byte) []byte { return c[:len(c)-3] }), []string{"a0", "a1", "b1", "a2", "b2"}, 1, "1 of its chunks", false},
		"the middle is unreadable":  {change(2, func(c []byte) []byte { return bytes.Repeat([]byte{0xFF}, len(c)) }), []string{"a0", "b0", "a2", "b2"}, 2, "1 of its chunks", false},
		"a step of another version": {change(2, func(c []byte) []byte { c[12] = 250; return c }), []string{"a0", "b0", "a2", "b2"}, 2, "damaged or of another version", false},
		"an empty chunk":            {change(2, func([]byte) []byte { return []byte{} }), []string{"a0", "b0", "a2", "b2"}, began, "", false},
		"all of it": {func(t *testing.T, path string) {
			chunks(t, path, func(_ int, c []byte) []byte { return c[:5] })
		}, nil, 3, "3 of its chunks", false},
		"no length": {func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}, nil, 3, "", false},
		"cut in half": {func(t *testing.T, path string) {
			if err := os.Truncate(path, 6000); err != nil {
				t.Fatal(err)
			}
		}, nil, 3, "a new one begins", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.bbolt")
			start := time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)
			d := &diary{t: t, now: start}
			for i := range 3 {
				d.reopen(journal.Config{}, path)
				d.Event(received(fmt.Sprint("a", i), "", "a.zip"))
				d.Event(received(fmt.Sprint("b", i), "", "b.zip"))
				d.close()
				d.now = d.now.Add(time.Hour)
			}
			test.damage(t, path)
			if test.aside {
				if _, err := journal.Look(path); !errors.Is(err, journal.ErrDamaged) {
					t.Errorf("Look: %v", err)
				}
			}
			errs := *d.reopen(journal.Config{}, path)
			var left []string
			for i := range 3 {
				for _, id := range []string{fmt.Sprint("a", i), fmt.Sprint("b", i)} {
					if len(d.Trace(id, 1).Messages) == 1 {
						left = append(left, id)
					}
				}
			}
			testkit.Equal(t, left, test.left)
			want := start
			if test.since != began {
				want = start.Add(time.Duration(test.since) * time.Hour)
			}
			if got := d.Stats().Since; !got.Equal(want) {
				t.Errorf("complete since %v, want %v", got, want)
			}
			if told := fmt.Sprint(errs); len(errs) > 1 || !strings.Contains(told, test.told) || (test.told == "") != (len(errs) == 0) || test.told != "" && !strings.Contains(told, path) {
				t.Errorf("told %v, want %q", errs, test.told)
			}
			if _, err := os.Stat(path + ".damaged"); (err == nil) != test.aside {
				t.Errorf("the damaged file: %v", err)
			}
			d.Event(received("new", "", "new.zip"))
			d.close()
			d.reopen(journal.Config{}, path)
			if len(d.Trace("new", 1).Messages) != 1 {
				t.Error("what comes then is not kept")
			}
		})
	}
}

// What is no file, or may not be read, is an error with the path: nothing is replaced.
func TestFileThatCannotBeOpened(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, path string){
		"a directory": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"no permission": func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(testkit.Unprivileged(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.bbolt")
			make(t, path)
			j, err := journal.New(journal.Config{Path: path})
			if err == nil || j != nil || errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(path + ".damaged"); err == nil {
				t.Error("it was renamed")
			}
		})
	}
}
