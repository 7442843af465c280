package boltstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
)

// filled makes a file with n commits and returns its path and content.
func filled(t testing.TB, n int) (file string, content []byte) {
	t.Helper()
	file = path(t)
	store := testkit.Must(boltstore.New(boltstore.Config{Path: file}))(t)
	var group sync.WaitGroup
	for g := range 50 {
		group.Go(func() {
			for i := g; i < n; i += 50 {
				commit(t, store, randomKey(i), time.Hour)
			}
		})
	}
	group.Wait()
	testkit.NoError(t, store.Close())
	content = testkit.Must(os.ReadFile(file))(t)
	return file, content
}

func randomKey(i int) router.Key { return router.KeyOf(fmt.Sprint(i)) }

// use calls everything that a store has. Whatever it says is fine; it may not panic,
// and it has to come to an end.
func use(t testing.TB, store *boltstore.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	errs := make([]error, 50) // some of their keys are known, others go into each page
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			key := randomKey(i * 30)
			reservation, err := store.Reserve(ctx, claim(key), time.Minute)
			if err == nil && reservation.State == router.Reserved {
				err = store.Commit(ctx, claim(key), reservation.Token, time.Hour)
			}
			errs[i] = err
		})
	}
	group.Wait()
	errs = append(errs, store.Health(ctx))
	if err := store.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("it hangs")
	}
	return errors.Join(errs...)
}

// pageSize of the files that are made here.
func pageSize(content []byte) int { return int(binary.NativeEndian.Uint32(content[24:])) }

