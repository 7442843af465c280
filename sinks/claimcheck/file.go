package claimcheck

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gocloud.dev/blob"
)

// fileSync forces what a file bucket has written to the disk, which its driver
// leaves to the system. With other buckets it does nothing.
type fileSync struct{ f *os.File }

// beforeWrite is for blob.WriterOptions.
func (s *fileSync) beforeWrite(as func(any) bool) error {
	as(&s.f) // leaves nil when the bucket has no files
	return nil
}

// sync is called between the last write and the renaming.
func (s *fileSync) sync() error {
	if s.f == nil {
		return nil
	}
	return s.f.Sync()
}

// syncDirectories is called after the renaming: a name is durable when its
// directory is, and each segment of the key may have made one.
func (s *fileSync) syncDirectories(ctx context.Context, bucket *blob.Bucket, key string) error {
	if s.f == nil || runtime.GOOS == "windows" { // has no such thing
		return nil
	}
	var named *os.File
	r, err := bucket.NewRangeReader(ctx, key, 0, 0, &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		as(&named)
		return nil
	}})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // nothing was read
	if named == nil {
		return nil
	}
	dir := filepath.Dir(named.Name())
	for range strings.Count(key, "/") + 1 {
		if err := syncDirectory(dir); err != nil {
			return err
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written to it
	return d.Sync()
}
