package blob_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	gcblob "gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/blob"
)

var errKilled = errors.New("killed")

// steps is a bucket that takes note of what is done with another one, and where the
// process can be killed before each step: then nothing comes to the other one any more.
type steps struct {
	*gcblob.Bucket
	left int // before the kill; negative: none

	// written and read give the file that is synced for an object, and the one whose
	// directories are; nil: that of the other bucket.
	written, read func(key string) *os.File
}

func (s *steps) step() error {
	if s.left == 0 {
		return errKilled
	}
	s.left--
	return nil
}

func (s *steps) open() *gcblob.Bucket { return gcblob.NewBucket(s) }

func (s *steps) ErrorCode(err error) gcerrors.ErrorCode { return gcerrors.Code(err) }
func (s *steps) ErrorAs(error, any) bool                { return false }
func (s *steps) Close() error                           { return nil }

func (s *steps) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	a, err := s.Bucket.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	return &driver.Attributes{ModTime: a.ModTime, Size: a.Size}, nil
}

func (s *steps) ListPaged(context.Context, *driver.ListOptions) (*driver.ListPage, error) {
	return nil, errors.ErrUnsupported
}

func (s *steps) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return errors.ErrUnsupported
}

func (s *steps) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errors.ErrUnsupported
}

func (s *steps) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Bucket.Delete(ctx, key)
}

// reader is that of the other bucket.
type reader struct{ *gcblob.Reader }

func (r reader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.Size(), ModTime: r.ModTime()}
}
func (reader) As(any) bool { return false }

func (s *steps) NewRangeReader(ctx context.Context, key string, offset, length int64, options *driver.ReaderOptions) (driver.Reader, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	r, err := s.Bucket.NewRangeReader(ctx, key, offset, length, &gcblob.ReaderOptions{BeforeRead: instead(s.read, key, options.BeforeRead)})
	if err != nil {
		return nil, err
	}
	return reader{r}, nil
}

// instead makes a hook see another file.
func instead(files func(key string) *os.File, key string, hook func(func(any) bool) error) func(func(any) bool) error {
	if hook == nil || files == nil {
		return hook
	}
	return func(as func(any) bool) error {
		return hook(func(target any) bool {
			ok := as(target)
			if f := files(key); f != nil && ok {
				*target.(**os.File) = f
			}
			return ok
		})
	}
}

// writer writes an object when it is closed, and not if the process is killed before.
type writer struct {
	*gcblob.Writer
	s      *steps
	cancel context.CancelFunc
}

func (s *steps) NewTypedWriter(ctx context.Context, key, contentType string, options *driver.WriterOptions) (driver.Writer, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := s.Bucket.NewWriter(ctx, key, &gcblob.WriterOptions{
		ContentType: contentType, IfNotExist: options.IfNotExist, BeforeWrite: instead(s.written, key, options.BeforeWrite),
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return writer{w, s, cancel}, nil
}

func (w writer) Close() error {
	defer w.cancel()
	if err := w.s.step(); err != nil {
		w.cancel()
		_ = w.Writer.Close() // writes nothing
		return err
	}
	return w.Writer.Close()
}

// TestKilledBetweenSteps: whatever is left of an attempt that was killed, the next one
// archives the message as a whole, and what was acknowledged before stays as it is.
func TestKilledBetweenSteps(t *testing.T) {
	for where, open := range map[string]func(t *testing.T) *gcblob.Bucket{
		"memory":    func(*testing.T) *gcblob.Bucket { return memblob.OpenBucket(nil) },
		"directory": func(t *testing.T) *gcblob.Bucket { t.Helper(); b, _ := openDirectory(t); return b },
	} {
		for left, lost := range map[string]func(key string) string{
			"nothing": func(string) string { return "" },
			"whole":   nil,
			"payload": func(key string) string { return key + blob.SidecarSuffix },
			"sidecar": func(key string) string { return key }, // after a power cut
		} {
			t.Run(where+"/"+left, func(t *testing.T) {
				killed := true
				for n := 0; killed; n++ {
					bucket := open(t)
					publish := func(left int, payload string) error {
						s := &steps{Bucket: bucket, left: left}
						return backend{bucket: s.open()}.NewSink(t).Publish("topic", withID("id", payload))
					}
					if left != "nothing" {
						testkit.NoError(t, publish(-1, "first"))
					}
					if lost != nil && left != "nothing" {
						testkit.NoError(t, bucket.Delete(t.Context(), lost(readBucket(t, bucket, "")[0].key)))
					}
					err := publish(n, "other")
					if killed = err != nil; killed && !errors.Is(err, errKilled) {
						t.Fatalf("killed before step %d: %v", n, err)
					}
					if err := publish(-1, "third"); err != nil {
						t.Fatalf("after a kill before step %d: %v", n, err)
					}
					want := []string{"other", "third"}
					switch {
					case left == "whole":
						want = []string{"first"}
					case !killed:
						want = []string{"other"}
					}
					all := readBucket(t, bucket, "") // which compares payload and checksum
					if len(all) != 1 || !slices.Contains(want, string(all[0].payload)) {
						t.Errorf("archived after a kill before step %d: %+v, want one of %q", n, all, want)
					}
					if t.Failed() {
						t.FailNow()
					}
				}
			})
		}
	}
}

// TestSyncedBeforeAcknowledgement: a file that cannot be forced to the disk is not there,
// and a message is not acknowledged before its files and their names are.
func TestSyncedBeforeAcknowledgement(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	testkit.NoError(t, os.Mkdir(gone, 0o700))
	closed := testkit.Must(os.Create(filepath.Join(gone, "closed")))(t)
	testkit.NoError(t, closed.Close())
	testkit.NoError(t, os.RemoveAll(gone))
	sidecar := func(key string) bool { return strings.HasSuffix(key, blob.SidecarSuffix) }
	for name, c := range map[string]struct {
		spoil func(s *steps, file func(of func(key string) bool) func(key string) *os.File)
		want  error
		there int // objects
	}{
		"payload": {func(s *steps, file func(func(string) bool) func(string) *os.File) {
			s.written = file(func(key string) bool { return !sidecar(key) })
		}, os.ErrClosed, 0},
		"sidecar": {func(s *steps, file func(func(string) bool) func(string) *os.File) { s.written = file(sidecar) }, os.ErrClosed, 1},
		"names": {func(s *steps, file func(func(string) bool) func(string) *os.File) {
			s.read = file(func(string) bool { return true })
		}, os.ErrNotExist, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "names" && runtime.GOOS == "windows" {
				t.Skip("cannot sync directories")
			}
			bucket, dir := openDirectory(t)
			s := &steps{Bucket: bucket, left: -1}
			c.spoil(s, func(of func(string) bool) func(string) *os.File {
				return func(key string) *os.File {
					if of(key) {
						return closed
					}
					return nil
				}
			})
			for range 2 { // a copy is no better
				testkit.ErrorIs(t, (backend{bucket: s.open()}).NewSink(t).Publish("topic", withID("id", "payload")), c.want)
			}
			there := 0
			err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
				if err == nil && !entry.IsDir() {
					there++
				}
				return err
			})
			if err != nil || there != c.there {
				t.Errorf("%d files are there, want %d (%v)", there, c.there, err)
			}
		})
	}
}
