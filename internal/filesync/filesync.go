// Package filesync syncs what a file bucket of gocloud.dev/blob has written to
// disk, which its driver leaves to the operating system.
package filesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

// Write writes an object, as a whole or not at all. fill writes its content, of which that of a file is then synced. Its
// name becomes durable by [Directories].
func Write(ctx context.Context, bucket *blob.Bucket, key string, options blob.WriterOptions, fill func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var file *os.File
	options.BeforeWrite = func(as func(any) bool) error {
		as(&file) // leaves nil if it is not a file bucket
		return nil
	}
	w, err := bucket.NewWriter(ctx, key, &options)
	if err != nil {
		return err
	}
	if err = fill(w); err == nil && file != nil {
		err = file.Sync() // before Close renames it
	}
	if err != nil {
		cancel() // Close would make what has come so far the object
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	return err
}

// URL returns the URL of a bucket. For a file bucket it adds two settings unless they are
// present: temporary files are created in the bucket, because the default directory may
// be on another disk, and no metadata files are written.
func URL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "file" {
		return text
	}
	q := u.Query()
	for name, value := range map[string]string{"no_tmp_dir": "true", "metadata": "skip"} {
		if !q.Has(name) {
			q.Set(name, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// CheckURL returns what is wrong with the URL of a bucket: what its driver would drop without a word and store
// elsewhere than meant. Of a driver that is not one of gocloud.dev it knows only that none is given a fragment.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	known := slices.Contains([]string{"file", "mem", "s3", "gs", "azblob"}, u.Scheme)
	switch {
	case strings.Contains(text, "#"):
		return errors.New("must not have a fragment, which nobody reads: write # in a name as %23")
	case known && u.User != nil:
		return errors.New("must not have a user before @, whom nobody asks: write @ in a name as %40")
	case known && u.Scheme != "file" && strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("must not have a path, which the driver drops: use %s://%s?prefix=NAME/ for keys below NAME", u.Scheme, u.Host)
	case u.Scheme != "file":
		return nil
	case u.Host != "" && u.Host != "." && u.Host != "localhost", u.Opaque != "":
		return errors.New("must have three slashes before the directory, such as file:///var/lib/agrimill")
	case strings.Trim(u.Path, "/") == "":
		return errors.New("must name a directory, such as file:///var/lib/agrimill")
	}
	// The driver checks the settings before it opens the directory, and there is always this one.
	bucket, err := new(fileblob.URLOpener).OpenBucketURL(context.Background(), &url.URL{Scheme: u.Scheme, Path: "/", RawQuery: u.RawQuery})
	if err != nil {
		return fmt.Errorf("has a wrong setting: %w", cmp.Or(errors.Unwrap(err), err))
	}
	return bucket.Close()
}

// IsFiles reports whether bucket is a file bucket.
func IsFiles(bucket *blob.Bucket) bool {
	var dir os.FileInfo
	return bucket.As(&dir)
}

// Directories syncs the directories of an object in a file bucket. Call it after
// [Write]: a name is durable only once its directory is, and each segment of the key
// may have created one.
func Directories(ctx context.Context, bucket *blob.Bucket, key string) error {
	var root os.FileInfo
	if !bucket.As(&root) || runtime.GOOS == "windows" { // which cannot sync directories
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
	defer func() { _ = r.Close() }() // opened only for its name
	if named == nil {
		return nil
	}
	// Up to that of the bucket, which a prefix of all keys may be below.
	for dir := filepath.Dir(named.Name()); ; dir = filepath.Dir(dir) {
		is, err := syncDirectory(dir)
		if err != nil || os.SameFile(is, root) || dir == filepath.Dir(dir) {
			return err
		}
	}
}

// syncDirectory also returns which one it was.
func syncDirectory(path string) (os.FileInfo, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // nothing was written to it
	if err := d.Sync(); err != nil {
		return nil, err
	}
	return d.Stat()
}
