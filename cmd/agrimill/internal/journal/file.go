package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/agrimill/agrimill/internal/boltfile"
)

const (
	// flushEvery is how often a file gets what was recorded.
	flushEvery = time.Second
	// openTimeout is how long New waits for another process that has the file.
	openTimeout = time.Second
	// damagedSuffix is added to the name of a file that cannot be read.
	damagedSuffix = ".damaged"
)

var (
	bucketEntries, bucketMeta = []byte("entries"), []byte("meta")
	keyBegan                  = []byte("began") // from when on it is complete, Unix nanoseconds
)

// ErrDamaged says that a file cannot be read.
var ErrDamaged = errors.New("the file is damaged")

// errUnreadable: bbolt can read the file, and not all of it is entries.
var errUnreadable = errors.New("it has entries that this version cannot read")

// Look reads a file as New does, and changes nothing. The error matches ErrInUse or ErrDamaged, with
// which New would begin a new file, or is that of the system.
func Look(path string) error {
	if err := kindOf(inspect(path)); err != nil {
		return fmt.Errorf("journal: %s: %w", path, err)
	}
	return nil
}

func inspect(path string) error {
	return boltfile.Inspect(path, openTimeout, func(_, _, _ []byte) error { return nil })
}

// kindOf gives errors about a file their type. What is not an error of the system is caused by what the file has.
func kindOf(err error) error {
	var system syscall.Errno
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return ErrInUse
	case err == nil, errors.Is(err, ErrDamaged), errors.As(err, &system):
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// file keeps a journal in a bbolt database: entries as they are in memory, a chunk for each flush.
type file struct {
	db     *bbolt.DB // nil: it could not be opened yet
	next   uint64    // key of the next chunk
	oldest uint64    // no chunk has a smaller key
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once
	err    error // of close
	broken bool  // the database must not be used anymore
}

// openFile opens the file of Config.Path, or has each flush try again. The error is that of a path that cannot be a file.
func (j *Journal) openFile() error {
	j.file = &file{next: 1, stop: make(chan struct{}), done: make(chan struct{})}
	err := j.file.open(j)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) {
		return fmt.Errorf("journal: %s: %w", j.cfg.Path, err)
	}
	j.fails(err)
	go j.file.run(j)
	return nil
}

// open opens the database, and puts what it has before what was recorded meanwhile. One that is damaged is renamed, since
// what it has is worth less than that agrimill runs.
func (f *file) open(j *Journal) error {
	kept, err := f.read(j)
	if errors.Is(err, ErrDamaged) {
		aside := j.cfg.Path + damagedSuffix
		if renamed := os.Rename(j.cfg.Path, aside); renamed != nil {
			return fmt.Errorf("the file is damaged, and cannot be moved away: %w", renamed)
		}
		j.tell(fmt.Errorf("journal: %w; it is now %s, and a new one begins", err, aside))
		kept, err = f.read(j)
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if last := len(kept.segments) - 1; last >= 0 {
		j.opened = Mark{segment: kept.segments[last], offset: len(kept.segments[last].data)}
	}
	j.segments = append(kept.segments, j.segments...)
	j.bytes, j.entries, j.began = j.bytes+kept.bytes, j.entries+kept.entries, kept.began
	j.prune(j.cfg.Now().UnixNano(), 0)
	return nil
}

// read opens the database and returns what it has.
func (f *file) read(j *Journal) (*Journal, error) {
	err := inspect(j.cfg.Path)
	if err != nil {
		return nil, kindOf(err)
	}
	db, _, err := boltfile.Open(j.cfg.Path, openTimeout, false)
	if err != nil {
		return nil, kindOf(err)
	}
	kept, began := &Journal{cfg: j.cfg}, j.began.UnixNano()
	err = boltfile.Guarded(ErrDamaged, func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucketIfNotExists(bucketMeta)
			if err != nil {
				return err
			}
			if value := meta.Get(keyBegan); len(value) == 8 {
				began = int64(binary.BigEndian.Uint64(value))
			} else if err := meta.Put(keyBegan, binary.BigEndian.AppendUint64(nil, uint64(began))); err != nil {
				return err
			}
			entries, err := tx.CreateBucketIfNotExists(bucketEntries)
			if err != nil {
				return err
			}
			return entries.ForEach(func(key, value []byte) error {
				number := binary.BigEndian.Uint64(key)
				f.next = number + 1
				return kept.take(number, value)
			})
		})
	})
	if err != nil {
		if !errors.Is(err, ErrDamaged) {
			err = errors.Join(err, db.Close())
		}
		return nil, kindOf(err)
	}
	f.db, kept.began = db, time.Unix(0, began)
	return kept, nil
}

