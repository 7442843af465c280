package claimcheck_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newStore has a bucket of its own; "file" has its files in dir.
func newStore(t *testing.T, kind, dir string) *claimcheck.Store {
	t.Helper()
	url := "mem://"
	if kind == "file" {
		url = "file://" + filepath.ToSlash(dir)
	}
	s := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: url, Prefix: "payloads/"}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// forEach runs test on every bucket that needs no service.
func forEach(t *testing.T, test func(t *testing.T, s *claimcheck.Store)) {
	for _, kind := range []string{"file", "mem"} {
		t.Run(kind, func(t *testing.T) { test(t, newStore(t, kind, t.TempDir())) })
	}
}

func put(t *testing.T, s *claimcheck.Store, key, content string) string {
	t.Helper()
	return testkit.Must(s.Put(t.Context(), key, strings.NewReader(content)))(t)
}

func get(t *testing.T, s *claimcheck.Store, reference string) (string, error) {
	t.Helper()
	r, size, err := s.Open(t.Context(), reference)
	if err != nil {
		return "", err
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	content, err := io.ReadAll(r)
	if err == nil && int64(len(content)) != size {
		t.Errorf("size %d, but %d bytes", size, len(content))
	}
	return string(content), err
}

func wantContent(t *testing.T, s *claimcheck.Store, reference, want string) {
	t.Helper()
	if got, err := get(t, s, reference); err != nil || got != want {
		t.Errorf("%s: %d bytes, %v; want %d bytes", reference, len(got), err, len(want))
	}
}

func TestPutOpenDelete(t *testing.T) {
	forEach(t, func(t *testing.T, s *claimcheck.Store) {
		for _, content := range []string{"", "a", strings.Repeat("large ", 1<<20)} {
			for _, key := range []string{"key", "a/b/c", "0f-_.=+Z"} {
				reference := put(t, s, key, content)
				wantContent(t, s, reference, content)
			}
		}
		put(t, s, "key", "replaced")
		wantContent(t, s, "key", "replaced")
		for range 2 { // again when it is gone
			if err := s.Delete(t.Context(), "key"); err != nil {
				t.Error(err)
			}
			if _, err := get(t, s, "key"); !errors.Is(err, gateway.ErrNotFound) {
				t.Errorf("deleted: %v, want ErrNotFound", err)
			}
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// halfway gives some bytes and then what fail says.
func halfway(fail func() error) io.Reader {
	return io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), readerFunc(func([]byte) (int, error) { return 0, fail() }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestNothingIsVisibleOfAPutThatFailed(t *testing.T) {
	forEach(t, func(t *testing.T, s *claimcheck.Store) {
		put(t, s, "there", "before")
		for _, key := range []string{"new", "there"} {
			if _, err := s.Put(t.Context(), key, halfway(func() error { return gateway.ErrPayloadTruncated })); !errors.Is(err, gateway.ErrPayloadTruncated) || errors.Is(err, gateway.ErrUnavailable) {
				t.Errorf("%s, reader fails: %v, want the reader's error", key, err)
			}
			// EOF that is not the end, as of a download that was cut.
			if _, err := s.Put(t.Context(), key, halfway(func() error { return io.ErrUnexpectedEOF })); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, reader is cut: %v, want the reader's error", key, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if _, err := s.Put(ctx, key, halfway(func() error { cancel(); return ctx.Err() })); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, context ends: %v", key, err)
			}
			// The context ends after the last byte, before the object is there.
			ctx, cancel = context.WithCancel(t.Context())
			if _, err := s.Put(ctx, key, halfway(func() error { cancel(); return io.EOF })); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, context ends at the end: %v", key, err)
			}
			if _, err := s.Put(ctx, key, strings.NewReader("late")); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, context had ended: %v", key, err)
			}
		}
		if _, err := get(t, s, "new"); !errors.Is(err, gateway.ErrNotFound) {
			t.Errorf("the new payload: %v, want ErrNotFound", err)
		}
		wantContent(t, s, "there", "before")
	})
}

func TestFailedPutsLeaveNoFiles(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, "file", dir)
	put(t, s, "key", "content")
	_, _ = s.Put(t.Context(), "other", halfway(func() error { return io.ErrUnexpectedEOF }))
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, filepath.Base(path))
		}
		return err
	})
	if err != nil || len(files) != 1 || files[0] != "key" {
		t.Errorf("files %q, %v; want the one payload", files, err)
	}
}

