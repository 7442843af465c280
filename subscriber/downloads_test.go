package subscriber

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// downloadWorld is a payload host in virtual time for a downloadQueue.
type downloadWorld struct {
	timeline
	t    *testing.T
	q    *downloadQueue
	rand *rand.Rand
	// attempt decides what becomes of a download, how long it takes, and how many bytes
	// a second come meanwhile.
	attempt func(j *download) (result downloadResult, took time.Duration, rate int64)

	added    map[*download]time.Time
	slowest  time.Duration // of those that succeeded
	ok       int
	gone     int
	unserved int
	attempts map[*download]int
	rates    map[*download]int64
	running  int
	most     int
}

func newDownloadWorld(t *testing.T, slots int) *downloadWorld {
	cfg := PayloadConfig{MaxDownloads: slots}
	cfg.setDefaults()
	w := &downloadWorld{
		t: t, q: newDownloadQueue(cfg), timeline: newTimeline(), rand: rand.New(rand.NewPCG(1, 2)),
		added: make(map[*download]time.Time), attempts: make(map[*download]int), rates: make(map[*download]int64),
		attempt: func(*download) (downloadResult, time.Duration, int64) {
			return downloadOK, 50 * time.Millisecond, 1 << 20
		},
	}
	return w
}

func (w *downloadWorld) add(host string) *download { return w.addOf("tenant", host) }

func (w *downloadWorld) addOf(tenant, host string) *download {
	d := &delivery{tenant: tenant, event: &gateway.MessageReceived{}, payload: newPayload("https://"+host+"/1", -1)}
	j := w.q.add(w.now, d, host, false)
	w.added[j] = w.now
	return j
}

// refresh gives j a fresh URI.
func (w *downloadWorld) refresh(j *download) {
	uri := *j.d.payload.uri.Load() + "1"
	j.d.payload.uri.Store(&uri)
	w.q.refreshed(w.now, j)
}

func (w *downloadWorld) run(end time.Duration) {
	w.timeline.run(end, func() time.Time {
		for j := w.q.next(w.now); j != nil; j = w.q.next(w.now) {
			w.start(j)
		}
		return w.q.wake(w.now)
	}, func() {
		for _, j := range w.q.running { // what came until now
			if rate := w.rates[j]; rate > 0 {
				j.bytes.Store(int64(float64(rate) * w.now.Sub(j.started).Seconds()))
			}
		}
	})
}

func (w *downloadWorld) start(j *download) {
	w.attempts[j]++
	w.running++
	w.most = max(w.most, w.running)
	result, took, rate := w.attempt(j)
	w.rates[j] = rate
	over := false
	end := func(result downloadResult) {
		if over {
			return
		}
		over = true
		w.running--
		step, _ := w.q.finished(w.now, j, result)
		switch step {
		case stepGone:
			w.gone++
		case stepUnserved:
			w.unserved++
		case stepDone:
			w.ok++
			w.slowest = max(w.slowest, w.now.Sub(w.added[j]))
		default:
			return
		}
		delete(w.added, j)
	}
	j.abandon = func() { w.at(w.now, func() { end(downloadFailed) }) }
	w.at(w.now.Add(took), func() { end(result) })
}

// Whatever some payloads of a host do, the others of the same host are downloaded.
func TestDownloadsThatFailLeaveTheOthersTheirSlots(t *testing.T) {
	for name, fault := range map[string]struct {
		result downloadResult
		took   time.Duration
		rate   int64
	}{
		"404":           {downloadExpired, 20 * time.Millisecond, 0},
		"500":           {downloadFailed, 20 * time.Millisecond, 0},
		"wrong bytes":   {downloadBad, 20 * time.Millisecond, 0},
		"hang":          {downloadFailed, 30 * time.Second, 0},
		"1 byte/s":      {downloadOK, time.Hour, 1},
		"slow but sure": {downloadOK, 2 * time.Minute, 20 << 10},
	} {
		for _, bad := range []int{4, 40} {
			t.Run(fmt.Sprint(bad, " ", name), func(t *testing.T) {
				w := newDownloadWorld(t, 8)
				broken := map[*download]bool{}
				mended := false
				w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
					if broken[j] && !mended {
						return fault.result, fault.took, fault.rate
					}
					return downloadOK, 50 * time.Millisecond, 1 << 20
				}
				for range bad {
					broken[w.add("host")] = true
				}
				w.run(6 * time.Second) // each of them has had its first attempt
				w.slowest = 0
				const healthy = 60 * 20
				for i := range healthy {
					w.at(w.now.Add(time.Duration(i)*50*time.Millisecond), func() { w.add("host") })
				}
				w.run(70 * time.Second)
				if w.ok < healthy || w.slowest > time.Second {
					t.Errorf("%d of %d downloaded, the slowest after %v", w.ok, healthy, w.slowest)
				}
				if w.most > 4*8 {
					t.Errorf("%d at a time", w.most)
				}
				mended = true
				w.run(75 * time.Second)
				if name != "1 byte/s" && name != "slow but sure" && len(w.added) > 0 {
					t.Errorf("%d open five seconds after the fault", len(w.added))
				}
				w.run(10 * time.Minute)
				if len(w.added) > 0 || w.q.stale != 0 || len(w.q.hosts) > 0 {
					t.Errorf("%d open, %d stale, %d hosts", len(w.added), w.q.stale, len(w.q.hosts))
				}
			})
		}
	}
}