// take appends a chunk of the file. Chunks are in the order of their segments.
func (j *Journal) take(number uint64, chunk []byte) error {
	var e Entry
	n := 0
	for rest := chunk; len(rest) > 0; n++ {
		var ok bool
		if rest, ok = e.read(rest); !ok {
			return errUnreadable
		}
	}
	s := j.current(len(chunk))
	if s == nil {
		s = j.begin(len(chunk))
	}
	s.data = append(s.data, chunk...)
	s.entries += n
	s.last = max(s.last, e.At)
	s.saved, s.first = len(s.data), cmp.Or(s.first, number)
	j.entries += n
	return nil
}

func (f *file) run(j *Journal) {
	defer close(f.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.flush(j)
		case <-f.stop:
			f.flush(j)
			return
		}
	}
}

// flush writes what was recorded since the last one, and deletes what was dropped. What cannot be written now
// is written with the next one.
func (f *file) flush(j *Journal) {
	if f.db == nil {
		if err := f.open(j); err != nil {
			j.fails(err)
			return
		}
	}
	if f.broken {
		return
	}
	type chunk struct {
		segment *segment
		number  uint64
		data    []byte
		end     int
	}
	var chunks []chunk
	j.mu.Lock()
	oldest := f.next
	if len(j.segments) > 0 {
		oldest = cmp.Or(j.segments[0].first, oldest)
	}
	for _, s := range j.segments {
		if len(s.data) > s.saved {
			chunks = append(chunks, chunk{s, f.next, s.data[s.saved:], len(s.data)})
			f.next++
		}
	}
	since := j.since().UnixNano()
	j.mu.Unlock()
	if len(chunks) == 0 && oldest == f.oldest {
		return
	}
	err := boltfile.Guarded(ErrDamaged, func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			entries := tx.Bucket(bucketEntries)
			for _, c := range chunks {
				if err := entries.Put(binary.BigEndian.AppendUint64(nil, c.number), c.data); err != nil {
					return err
				}
			}
			if oldest == f.oldest {
				return nil
			}
			all := entries.Cursor()
			for key, _ := all.First(); key != nil && binary.BigEndian.Uint64(key) < oldest; key, _ = all.First() {
				if err := all.Delete(); err != nil {
					return err
				}
			}
			return tx.Bucket(bucketMeta).Put(keyBegan, binary.BigEndian.AppendUint64(nil, uint64(since)))
		})
	})
	if err == nil {
		f.oldest = oldest
		j.mu.Lock()
		for _, c := range chunks {
			c.segment.saved, c.segment.first = c.end, cmp.Or(c.segment.first, c.number)
		}
		j.mu.Unlock()
	}
	f.broken = errors.Is(err, ErrDamaged)
	j.fails(err)
}

func (f *file) close() error {
	f.once.Do(func() {
		close(f.stop)
		<-f.done
		if f.db != nil && !f.broken { // closing it would wait for the transaction that failed
			f.err = f.db.Close()
		}
	})
	return f.err
}

// fails remembers why the file lacks what was recorded, nil if it does not, and tells that once.
func (j *Journal) fails(err error) {
	if err != nil {
		err = fmt.Errorf("journal: %s: %w", j.cfg.Path, err)
	}
	j.mu.Lock()
	told := j.failure != nil
	j.failure = err
	j.mu.Unlock()
	if err != nil && !told {
		j.tell(fmt.Errorf("%w; the journal is only in memory until it can be written", err))
	}
}

// Err returns why the file lacks what was recorded; nil if it does not, or if there is none.
func (j *Journal) Err() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failure
}

func (j *Journal) tell(err error) {
	if j.cfg.Failed != nil {
		j.cfg.Failed(err)
	}
}

// Close writes what Config.Path lacks and closes the file. Nothing is recorded in it afterwards. Further calls return
// the same.
func (j *Journal) Close() error {
	if j == nil || j.file == nil {
		return nil
	}
	return j.file.close()
}