func TestHostileReferences(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"secret", "payloads.attrs"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte("secret"), 0o600))
	}
	bucket := filepath.Join(dir, "bucket")
	testkit.NoError(t, os.Mkdir(bucket, 0o700))
	testkit.NoError(t, os.WriteFile(filepath.Join(bucket, "secret"), []byte("secret"), 0o600))
	s := newStore(t, "file", bucket)
	put(t, s, "key", "content")
	for _, reference := range []string{
		"", "/", "/etc/passwd", "..", "../secret", "../../secret", "a/../../secret", "..\\secret", "a/..", "./key", "key/", "//key", "/key",
		"key.attrs", "a/key.attrs/b", "key.17f.tmp", ".hidden", "a/.hidden", "key\x00", "key\n", "ключ", "%2e%2e/secret", "a b", "key?x=1", "key#x",
		"C:key", "~", "file:///etc/passwd", "s3://other/key", "<0x2e><0x2e>/secret", strings.Repeat("k", 201), strings.Repeat("k/", 200) + "k", "\xff",
	} {
		r, _, err := s.Open(t.Context(), reference)
		if !errors.Is(err, gateway.ErrInvalid) {
			t.Errorf("open %q: %v, want ErrInvalid", reference, err)
		}
		if r != nil {
			_ = r.Close()
		}
		if err != nil && len(reference) > 2 && strings.Contains(err.Error(), reference) {
			t.Errorf("%q tells the reference", err)
		}
		if _, err := s.Put(t.Context(), reference, strings.NewReader("x")); !errors.Is(err, gateway.ErrInvalid) {
			t.Errorf("put %q: %v, want ErrInvalid", reference, err)
		}
		if err := s.Delete(t.Context(), reference); !errors.Is(err, gateway.ErrInvalid) {
			t.Errorf("delete %q: %v, want ErrInvalid", reference, err)
		}
	}
	put(t, s, "a/b/c", "content")
	for _, reference := range []string{"a", "a/b", "a/b/c/d", "key/x"} {
		if _, err := get(t, s, reference); !errors.Is(err, gateway.ErrNotFound) {
			t.Errorf("%q: %v, want ErrNotFound", reference, err)
		}
	}
	// Well formed, but of the bucket, not of the prefix.
	if _, err := get(t, s, "secret"); !errors.Is(err, gateway.ErrNotFound) {
		t.Errorf("outside of the prefix: %v, want ErrNotFound", err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, seed := range []string{"key", "../secret", "a/b", "a//b", "\x00", ".", "secret"} {
		f.Add(seed)
	}
	dir := f.TempDir()
	bucket := filepath.Join(dir, "bucket", "payloads")
	testkit.NoError(f, os.MkdirAll(bucket, 0o700))
	for _, path := range []string{filepath.Join(dir, "secret"), filepath.Join(dir, "bucket", "secret")} {
		testkit.NoError(f, os.WriteFile(path, []byte("secret"), 0o600))
	}
	s := testkit.Must(claimcheck.New(f.Context(), claimcheck.Config{URL: "file://" + filepath.ToSlash(filepath.Dir(bucket)), Prefix: "payloads/"}))(f)
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, reference string) {
		// Nothing was put, so there is nothing to open.
		r, _, err := s.Open(t.Context(), reference)
		if err == nil {
			_ = r.Close()
			t.Fatalf("%q could be opened", reference)
		}
		if !errors.Is(err, gateway.ErrInvalid) && !errors.Is(err, gateway.ErrNotFound) {
			t.Fatalf("%q: %v", reference, err)
		}
	})
}

func TestErrorsOfTheBucket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bucket")
	testkit.NoError(t, os.Mkdir(dir, 0o700))
	s := newStore(t, "file", dir)
	put(t, s, "key", "content")
	// The disk goes away, and a file stands in its place.
	testkit.NoError(t, os.RemoveAll(dir))
	for name, err := range map[string]error{"open": func() error { _, err := get(t, s, "key"); return err }(), "check": s.Check(t.Context())} {
		if !errors.Is(err, gateway.ErrUnavailable) || errors.Is(err, gateway.ErrNotFound) {
			t.Errorf("%s without the directory: %v, want ErrUnavailable", name, err)
		}
	}
	testkit.NoError(t, os.WriteFile(dir, nil, 0o600))
	_, err := s.Put(t.Context(), "other", strings.NewReader("x"))
	var e *claimcheck.Error
	if !errors.Is(err, gateway.ErrUnavailable) || !errors.As(err, &e) || e.Op != "put" || e.Cause == nil {
		t.Errorf("put: %v, want ErrUnavailable", err)
	}
	if _, err := get(t, s, "key"); !errors.Is(err, gateway.ErrUnavailable) {
		t.Errorf("open: %v, want ErrUnavailable", err)
	}
}

