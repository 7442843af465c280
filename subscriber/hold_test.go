package subscriber_test

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// A message of a file type that comes alone waits for its file for the shorter time, wherever its payload is,
// unless it is known to be as large as a chunk. What it waits for after that is told apart.
func TestLoneMessageOfAFileTypeWaitsShortly(t *testing.T) {
	const mib, short, long = 1 << 20, 2 * time.Second, time.Minute
	for name, test := range map[string]struct {
		size     int
		embedded bool
		download time.Duration // how long it takes
		unsized  bool          // the payload host does not tell the size
		held     time.Duration
	}{
		"embedded":              {57_792, true, 0, false, short},
		"embedded, a chunk":     {mib, true, 0, false, long},
		"elsewhere":             {57_792, false, 0, false, short},
		"elsewhere, 32 KiB":     {32 << 10, false, 0, false, short},
		"elsewhere, 1 byte":     {1, false, 0, false, short},
		"elsewhere, empty":      {0, false, 0, false, short},
		"elsewhere, 1 MiB":      {mib, false, 0, false, short},
		"elsewhere, 1 MiB + 1":  {mib + 1, false, 0, false, short},
		"elsewhere, no size":    {57_792, false, 0, true, short},
		"elsewhere, slow":       {57_792, false, 20 * time.Second, false, short},
		"elsewhere, 1 MiB slow": {mib, false, 20 * time.Second, false, short},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			payload := random(test.size)
			g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, _ offlinePayload) {
				if !test.unsized {
					w.Header().Set("Content-Length", strconv.Itoa(len(payload)))
				}
				half := len(payload) / 2
				_, _ = w.Write(payload[:half])
				_ = http.NewResponseController(w).Flush()
				time.Sleep(test.download)
				_, _ = w.Write(payload[half:])
			})
			told := newProgressBook()
			sub, messages := g.subscribe(subscriber.Config{Files: []string{typeFile}, Hooks: subscriber.Hooks{Progress: told.take}})
			sent := time.Now()
			if test.embedded {
				g.message(1, 1, 1, typeFile, payload)
			} else {
				g.message(1, 1, 1, typeFile, nil)
			}
			time.Sleep(test.held - time.Second)
			if got := sub.Stats().HeldNow; got != 1 {
				t.Errorf("%d are held a second before the hold ends", got)
			}
			msg := <-messages
			if got, least := time.Since(sent), test.held+test.download; got < least || got > least+time.Second {
				t.Errorf("it comes after %v, want %v", got, least)
			}
			if string(msg.Payload) != string(payload) {
				t.Errorf("%d bytes come of %d", len(msg.Payload), len(payload))
			}
			synctest.Wait() // what it is told comes beside the message
			want := "held,unclaimed"
			if !test.embedded {
				want = "fetched,held,unclaimed"
			}
			if got := told.kinds(); got != want {
				t.Errorf("told: %s, want %s", got, want)
			}
			if got := told.at(subscriber.ProgressUnclaimed).Sub(sent); got < test.held || got > test.held+time.Second {
				t.Errorf("the hold is over after %v, want %v", got, test.held)
			}
			msg.Ack()
			time.Sleep(15 * time.Second) // the confirmation of what proved large waits for its file once more
			if got := g.unconfirmed(); got != 0 {
				t.Errorf("%d are not confirmed", got)
			}
		})
	}
}

// progressBook records what a hook is told.
type progressBook struct {
	mu   sync.Mutex
	told []subscriber.Progress
	when []time.Time
}

func newProgressBook() *progressBook { return &progressBook{} }

func (b *progressBook) take(p subscriber.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told, b.when = append(b.told, p), append(b.when, time.Now())
}

// kinds returns what was told, sorted: two things of one instant are told in any order.
func (b *progressBook) kinds() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kinds []string
	for _, p := range b.told {
		kinds = append(kinds, p.Kind.String())
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ",")
}

// at returns when something of a kind was told first.
func (b *progressBook) at(kind subscriber.ProgressKind) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.told, func(p subscriber.Progress) bool { return p.Kind == kind })
	if i < 0 {
		return time.Time{}
	}
	return b.when[i]
}

// Chunks elsewhere wait for their file as long as embedded ones, and only the file comes. A chunk of which the
// others come late is delivered, and its confirmation waits for the file, which comes as well.
func TestChunksElsewhereWaitForTheirFile(t *testing.T) {
	for name, test := range map[string]struct {
		second, file time.Duration // when they come
		want         []gateway.EventType
	}{
		"at once":         {0, 0, []gateway.EventType{gateway.EventFileReceived}},
		"file late":       {0, 40 * time.Second, []gateway.EventType{gateway.EventFileReceived}},
		"chunk late":      {time.Second, 40 * time.Second, []gateway.EventType{gateway.EventFileReceived}},
		"chunk very late": {5 * time.Second, 6 * time.Second, []gateway.EventType{gateway.EventMessageReceived, gateway.EventFileReceived}},
		"minutes late":    {5 * time.Minute, 5*time.Minute + time.Second, []gateway.EventType{gateway.EventMessageReceived, gateway.EventFileReceived}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			g := newOfflineGateway(t, func(w http.ResponseWriter, _ *http.Request, p offlinePayload) {
				if p.of == "3" {
					_, _ = w.Write(random(1<<20 + 100))
					return
				}
				_, _ = w.Write(random(1 << 20))
			})
			_, messages := g.subscribe(subscriber.Config{Files: []string{typeFile}})
			g.message(1, 1, 1, typeFile, nil)
			time.AfterFunc(test.second, func() { g.message(2, 1, 1, typeFile, random(100)) })
			time.AfterFunc(test.file, func() { g.file(3, 1, typeFile, 1<<20+100, 1, 2) })
			var got []gateway.EventType
			end := time.After(10 * time.Minute)
			for ended := false; !ended; {
				select {
				case msg := <-messages:
					got = append(got, gateway.EventType(msg.Metadata.Get(gateway.KeyEventType)))
					msg.Ack()
				case <-end:
					ended = true
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if n := g.unconfirmed(); n != 0 {
				t.Errorf("%d are not confirmed", n)
			}
		})
	}
}