// A download that hangs is tried again within the longest backoff of when it was tried: it has waited while it hung.
func TestDownloadThatHangsIsTriedAgain(t *testing.T) {
	w := newDownloadWorld(t, 8)
	var hangs *download
	var tried []time.Time
	w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
		if j != hangs {
			return downloadOK, 50 * time.Millisecond, 1 << 20
		}
		tried = append(tried, w.now)
		return downloadFailed, time.Minute, 0
	}
	hangs = w.add("host")
	w.add("host") // its host serves others
	w.run(2 * time.Minute)
	if len(tried) < 10 || w.attempts[hangs] != len(tried) {
		t.Fatalf("tried %d times", len(tried))
	}
	for i, at := range tried[1:] {
		if pause := at.Sub(tried[i]); pause > w.q.cfg.Retry.Max {
			t.Errorf("attempt %d comes %v after the one before it", i+2, pause)
		}
	}
}

// A payload whose first byte takes its host longer than that of all others comes in the end.
func TestDownloadThatBeginsLateComes(t *testing.T) {
	w := newDownloadWorld(t, 8)
	var late *download
	w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
		if j == late {
			return downloadOK, 20 * time.Second, 0
		}
		return downloadOK, 50 * time.Millisecond, 1 << 20
	}
	late = w.add("host")
	for i := range 3600 {
		w.at(w.now.Add(time.Duration(i)*time.Second), func() { w.add("host") })
	}
	w.run(time.Hour)
	if _, waits := w.added[late]; waits {
		t.Errorf("not downloaded in %d attempts", w.attempts[late])
	}
}

// A tenant or a host none of whose payloads come, however many there are, keeps the others
// waiting at no time.
func TestDownloadsAreFairToTenantsAndHosts(t *testing.T) {
	for name, sick := range map[string]struct{ tenant, host string }{"tenant": {"sick", "host"}, "host": {"tenant", "sick"}} {
		t.Run(name, func(t *testing.T) {
			w := newDownloadWorld(t, 8)
			broken := map[*download]bool{}
			w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
				if broken[j] {
					return downloadFailed, 30 * time.Second, 0
				}
				return downloadOK, 50 * time.Millisecond, 1 << 20
			}
			for range 40 {
				broken[w.addOf(sick.tenant, sick.host)] = true
			}
			const healthy = 20 * 40
			for i := range healthy {
				w.at(w.now.Add(time.Duration(i)*25*time.Millisecond), func() {
					w.addOf("tenant", "host")
					broken[w.addOf(sick.tenant, sick.host)] = true
				})
			}
			w.run(21 * time.Second)
			if w.ok != healthy || w.slowest > 400*time.Millisecond {
				t.Errorf("%d of %d downloaded, the slowest after %v", w.ok, healthy, w.slowest)
			}
		})
	}
}

// A payload that comes in part with each fresh URI is gone after the third one.
func TestPayloadIsGoneAfterThreeFreshURIs(t *testing.T) {
	w := newDownloadWorld(t, 8)
	w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
		j.bytes.Store(1)
		return downloadExpired, time.Millisecond, 0
	}
	j := w.add("host")
	for i := range maxFreshURIs {
		w.run(time.Duration(i+1) * 2 * goneAfter)
		if w.gone != 0 || w.q.stale != 1 {
			t.Fatalf("gone %d, stale %d after %d fresh URIs", w.gone, w.q.stale, i)
		}
		w.refresh(j)
	}
	w.run(time.Duration(maxFreshURIs+1) * 2 * goneAfter)
	if w.gone != 1 || len(w.added) != 0 || w.q.stale != 0 {
		t.Errorf("gone %d, %d open, %d stale", w.gone, len(w.added), w.q.stale)
	}
}

// A payload is gone when a fresh URI has not helped for long.
func TestPayloadIsGone(t *testing.T) {
	w := newDownloadWorld(t, 8)
	w.attempt = func(*download) (downloadResult, time.Duration, int64) { return downloadExpired, time.Millisecond, 0 }
	j := w.add("host")
	w.run(2 * goneAfter)
	w.refresh(j)
	w.run(3*goneAfter - 1)
	if w.gone != 0 {
		t.Error("gone before a fresh URI was refused for long")
	}
	w.run(3*goneAfter + time.Second)
	if w.gone != 1 || len(w.added) != 0 || w.q.stale != 0 {
		t.Errorf("gone %d, %d open, %d stale", w.gone, len(w.added), w.q.stale)
	}

	// Without a fresh one it is given up, but not soon.
	w = newDownloadWorld(t, 8)
	w.attempt = func(*download) (downloadResult, time.Duration, int64) { return downloadExpired, time.Millisecond, 0 }
	w.add("host")
	w.run(10 * time.Minute)
	if w.unserved != 0 {
		t.Error("given up within ten minutes")
	}
	w.run(12 * time.Minute)
	if w.unserved != 1 {
		t.Error("not given up")
	}
}

