package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// kept is a journal with a file, and the errors that it tells.
func (d *diary) reopen(cfg journal.Config, path string) (errs *[]error) {
	d.t.Helper()
	errs = &[]error{}
	cfg.Now, cfg.Path = func() time.Time { return d.now }, path
	cfg.Failed = func(err error) { *errs = append(*errs, err) }
	d.Journal = testkit.Must(journal.New(cfg))(d.t)
	kept := d.Journal
	d.t.Cleanup(func() {
		if err := kept.Close(); err != nil {
			d.t.Error(err)
		}
	})
	return errs
}

func (d *diary) close() {
	d.t.Helper()
	for range 2 {
		testkit.NoError(d.t, d.Close())
	}
}

// What a file keeps is there after a restart, as it was, and what comes then is added.
func TestFileOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.bbolt")
	d := &diary{t: t, now: time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)}
	d.reopen(journal.Config{}, path)
	began := d.Stats().Since
	d.Event(received("message-1", "context-1", "a.zip"))
	d.observe(router.EventStarted, routed("message-1", "context-1"))
	before := d.one("a.zip")
	d.close()
	d.now = d.now.Add(time.Hour)
	for round := range 3 {
		errs := d.reopen(journal.Config{}, path)
		if got := d.one("a.zip"); round == 0 {
			testkit.Equal(t, got, before)
		}
		if got := d.Stats().Since; !got.Equal(began) {
			t.Errorf("known since %v, want %v", got, began)
		}
		d.confirm("message-1")
		d.close()
		if len(*errs) > 0 {
			t.Error(*errs)
		}
	}
	d.reopen(journal.Config{}, path)
	if got := steps(d.one("message-1")); len(got) != 5 || got[4] != journal.StepConfirmed {
		t.Errorf("after three restarts: %v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// What was recorded is in the file a moment later, also if the process is killed.
func TestFileOfAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	d := &diary{t: t, now: time.Now()}
	d.reopen(journal.Config{}, filepath.Join(dir, "journal.bbolt"))
	d.Event(received("message-1", "", "a.zip"))
	testkit.Eventually(t, "it is in the file", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "journal.bbolt"))
		return err == nil && strings.Contains(string(data), "a.zip")
	})
}

// The bounds hold for the file, too, and what is too old is gone from it.
func TestBoundsOfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.bbolt")
	d := &diary{t: t, now: time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)}
	cfg := journal.Config{MaxBytes: 16 << 10, MaxAge: time.Hour}
	for range 4 {
		d.reopen(cfg, path)
		for range 100 {
			d.now = d.now.Add(time.Millisecond)
			d.Event(received("message-1", "", "a.zip"))
		}
		d.close()
	}
	d.reopen(cfg, path)
	stats := d.Stats()
	if stats.Bytes > cfg.MaxBytes || stats.Entries < 50 {
		t.Errorf("%+v", stats)
	}
	if want := d.now.Add(-time.Duration(stats.Entries) * time.Millisecond); !stats.Since.Equal(want) {
		t.Errorf("known since %v, want %v", stats.Since, want)
	}
	d.close()
	d.now = d.now.Add(2 * time.Hour)
	d.reopen(cfg, path)
	if stats := d.Stats(); stats.Entries != 0 || stats.Bytes != 0 {
		t.Errorf("too old: %+v", stats)
	}
	d.close()
	d.reopen(journal.Config{MaxAge: 100 * time.Hour}, path)
	if stats := d.Stats(); stats.Entries != 0 {
		t.Errorf("it was deleted, and is back: %+v", stats)
	}
}

// A file that another process has is taken over with what it has when that process ends. A path that cannot be a file is an error.
func TestFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal.bbolt")
	d, next := &diary{t: t, now: time.Now()}, &diary{t: t, now: time.Now()}
	d.reopen(journal.Config{}, path)
	d.Event(received("message-1", "", "a.zip"))
	errs := next.reopen(journal.Config{}, path)
	if err := next.Err(); !errors.Is(err, journal.ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second one: %v", err)
	}
	next.Event(received("message-2", "", "b.zip"))
	d.close()
	testkit.Eventually(t, "the second one has the file", func() bool { return next.Err() == nil })
	next.one("a.zip")
	var own []string
	_, complete := next.Follow(journal.Mark{}, func(e *journal.Entry) { own = append(own, string(e.ID())) })
	if len(own) != 1 || own[0] != "message-2" || !complete {
		t.Errorf("of this process are %q, complete: %t", own, complete)
	}
	next.close()
	if len(*errs) != 1 {
		t.Errorf("told %v", *errs)
	}
	next.reopen(journal.Config{}, path)
	next.one("a.zip")
	next.one("b.zip")
	if _, err := journal.New(journal.Config{Path: filepath.Join(dir, "no", "such", "directory")}); err == nil {
		t.Error("a directory that does not exist")
	}
}
