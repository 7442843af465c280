package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

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
	info, err := os.Stat(config.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Size() == 0:
		return 0, nil
	case err != nil:
		return 0, err
	case info.IsDir():
		return 0, &fs.PathError{Op: "open", Path: config.Path, Err: syscall.EISDIR}
	}
	db, file, err := open(config, true)
	if err != nil {
		return 0, err
	}
	if info, err = file.Stat(); err == nil {
		unreadable, err = check(file, info.Size(), db.Info().PageSize)
	}
	return unreadable, errors.Join(err, db.Close())
}

// open opens the database and also returns the underlying file.
func open(config Config, readOnly bool) (db *bbolt.DB, file *os.File, err error) {
	err = guarded(func() (err error) {
		db, err = bbolt.Open(config.Path, 0o600, &bbolt.Options{
			Timeout:      config.OpenTimeout,
			ReadOnly:     readOnly,
			FreelistType: bbolt.FreelistMapType,
			OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
				var err error
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	if err != nil && file != nil {
		_ = file.Close() // in case bbolt has panicked
	}
	return db, file, err
}

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

// guarded calls bbolt. Damage makes it panic, or read beyond the end of the file or where
// the disk fails.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if value := recover(); value != nil {
			// It may list every page of the file.
			err = fmt.Errorf("%w: %.200s", ErrDamaged, fmt.Sprint(value))
		}
	}()
	return f()
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
