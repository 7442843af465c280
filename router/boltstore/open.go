package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/agrimill/agrimill/internal/boltfile"
	"github.com/agrimill/agrimill/router"
)

// mend removes the commits that cannot be read, and makes their times anew of the others.
func mend(tx *bbolt.Tx) error {
	byKey := tx.Bucket(commits)
	if err := tx.DeleteBucket(expiry); err != nil {
		return err
	}
	byTime, err := tx.CreateBucket(expiry)
	if err != nil {
		return err
	}
	var unreadable [][]byte
	err = byKey.ForEach(func(key, value []byte) error {
		if !isCommit(key, value) {
			unreadable = append(unreadable, bytes.Clone(key))
			return nil
		}
		if err := byTime.SetSequence(byTime.Sequence() + 1); err != nil {
			return err
		}
		return byTime.Put(timeKey(decodeTime(value), router.Key(key)), nil)
	})
	for _, key := range unreadable {
		err = errors.Join(err, byKey.Delete(key))
	}
	return err
}

// Look reads the file as [New] does, and returns how many records New would remove because they cannot be read. It changes
// nothing. The errors are those of New; a file that does not exist has no records.
func Look(config Config) (unreadable int, err error) {
	if err := config.Validate(); err != nil {
		return 0, err
	}
	config = config.WithDefaults()
	if unreadable, err = inspect(config); err != nil {
		return 0, openError(config.Path, err)
	}
	return unreadable, nil
}

// inspect checks the file for damage, if it exists, and returns how many of its records cannot be read. It only reads.
func inspect(config Config) (unreadable int, err error) {
	var commitCount, times, counted uint64 // counted is what the store has counted
	err = boltfile.Inspect(config.Path, config.OpenTimeout, func(bucket, key, value []byte) error {
		known := true
		switch {
		case bucket == nil && bytes.Equal(key, expiry):
			counted = binary.NativeEndian.Uint64(value[8:]) // its sequence
		case bucket == nil:
		case bytes.Equal(bucket, commits):
			known = isCommit(key, value)
			commitCount++
		case bytes.Equal(bucket, expiry):
			known = len(key) == timeSize+len(router.Key{}) && len(value) == 0
			times++
		default:
			return errors.New("is none of a dedup store")
		}
		if !known {
			unreadable++
		}
		return nil
	})
	if err == nil && (commitCount != times || times != counted) {
		err = fmt.Errorf("it has %d commits, %d times and a count of %d", commitCount, times, counted)
	}
	return unreadable, err
}

// isCommit reports whether a record of the commits can be read.
func isCommit(key, value []byte) bool { return len(key) == len(router.Key{}) && len(value) == timeSize }

// openError classifies an error of opening the file. What is not an error of the system is
// caused by its contents.
func openError(path string, err error) error {
	var system syscall.Errno
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%w: Path: %w", ErrConfig, err)
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%w (%s)", err, path)
	case !errors.As(err, &system):
		return fmt.Errorf("%w: %w (%s)", ErrDamaged, err, path)
	}
	return fmt.Errorf("boltstore: %w", err)
}

// update is bbolt's Update, except that it leaves the transaction alone after a panic.
// Rolling it back would read the file again and panic or hang in turn.
func update(begin func(writable bool) (*bbolt.Tx, error), f func(*bbolt.Tx) error) error {
	tx, err := begin(true)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
