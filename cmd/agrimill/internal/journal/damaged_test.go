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
	testkit.NoError(t, errors.Join(err, db.Close()))
}

// A file that cannot be read to its end is put aside, and a new one begins: what it tells is told once. Three chunks have two
// entries each.
func TestFileThatCannotBeRead(t *testing.T) {
	second := func(f func(chunk []byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			chunks(t, path, func(number int, chunk []byte) []byte {
				if number == 2 {
					return f(chunk)
				}
				return chunk
			})
		}
	}
	replaced := func(content []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { testkit.NoError(t, os.WriteFile(path, content, 0o600)) }
	}
	cut := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			testkit.NoError(t, os.Truncate(path, size))
		}
	}
	circle := func(t *testing.T, path string) { // each leaf becomes a branch, which is a child of itself
		content, size, native := testkit.Must(os.ReadFile(path))(t), os.Getpagesize(), binary.NativeEndian
		for id := 2; id < len(content)/size; id++ {
			if page := content[id*size:]; native.Uint16(page[8:]) == 2 {
				native.PutUint16(page[8:], 1)
				native.PutUint32(page[16:], 16)
				native.PutUint32(page[20:], 1)
				native.PutUint64(page[24:], uint64(id))
				native.PutUint16(page[10:], 1)
			}
		}
		testkit.NoError(t, os.WriteFile(path, content, 0o600))
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, path string)
		left   int  // entries
		aside  bool // the file was renamed
	}{
		"nothing":                   {func(*testing.T, string) {}, 6, false},
		"a torn chunk":              {second(func(c []byte) []byte { return c[:len(c)-3] }), 0, true},
		"a chunk of something else": {second(func(c []byte) []byte { return bytes.Repeat([]byte{0xFF}, len(c)) }), 0, true},
		"a step of another version": {second(func(c []byte) []byte { c[12] = 250; return c }), 0, true},
		"an empty chunk":            {second(func([]byte) []byte { return []byte{} }), 4, false},
		"text":                      {replaced([]byte("this is no database")), 0, true},
		"zeros":                     {replaced(make([]byte, 64<<10)), 0, true},
		"no length":                 {cut(0), 0, false},
		"cut in half":               {cut(6000), 0, true},
		"a circle":                  {circle, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.bbolt")
			d := &diary{t: t, now: time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)}
			for i := range 3 {
				d.reopen(journal.Config{}, path)
				d.Event(received(fmt.Sprint("a", i), "", "a.zip"))
				d.Event(received(fmt.Sprint("b", i), "", "b.zip"))
				d.close()
				d.now = d.now.Add(time.Hour)
			}
			test.damage(t, path)
			if name == "cut in half" {
				if err := journal.Look(path); !errors.Is(err, journal.ErrDamaged) {
					t.Errorf("Look: %v", err)
				}
			}
			errs := *d.reopen(journal.Config{}, path)
			if stats := d.Stats(); stats.Entries != test.left || (test.left == 0) != stats.Since.Equal(d.now) {
				t.Errorf("%d entries, complete since %v, want %d", stats.Entries, stats.Since, test.left)
			}
			if told := fmt.Sprint(errs); (len(errs) == 1) != test.aside || test.aside && (!strings.Contains(told, path) || !strings.Contains(told, "a new one begins")) {
				t.Errorf("told %v", errs)
			}
			if _, err := os.Stat(path + ".damaged"); (err == nil) != test.aside {
				t.Errorf("the damaged file: %v", err)
			}
			d.Event(received("new", "", "new.zip"))
			d.close()
			d.reopen(journal.Config{}, path)
			if len(d.Trace("new", journal.Only{}, 1).Messages) != 1 {
				t.Error("what comes then is not kept")
			}
		})
	}
}

// What is no file is an error with the path, and so is one that may not be read, until it may: nothing is replaced.
func TestFileThatCannotBeOpened(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, path string){
		"a directory": func(t *testing.T, path string) {
			testkit.NoError(t, os.Mkdir(path, 0o700))
		},
		"no permission": func(t *testing.T, path string) {
			testkit.NoError(t, os.WriteFile(path, nil, 0o600))
			testkit.NoError(t, os.Chmod(path, 0))
			t.Cleanup(testkit.Unprivileged(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.bbolt")
			make(t, path)
			j, err := journal.New(journal.Config{Path: path})
			if (j != nil) != (name == "no permission") {
				t.Errorf("got %v", err)
			} else if j != nil {
				err = j.Err()
				testkit.NoError(t, j.Close())
			}
			if err == nil || errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(path + ".damaged"); err == nil {
				t.Error("it was renamed")
			}
		})
	}
}
