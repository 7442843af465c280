package identitytest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gcblob "gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
)

// These programs archive messages of one name, whose bytes differ: in a route what has one name is equal, but a
// publisher of another kind gives its own.

// What of a message cannot be forced to the disk.
const (
	nothingSpoiled = iota
	payloadSpoiled
	sidecarSpoiled
	namesSpoiled
	spoils
)

// disk is how one process sees the bucket of files that it shares with others: it takes time at each step, may
// be killed before one, and may fail to force something to the disk.
type disk struct {
	*gcblob.Bucket
	kill    bool
	spoiled int
	gone    *os.File // that is closed, in a directory that is not there

	mu   sync.Mutex
	left int // steps before the kill
	rand *rand.Rand
}

func (d *disk) step() error {
	d.mu.Lock()
	pause := time.Duration(d.rand.IntN(20)) * time.Millisecond
	d.mu.Unlock()
	time.Sleep(pause) // not under the lock, which would stop the time of the bubble
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.kill:
		return nil
	case d.left == 0:
		return errKilled
	}
	d.left--
	return nil
}

func (*disk) ErrorCode(err error) gcerrors.ErrorCode { return gcerrors.Code(err) }
func (*disk) ErrorAs(error, any) bool                { return false }
func (*disk) Close() error                           { return nil }

// As says that it is a bucket of files.
func (*disk) As(target any) bool {
	_, ok := target.(*os.FileInfo)
	return ok
}

func (d *disk) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	a, err := d.Bucket.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	return &driver.Attributes{ModTime: a.ModTime, Size: a.Size}, nil
}

func (*disk) ListPaged(context.Context, *driver.ListOptions) (*driver.ListPage, error) {
	return nil, errors.ErrUnsupported
}

func (*disk) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return errors.ErrUnsupported
}

func (*disk) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errors.ErrUnsupported
}

func (d *disk) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.Bucket.Delete(ctx, key)
}

// file gives a hook the file that is gone if it is to have it.
func (d *disk) file(spoiled bool, hook func(func(any) bool) error) error {
	if hook == nil {
		return nil
	}
	return hook(func(target any) bool {
		f, ok := target.(**os.File)
		if !ok || !spoiled {
			return false
		}
		*f = d.gone
		return true
	})
}

func (d *disk) NewRangeReader(ctx context.Context, key string, offset, length int64, options *driver.ReaderOptions) (driver.Reader, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	r, err := d.Bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, err
	}
	if err := d.file(d.spoiled == namesSpoiled, options.BeforeRead); err != nil {
		_ = r.Close() // nothing was read
		return nil, err
	}
	return diskReader{r}, nil
}

type diskReader struct{ *gcblob.Reader }

func (r diskReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.Size(), ModTime: r.ModTime()}
}
func (diskReader) As(any) bool { return false }

func (d *disk) NewTypedWriter(ctx context.Context, key, contentType string, options *driver.WriterOptions) (driver.Writer, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	spoiled := payloadSpoiled
	if strings.HasSuffix(key, blob.SidecarSuffix) {
		spoiled = sidecarSpoiled
	}
	if err := d.file(d.spoiled == spoiled, options.BeforeWrite); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := d.Bucket.NewWriter(ctx, key, &gcblob.WriterOptions{ContentType: contentType, IfNotExist: options.IfNotExist})
	if err != nil {
		cancel()
		return nil, err
	}
	return diskWriter{w, d, cancel}, nil
}

// diskWriter writes an object when it is closed, and not if the process is killed before.
type diskWriter struct {
	*gcblob.Writer
	d      *disk
	cancel context.CancelFunc
}

func (w diskWriter) Close() error {
	defer w.cancel()
	if err := w.d.step(); err != nil {
		w.cancel()
		_ = w.Writer.Close() // writes nothing
		return err
	}
	return w.Writer.Close()
}

// archive is the bucket, and the ledger of what was acknowledged.
type archive struct {
	t      *testing.T
	bucket *gcblob.Bucket
	mu     sync.Mutex
	log    []string
	acked  map[string]string // the payload that a name had when it was acknowledged
}

func (a *archive) failf(format string, args ...any) {
	a.t.Errorf("%s\n%s", strings.Join(a.log, "\n"), fmt.Sprintf(format, args...))
}

// read returns the payload of a name, and whether it and its sidecar are there and belong together.
func (a *archive) read(name string) (payload string, whole bool) {
	list := a.bucket.List(nil)
	found := 0
	for {
		object, err := list.Next(a.t.Context())
		if errors.Is(err, io.EOF) {
			return payload, whole && found == 1
		}
		if err != nil {
			a.t.Fatal(err)
		}
		key, ok := strings.CutSuffix(object.Key, blob.SidecarSuffix)
		if !ok {
			continue
		}
		text, err := a.bucket.ReadAll(a.t.Context(), object.Key)
		var about blob.Sidecar
		if err != nil || json.Unmarshal(text, &about) != nil {
			a.failf("a sidecar is %q: %v", text, err)
		}
		if about.UUID != name {
			continue
		}
		found++
		content, err := a.bucket.ReadAll(a.t.Context(), key)
		digest := sha256.Sum256(content)
		payload = string(content)
		whole = err == nil && about.SHA256 == hex.EncodeToString(digest[:]) && about.Size == int64(len(content)) && about.Metadata["attribute"] == payload
	}
}

