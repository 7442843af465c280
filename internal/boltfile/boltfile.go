// Package boltfile opens the files of bbolt, which trusts what they have, so that a damaged one is an error.
package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

// Record is called with each record of a file, and with the value of each bucket, in bucket nil: the number of its page, and
// its sequence. An error, the end of a sentence, says that the file is damaged.
type Record func(bucket, key, value []byte) error

// Inspect reads the whole file, if it exists, and changes nothing. What is not an error of the system or
// of bbolt is damage.
func Inspect(path string, timeout time.Duration, record Record) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Size() == 0:
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	db, file, err := Open(path, timeout, true)
	if err != nil {
		return err
	}
	if info, err = file.Stat(); err == nil {
		err = check(file, info.Size(), db.Info().PageSize, record)
	}
	return errors.Join(err, db.Close())
}

// Open opens the database and also returns the underlying file. A new one that the disk has no room for is left empty.
func Open(path string, timeout time.Duration, readOnly bool) (db *bbolt.DB, file *os.File, err error) {
	empty := false
	err = Guarded(errors.New("bbolt cannot read it"), func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:      timeout,
			ReadOnly:     readOnly,
			FreelistType: bbolt.FreelistMapType,
			OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
				var err error
				if file, err = os.OpenFile(name, flag, mode); err == nil {
					info, err := file.Stat()
					empty = err == nil && info.Size() == 0
				}
				return file, err
			},
		})
		return err
	})
	if err != nil && file != nil {
		_ = file.Close() // in case bbolt has panicked
	}
	if failed, ok := errors.AsType[*fs.PathError](err); ok && failed.Op == "write" && empty {
		err = errors.Join(err, os.Truncate(path, 0)) // a part of its beginning would be taken for damage
	}
	return db, file, err
}

// Guarded calls bbolt. Damage makes it panic, or read beyond the end of the file or where
// the disk fails, which becomes an error that matches damaged.
func Guarded(damaged error, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if value := recover(); value != nil {
			// It may list every page of the file.
			err = fmt.Errorf("%w: %.200s", damaged, fmt.Sprint(value))
		}
	}()
	return f()
}
