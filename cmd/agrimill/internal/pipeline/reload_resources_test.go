package pipeline_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks/blob"
)

var allPairs = flag.Bool("all-pairs", false, "reload with each pair of a dedup store and a kind of sink")

// place is a kind of sink in a test of reloads.
type place struct {
	config string                 // all but the dedup store; what is looked at is the first route
	send   func(contextID string) // sends a message with a payload of its own
	held   func() map[string]int  // how often a message is there, by its context ID
}

// sendID sends a message to the receiver. Its payload depends on nothing but its ID, so
// that it can be sent again.
func (w *world) sendID(id string, size int) {
	w.Helper()
	payload := append([]byte(mark+id), make([]byte, size)...)
	if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, ContextID: id, Payload: payload}); err != nil {
		w.Error(err)
	}
}

func (w *world) natsPlace() place {
	return place{
		config: w.head() + w.natsSink() + allRoute,
		send:   func(id string) { w.sendID(id, 0) },
		held: func() map[string]int {
			ids := map[string]int{}
			for _, raw := range w.read("agrimill.>") {
				ids[raw.Header.Get(gateway.KeyContextID)]++
			}
			return ids
		},
	}
}

func (w *world) kafkaPlace() place {
	cluster := kafkatest.Start(w, kfake.SeedTopics(1, "agrimill.data", "agrimill.poison"))
	return place{
		config: w.head() + fmt.Sprintf("sinks: {lake: {kafka: {brokers: %q}}}\npoison: {sink: lake}\n", cluster.Addr()) +
			"routes: [{name: lake, from: {gateway: all}, to: {sink: lake, topic: data}}]\n",
		send: func(id string) { w.sendID(id, 0) },
		held: func() map[string]int {
			ids := map[string]int{}
			for _, record := range append(kafkatest.Read(w, cluster.Addr(), "agrimill.data"), kafkatest.Read(w, cluster.Addr(), "agrimill.poison")...) {
				for _, h := range record.Headers {
					if h.Key == gateway.KeyContextID {
						ids[string(h.Value)]++
					}
				}
			}
			return ids
		},
	}
}

// blobPlace is a sink of files whose payloads come through the claim check.
func (w *world) blobPlace() place {
	dir := w.TempDir()
	return place{
		config: strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  payload: claim_check\n", 1) +
			fmt.Sprintf("sinks: {files: {blob: {url: \"file://%s/archive?create_dir=true\"}}}\npoison: {sink: files}\n", dir) +
			fmt.Sprintf("claim_check: {url: \"file://%s/payloads?create_dir=true\"}\n", dir) +
			"routes: [{name: archive, from: {gateway: all}, to: {sink: files}}]\n",
		send: func(id string) { w.sendID(id, 100<<10) }, // too large for its event
		held: func() map[string]int {
			ids := map[string]int{}
			err := filepath.WalkDir(filepath.Join(dir, "archive"), func(path string, _ os.DirEntry, err error) error {
				if err != nil || !strings.HasSuffix(path, ".json") {
					return err
				}
				text, err := os.ReadFile(path)
				var about blob.Sidecar
				if err = errors.Join(err, json.Unmarshal(text, &about)); err == nil {
					ids[about.Metadata[gateway.KeyContextID]]++
				}
				return err
			})
			if err != nil {
				w.Error(err)
			}
			return ids
		},
	}
}

// A reload closes nothing that is used on: for each memory of duplicates and each kind of
// sink, a harmless setting is changed twice under load, and a configuration is refused
// in between. Nothing stops, nothing is lost, and copies of messages from before are
// recognized after all of it.
//
// By default each store and each kind of sink is in some of the pairs.
func TestReloadKeepsWhatIsUsedOn(t *testing.T) {
	t.Parallel()
	stores := map[string]func(w *world) string{
		"memory":  func(*world) string { return "dedup: {store: memory}\n" },
		"bbolt":   func(w *world) string { return fmt.Sprintf("dedup: {bbolt: {path: %s/dedup.db}}\n", w.TempDir()) },
		"nats_kv": func(w *world) string { return fmt.Sprintf("dedup: {nats_kv: {url: %q}}\n", w.server.URL()) },
	}
	places := map[string]func(w *world) place{
		"nats": (*world).natsPlace, "kafka": (*world).kafkaPlace, "blob": (*world).blobPlace,
	}
	for i, store := range slices.Sorted(maps.Keys(stores)) {
		for j, kind := range slices.Sorted(maps.Keys(places)) {
			if !*allPairs && j%len(stores) != i {
				continue
			}
			t.Run(store+"/"+kind, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				reloadUnderLoad(w, places[kind](w), stores[store](w))
			})
		}
	}
}

func reloadUnderLoad(w *world, to place, dedup string) {
	base := to.config + dedup
	b := w.start(base)
	b.waitReady()

	delivered := func() uint64 { return b.Snapshot().Routes[0].Delivered }
	var ids []string
	stop := w.repeat(10*time.Millisecond, func() {
		if delivered()+20 < uint64(len(ids)) {
			return // the disk is slow; there is always something on the way
		}
		id := uuid.NewString()
		ids = append(ids, id)
		to.send(id)
	})
	flows := func(when string) {
		w.Helper()
		n := delivered()
		testkit.Eventually(w, "messages are delivered "+when, func() bool { return delivered() >= n+10 })
	}
	flows("at first")
	if report := b.reload(base + "log: {level: debug}\n"); !slices.Equal(report.Changed, []string{"log.level changed"}) || report.Unfinished != "" {
		w.Errorf("the reload: %+v", report)
	}
	flows("after a reload")
	refused := w.parse(base)
	refused.Routes = append(slices.Clone(refused.Routes), refused.Routes[0]) // two of a name
	if _, err := b.Reload(w.Context(), refused); !errors.Is(err, pipeline.ErrConfig) {
		w.Errorf("what cannot work is taken over: %v", err)
	}
	flows("after a reload that was refused")
	b.reload(base + "log: {level: warn}\n")
	flows("after another reload")
	stop()

	testkit.Eventually(w, "all are delivered", func() bool { return delivered() == uint64(len(ids)) })
	duplicates := b.Snapshot().Routes[0].Duplicates
	copies := ids[:20]
	for _, id := range copies {
		to.send(id)
	}
	testkit.Eventually(w, "the copies are recognized", func() bool { return b.Snapshot().Routes[0].Duplicates >= duplicates+uint64(len(copies)) })
	b.waitReady()
	w.waitConfirmed()
	b.mustStop()
	held := to.held()
	for _, id := range ids {
		if held[id] != 1 {
			w.Errorf("message %s is stored %d times", id, held[id])
		}
	}
	if len(held) != len(ids) {
		w.Errorf("%d different messages are stored, want %d", len(held), len(ids))
	}
}