// sink returns the sink of a process.
func (a *archive) sink(d *disk) sinks.Sink {
	bucket := gcblob.NewBucket(d)
	sink := testkit.Must(blob.New(blob.Config{Bucket: bucket}))(a.t)
	a.t.Cleanup(func() {
		if err := errors.Join(sink.Close(), bucket.Close()); err != nil {
			a.t.Error(err)
		}
	})
	return sink
}

// cutPower loses one of the files of what was never acknowledged.
func (a *archive) cutPower(random *rand.Rand) {
	list := a.bucket.List(nil)
	for object, err := list.Next(a.t.Context()); err == nil; object, err = list.Next(a.t.Context()) {
		payload, ok := strings.CutSuffix(object.Key, blob.SidecarSuffix)
		if !ok {
			continue
		}
		text, err := a.bucket.ReadAll(a.t.Context(), object.Key)
		var about blob.Sidecar
		if err != nil || json.Unmarshal(text, &about) != nil {
			a.failf("a sidecar is %q: %v", text, err)
		}
		if _, acked := a.acked[about.UUID]; acked {
			continue
		}
		lost := []string{object.Key, payload}[random.IntN(2)]
		a.log = append(a.log, "the power is cut, and "+lost+" is lost")
		if err := a.bucket.Delete(a.t.Context(), lost); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			a.t.Fatal(err)
		}
	}
}

// attempt is one call of Publish.
type attempt struct {
	sink          sinks.Sink
	disk          *disk
	name, payload string
}

func (a *archive) publish(at attempt, alone bool) {
	msg := message.NewMessage(at.name, []byte(at.payload))
	msg.Metadata[gateway.KeyDedupID], msg.Metadata["attribute"] = at.name, at.payload
	killed, spoiled := at.disk.kill, at.disk.spoiled
	_, before := a.read(at.name)
	err := at.sink.Publish("topic", msg)
	a.mu.Lock()
	defer a.mu.Unlock()
	payload, whole := a.read(at.name)
	a.log = append(a.log, fmt.Sprintf("publish %s with %q, kill %v, spoiled %d: %v; there is %q, whole %v", at.name, at.payload, killed, spoiled, err, payload, whole))
	switch {
	case err != nil:
		if alone && !killed && spoiled == nothingSpoiled {
			a.failf("nothing was wrong, and it failed")
		}
		return
	case spoiled == payloadSpoiled, spoiled == namesSpoiled, spoiled == sidecarSpoiled && alone && !before:
		a.failf("it is acknowledged, and was never forced to the disk")
	case alone && !whole:
		a.failf("it is acknowledged, and not there as a whole")
	}
	if _, known := a.acked[at.name]; !known && whole {
		a.acked[at.name] = payload
	}
}

// settle takes in what several processes have made of each name at the same time: the last one may have replaced what the
// first one had, and ended in between. Who comes next makes it whole.
func (a *archive) settle(names []string) {
	for _, name := range names {
		delete(a.acked, name)
		d := &disk{Bucket: a.bucket, rand: rand.New(rand.NewPCG(0, 0))}
		a.publish(attempt{a.sink(d), d, name, "settled"}, true)
	}
}

// TestBlobPrograms archives messages in random programs, one of them for 100 of -programs; see also -seed.
func TestBlobPrograms(t *testing.T) {
	t.Parallel()
	gone, err := os.Create(filepath.Join(t.TempDir(), "gone"))
	if err == nil {
		err = errors.Join(gone.Close(), os.RemoveAll(filepath.Dir(gone.Name())))
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range max(1, *programs/100) {
		name := strconv.FormatUint(*seed+uint64(i), 10)
		if !t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { blobProgram(t, *seed+uint64(i), gone) })
		}) {
			t.Fatalf("run it alone with -seed %s -programs 1", name)
		}
	}
}

func blobProgram(t *testing.T, seed uint64, gone *os.File) {
	random := rand.New(rand.NewPCG(seed, 2))
	a := &archive{t: t, bucket: memblob.OpenBucket(nil), acked: map[string]string{}}
	defer func() { _ = a.bucket.Close() }() // in memory
	names, payloads := []string{"a", "b"}, []string{"1", "22", "333"}
	process := func() attempt {
		d := &disk{Bucket: a.bucket, gone: gone, rand: rand.New(rand.NewPCG(random.Uint64(), 0))}
		switch random.IntN(3) {
		case 0:
			d.kill, d.left = true, random.IntN(12)
		case 1:
			d.spoiled = random.IntN(spoils)
		}
		return attempt{sink: a.sink(d), disk: d}
	}
	for range 3 + random.IntN(20) {
		if random.IntN(2) == 0 {
			a.cutPower(random)
		}
		writers, several := 1+random.IntN(3), random.IntN(4) == 0
		at := process()
		var group sync.WaitGroup
		for range writers {
			if several {
				at = process()
			}
			one := at
			one.name, one.payload = names[random.IntN(len(names))], payloads[random.IntN(len(payloads))]
			group.Go(func() { a.publish(one, writers == 1) })
		}
		group.Wait()
		if several && writers > 1 {
			a.settle(names)
		}
		for name, was := range a.acked {
			if payload, whole := a.read(name); !whole || payload != was {
				a.failf("%s was acknowledged with %q, and is %q, whole %v", name, was, payload, whole)
			}
		}
		if t.Failed() {
			return
		}
	}
}