// Whatever a page is damaged by, New says so, or the damage is where nothing is read.
func TestDamagedFile(t *testing.T) {
	file, sound := filled(t, 300)
	size := pageSize(sound)
	pages := len(sound) / size
	random := rand.New(rand.NewPCG(1, 2))
	u16, u32, u64 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
	damages := map[string]func(page []byte){
		"zeros": func(page []byte) { clear(page) },
		"random": func(page []byte) {
			for i := range page {
				page[i] = byte(random.Uint32())
			}
		},
		"random header": func(page []byte) {
			for i := range 16 {
				page[i] = byte(random.Uint32())
			}
		},
		"number":   func(page []byte) { u64(page, 1<<40) },
		"type":     func(page []byte) { u16(page[8:], 3-binary.NativeEndian.Uint16(page[8:])) },
		"count":    func(page []byte) { u16(page[10:], 0xFFFF) },
		"none":     func(page []byte) { u16(page[10:], 0) },
		"overflow": func(page []byte) { u32(page[12:], 1<<31) },
		"position": func(page []byte) { u32(page[16:], 1<<31); u32(page[20:], 1<<31) },
		"circle":   func(page []byte) { copy(page[24:], page[:8]) }, // a child of itself
		"longer key": func(page []byte) { // of the first record of a leaf
			u32(page[24:], binary.NativeEndian.Uint32(page[24:])+5)
			u32(page[28:], binary.NativeEndian.Uint32(page[28:])-5)
		},
		"other page": func(page []byte) { copy(page, sound[5*size:6*size]) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			told := 0
			for p := range pages {
				file := path(t) // a damaged file stays locked
				content := append([]byte(nil), sound...)
				damage(content[p*size : (p+1)*size])
				testkit.NoError(t, os.WriteFile(file, content, 0o600))
				store, err := boltstore.New(boltstore.Config{Path: file})
				switch {
				case err == nil:
					if err := use(t, store); err != nil {
						t.Errorf("page %d: only later: %v", p, err)
					} else if _, err := boltstore.Look(boltstore.Config{Path: file}); err != nil {
						t.Errorf("page %d: only when it is opened again: %v", p, err)
					}
				case errors.Is(err, boltstore.ErrDamaged):
					told++
				default:
					t.Errorf("page %d: %v", p, err)
				}
			}
			if told == 0 {
				t.Error("it is never noticed")
			}
		})
	}
	for _, length := range []int{1, size, 2*size - 1, 3 * size, len(sound) / 2, len(sound) - 1} {
		testkit.NoError(t, os.WriteFile(file, sound[:length], 0o600))
		if store, err := boltstore.New(boltstore.Config{Path: file}); err == nil {
			if err := use(t, store); err != nil {
				t.Errorf("%d bytes: only later: %v", length, err)
			}
		} else if !errors.Is(err, boltstore.ErrDamaged) {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

// What many commits and removals leave, in pages that are split and joined, is no damage.
func TestSoundFile(t *testing.T) {
	file, random := path(t), rand.New(rand.NewPCG(3, 4))
	for round := range 20 {
		config := boltstore.Config{Path: file, MaxEntries: 1 + random.IntN(3000)}
		store := testkit.Must(boltstore.New(config))(t)
		var group sync.WaitGroup
		for range 300 {
			key, ttl := randomKey(random.IntN(5000)), time.Duration(random.IntN(5)-1)*time.Hour
			group.Go(func() {
				reservation, err := store.Reserve(t.Context(), claim(key), time.Hour)
				if err == nil && reservation.State == router.Reserved {
					err = store.Commit(t.Context(), claim(key), reservation.Token, ttl)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		testkit.NoError(t, store.Close())
		if n, err := boltstore.Look(config); n != 0 || err != nil {
			t.Fatalf("round %d: %d records cannot be read: %v", round, n, err)
		}
	}
}

// The file is damaged while it is open. Every call says so from then on, and comes
// back; nothing panics.
func TestDamagedWhileOpen(t *testing.T) {
	file, sound := filled(t, 1000)
	zero := func(from int) error { // all from here on
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, len(sound)-from), int64(from))
		return errors.Join(err, f.Close())
	}
	size := pageSize(sound)
	for name, damage := range map[string]func() error{
		"written over":        func() error { return zero(0) },
		"leaves and branches": func() error { return zero(2 * size) },
		"cut off":             func() error { return os.Truncate(file, int64(2*size)) },
		"emptied":             func() error { return os.Truncate(file, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoError(t, errors.Join(os.RemoveAll(file), os.WriteFile(file, sound, 0o600)))
			store := testkit.Must(boltstore.New(boltstore.Config{Path: file}))(t)
			testkit.NoError(t, damage())
			ctx := testkit.Context(t)
			var group sync.WaitGroup
			for i := range 100 {
				group.Go(func() {
					if _, err := store.Reserve(ctx, claim(randomKey(i)), time.Minute); !errors.Is(err, boltstore.ErrDamaged) {
						t.Errorf("Reserve: %v", err)
					}
				})
				group.Go(func() {
					testkit.ErrorIs(t, store.Commit(ctx, claim(randomKey(-i-1)), router.Token{1}, time.Minute), boltstore.ErrDamaged)
				})
			}
			group.Wait()
			testkit.ErrorIs(t, store.Health(ctx), boltstore.ErrDamaged)
			testkit.NoError(t, store.Close())
		})
	}
}

// A damaged file is an outage: no sound message goes to the poison queue, and the
// messages wait.
func TestDamagedFilePoisonsNothing(t *testing.T) {
	file, _ := filled(t, 1000)
	store := testkit.Must(boltstore.New(boltstore.Config{Path: file}))(t)
	defer func() { _ = store.Close() }()
	dedup := testkit.Must(router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, KeyFunc: testKey}}, nil))(t)
	testkit.NoError(t, os.Truncate(file, 0))
	h := dedup.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("a message is handled")
		return nil, nil
	})
	for range 10 {
		_, err := h(message.NewMessage(watermill.NewUUID(), nil))
		if class := router.ClassOf(err); class != router.ClassOutage || !errors.Is(err, boltstore.ErrDamaged) {
			t.Fatalf("class %v: %v", class, err)
		}
	}
}

// FuzzFile overwrites a part of a sound file.
func FuzzFile(f *testing.F) {
	file, sound := filled(f, 1000)
	size := uint32(pageSize(sound))
	f.Add(uint32(0), []byte{}, uint32(0))
	f.Add(2*size, []byte("\x02\x00\x00\x00"), uint32(0))
	f.Add(3*size+16, []byte("\xff\xff\xff\xff"), uint32(0))
	f.Add(4*size+10, []byte{1, 2}, size)
	f.Fuzz(func(t *testing.T, at uint32, with []byte, cut uint32) {
		content := append([]byte(nil), sound...)
		copy(content[int(at)%len(content):], with)
		testkit.NoError(t, os.WriteFile(file, content[:len(content)-int(cut)%len(content)], 0o600))
		store, err := boltstore.New(boltstore.Config{Path: file})
		if err != nil {
			testkit.ErrorIs(t, err, boltstore.ErrDamaged)
			return
		}
		_ = use(t, store)
	})
}