// A fresh URI that comes while the former one is tried for the last time gets its attempt: its message
// has just come again, and does not on this connection.
func TestFreshURIThatComesDuringTheLastAttempt(t *testing.T) {
	for name, known := range map[string]bool{"was gone before": true, "refused for long": false} {
		w := newDownloadWorld(t, 8)
		j := w.add("host")
		j.known, j.expired = known, new(string)
		if !known {
			j.goneAt = w.now
		}
		w.attempt = func(*download) (downloadResult, time.Duration, int64) {
			if w.attempts[j] > 1 {
				return downloadOK, time.Millisecond, 1 << 20
			}
			w.at(w.now.Add(time.Millisecond), func() { // a redelivery
				uri := "https://host/2"
				j.d.payload.uri.Store(&uri)
				w.q.refreshed(w.now, j)
			})
			return downloadExpired, 2 * time.Millisecond, 0
		}
		w.run(time.Minute)
		if w.ok != 1 || w.gone != 0 {
			t.Errorf("%s: %d downloaded, %d gone", name, w.ok, w.gone)
		}
	}
}

// What fails for good is not asked for more often because the same host serves others all the time.
func TestDownloadsThatFailKeepToTheirBackoff(t *testing.T) {
	for name, result := range map[string]downloadResult{"500": downloadFailed, "404": downloadExpired} {
		w := newDownloadWorld(t, 8)
		bad := map[*download]bool{}
		requests := 0
		w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
			if bad[j] {
				requests++
				return result, time.Millisecond, 0
			}
			return downloadOK, time.Millisecond, 1 << 20
		}
		for range 40 {
			bad[w.add("host")] = true
		}
		const lasts = time.Minute
		for at := time.Duration(0); at < lasts; at += 10 * time.Millisecond {
			w.at(w.now.Add(at), func() { w.add("host") })
		}
		w.run(lasts)
		// Each has some quick attempts, and then at most two in the longest backoff, which jitter shortens.
		if most := 40 * (8 + 3*int(lasts/w.q.cfg.Retry.Max)); requests > most {
			t.Errorf("%s: %d requests in a minute, want at most %d", name, requests, most)
		}
		if w.ok != int(lasts/(10*time.Millisecond)) {
			t.Errorf("%s: %d of the others", name, w.ok)
		}
	}
}

// Whatever happens, no download is forgotten, and none that was removed is started.
func TestDownloadQueueKeepsEverything(t *testing.T) {
	for seed := range uint64(scaled(300)) {
		w := newDownloadWorld(t, 1+int(seed%5))
		w.rand = rand.New(rand.NewPCG(seed, 0))
		wild := true
		w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
			if _, open := w.added[j]; !open {
				t.Fatalf("seed %d: started although it was removed", seed)
			}
			if !wild {
				return downloadOK, 10 * time.Millisecond, 1 << 20
			}
			results := []downloadResult{downloadOK, downloadFailed, downloadBad, downloadExpired}
			return results[w.rand.IntN(len(results))], time.Duration(w.rand.Int64N(int64(3 * time.Second))), []int64{0, 1, 1 << 20}[w.rand.IntN(3)]
		}
		var all []*download
		for i := range 40 {
			w.at(w.now.Add(time.Duration(w.rand.Int64N(int64(20*time.Second)))), func() { all = append(all, w.add(fmt.Sprint("host ", i%3))) })
			w.at(w.now.Add(time.Duration(w.rand.Int64N(int64(30*time.Second)))), func() {
				if len(all) == 0 {
					return
				}
				j := all[w.rand.IntN(len(all))]
				if _, open := w.added[j]; !open {
					return
				}
				if uri := fmt.Sprint("https://host/", i+2); w.rand.IntN(2) == 0 {
					j.d.payload.uri.Store(&uri)
					w.q.refreshed(w.now, j)
				} else if j.place.Queued() {
					w.q.remove(j)
					delete(w.added, j)
				}
			})
		}
		w.run(30 * time.Second)
		if n := w.q.ready.Len() + w.q.failing.Len() + len(w.q.running); n != len(w.added) {
			t.Fatalf("seed %d: %d in the queue, %d open", seed, n, len(w.added))
		}
		wild = false
		w.run(5 * time.Minute)
		if len(w.added) > 0 || w.q.stale != 0 || len(w.q.hosts) > 0 || len(w.q.running) > 0 {
			t.Fatalf("seed %d: %d open, %d stale, %d hosts", seed, len(w.added), w.q.stale, len(w.q.hosts))
		}
	}
}