func TestReadingEndsWithTheContext(t *testing.T) {
	forEach(t, func(t *testing.T, s *claimcheck.Store) {
		put(t, s, "key", strings.Repeat("x", 1<<20))
		ctx, cancel := context.WithCancel(t.Context())
		r, _, err := s.Open(ctx, "key")
		if err != nil {
			t.Fatal(err)
		}
		testkit.Must(r.Read(make([]byte, 10)))(t)
		cancel()
		if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		_ = r.Close()
		if _, _, err := s.Open(ctx, "key"); !errors.Is(err, context.Canceled) {
			t.Errorf("open: %v", err)
		}
	})
}

func TestCloseWhileReading(t *testing.T) {
	forEach(t, func(t *testing.T, s *claimcheck.Store) {
		put(t, s, "key", strings.Repeat("x", 1<<20))
		for range 10 {
			r, _, err := s.Open(t.Context(), "key")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{r}) })
			for range 2 {
				wg.Go(func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if _, err := r.Read(make([]byte, 1)); !errors.Is(err, gateway.ErrClosed) {
				t.Errorf("closed: %v, want ErrClosed", err)
			}
		}
	})
}

func TestConcurrentPutsOfOneKey(t *testing.T) {
	forEach(t, func(t *testing.T, s *claimcheck.Store) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				content := bytes.Repeat([]byte{byte('a' + i)}, 300_000)
				if _, err := s.Put(t.Context(), "key", bytes.NewReader(content)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got, err := get(t, s, "key")
		if err != nil || got != strings.Repeat(got[:1], 300_000) {
			t.Errorf("%d bytes, mixed of several payloads (%v)", len(got), err)
		}
	})
}

func TestClose(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { _ = bucket.Close() })
	given := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{Bucket: bucket}))(t)
	put(t, given, "key", "content")
	opened := newStore(t, "mem", "")
	for _, s := range []*claimcheck.Store{given, opened} {
		for range 2 {
			testkit.NoError(t, s.Close())
		}
		_, putErr := s.Put(t.Context(), "key", strings.NewReader(""))
		_, _, openErr := s.Open(t.Context(), "key")
		for _, err := range []error{putErr, openErr, s.Delete(t.Context(), "key"), s.Check(t.Context())} {
			testkit.ErrorIs(t, err, gateway.ErrClosed)
		}
	}
	if ok, err := bucket.Exists(t.Context(), "key"); err != nil || !ok {
		t.Errorf("the bucket that was given was closed or lost its payload: %v, %v", ok, err)
	}
}

func TestConfigErrors(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { _ = bucket.Close() })
	for name, cfg := range map[string]claimcheck.Config{
		"nothing":           {},
		"both":              {Bucket: bucket, URL: "mem://"},
		"no scheme":         {URL: "bucket"},
		"prefix escapes":    {Bucket: bucket, Prefix: "../"},
		"prefix is a slash": {Bucket: bucket, Prefix: "/"},
		"no such driver":    {URL: "nosuch://bucket"},
		"no such directory": {URL: "file:///no/such/directory"},
	} {
		if _, err := claimcheck.New(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNoSecretsInErrors(t *testing.T) {
	for _, url := range []string{"nosuch://user:hush@bucket?key=hush", "file:///no/such?secret_key_path=hush", "mem://?token=hush", "nosuch://bucket?sig=a%2Fhush"} {
		cfg := claimcheck.Config{URL: url}
		_, err := claimcheck.New(t.Context(), cfg)
		if err == nil {
			t.Fatalf("%s was opened", url)
		}
		for _, text := range []string{err.Error(), fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg)} {
			if strings.Contains(text, "hush") {
				t.Errorf("%q tells a secret", text)
			}
		}
	}
	err := &claimcheck.Error{Op: "put", Kind: gateway.ErrUnavailable, Cause: errors.New(`Put "https://account.blob.example/c/k?sv=1&sig=hush": dial tcp: timeout`)}
	if got, want := err.Error(), `claim check: put: unavailable: Put "https://account.blob.example/c/k?…": dial tcp: timeout`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A bucket on a network file system, without the driver's own checks, is what
// PrefixedBucket and the like give: only the interface counts.
func TestWrappedBucket(t *testing.T) {
	bucket := blob.PrefixedBucket(memblob.OpenBucket(nil), "outer/")
	t.Cleanup(func() { _ = bucket.Close() })
	s := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{Bucket: bucket, Prefix: "inner-"}))(t)
	put(t, s, "key", "content")
	wantContent(t, s, "key", "content")
}
