package boltstore_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

// limitFiles has no file become larger than size.
func limitFiles(t *testing.T, size uint64) (lift func()) {
	t.Helper()
	var before syscall.Rlimit
	testkit.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	signal.Ignore(syscall.SIGXFSZ)
	testkit.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: before.Max}))
	lift = func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Error(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
	t.Cleanup(lift)
	return lift
}

// There is no room for more. That is no damage: what is there is found, what could
// not be written is remembered as long as the store is open, Health tells, and writes
// it down when there is room again.
func TestFull(t *testing.T) {
	file := path(t)
	store := open(t, boltstore.Config{Path: file})
	ctx := t.Context()
	commit(t, store, key(1), time.Hour)
	testkit.NoError(t, store.Health(ctx))
	lift := limitFiles(t, 1<<20)
	n := 0
	// fill returns which of 2000 commits failed.
	fill := func() (failed []router.Key) {
		type result struct {
			key router.Key
			err error
		}
		results := make(chan result, 2000)
		for range cap(results) {
			n++
			k := key(n + 10)
			go func() { // ends with its commit
				reservation, err := store.Reserve(ctx, claim(k), time.Nanosecond)
				results <- result{k, errors.Join(err, store.Commit(ctx, claim(k), reservation.Token, time.Hour))}
			}()
		}
		for range cap(results) {
			if r := <-results; errors.Is(r.err, boltstore.ErrDamaged) {
				t.Errorf("Commit: %v", r.err)
			} else if r.err != nil {
				failed = append(failed, r.key)
			}
		}
		return failed
	}
	var failed []router.Key
	for len(failed) < 2000 && n < 100_000 { // more than one transaction takes
		failed = append(failed, fill()...)
	}
	if len(failed) < 2000 {
		t.Fatalf("only %d of %d commits failed", len(failed), n)
	}
	// The leases are over by now.
	unknown := func() (keys int) {
		for _, k := range failed {
			if !known(t, store, k) {
				keys++
			}
		}
		return keys
	}
	if !known(t, store, key(1)) {
		t.Error("the first commit is not known")
	}
	if got := unknown(); got > 0 {
		t.Errorf("%d of %d commits that could not be written are not known", got, len(failed))
	}
	for range 3 {
		if err := store.Health(ctx); err == nil || errors.Is(err, boltstore.ErrDamaged) {
			t.Errorf("Health without room: %v", err)
		}
	}
	lift()
	if err := store.Health(ctx); err != nil {
		t.Errorf("Health with room again: %v", err)
	}
	commit(t, store, key(2), time.Hour)
	testkit.NoError(t, store.Close())
	store = open(t, boltstore.Config{Path: file})
	if !known(t, store, key(1)) || !known(t, store, key(2)) {
		t.Error("the file does not hold what was written")
	}
	if got := unknown(); got > 0 {
		t.Errorf("the file lacks %d of %d commits that could not be written before", got, len(failed))
	}
}

// A disk that has no room for a new file, or for a part of it only, is full, and the store opens when there is room.
func TestNewFileOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { testkit.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	for pages := range 6 {
		testkit.NoError(t, os.WriteFile(filler, make([]byte, 256<<10-pages*os.Getpagesize()), 0o600))
		file := filepath.Join(dir, fmt.Sprint(pages))
		for range 2 {
			if _, err := boltstore.New(boltstore.Config{Path: file, OpenTimeout: time.Millisecond}); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, boltstore.ErrDamaged) {
				t.Errorf("with %d free pages: %v", pages, err)
			}
		}
		testkit.NoError(t, os.Remove(filler))
		store := testkit.Must(boltstore.New(boltstore.Config{Path: file, OpenTimeout: time.Millisecond}))(t)
		testkit.NoError(t, errors.Join(store.Close(), os.Remove(file)))
	}
}

// What the file system does not allow is reported as that, and not as a mistake in the
// configuration.
func TestForbidden(t *testing.T) {
	dir := t.TempDir()
	readOnly, forbidden := filepath.Join(dir, "read-only.db"), filepath.Join(dir, "forbidden.db")
	store := open(t, boltstore.Config{Path: readOnly})
	commit(t, store, key(1), time.Hour)
	testkit.NoError(t, store.Close())
	testkit.NoError(t, errors.Join(os.WriteFile(forbidden, nil, 0), os.Chmod(readOnly, 0o444), os.Chmod(dir, 0o555), os.Chmod(filepath.Dir(dir), 0o755)))
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	defer testkit.Unprivileged(t)()
	for name, path := range map[string]string{
		"read-only": readOnly, "forbidden": forbidden, "directory": filepath.Join(dir, "new.db"),
	} {
		_, err := boltstore.New(boltstore.Config{Path: path, OpenTimeout: time.Millisecond})
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, boltstore.ErrConfig) || errors.Is(err, boltstore.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
