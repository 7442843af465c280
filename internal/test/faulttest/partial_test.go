//go:build faults

package faulttest

import (
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	// tenants share a pipeline. The first one is sick.
	tenants = 5
	// rate is how many messages a second each of them sends; less if the pipeline could not
	// do twice as much.
	rate = 40
	// calm and faulty are how long a measurement without and with the fault takes.
	calm, faulty = 1500 * time.Millisecond, 2500 * time.Millisecond
	// inTime is how soon after it was sent a message has to be confirmed to count.
	inTime = time.Second
	// healthyShare is how much of what counts without the fault has to count with it, and
	// recovery how long after its end everything may take to be confirmed, unless the row
	// says otherwise.
	healthyShare = 0.9
	recovery     = 5 * time.Second
)

// partialRow is one broken thing beside others that work.
type partialRow struct {
	name     string
	share    float64       // instead of healthyShare
	recovery time.Duration // instead of recovery
	gateway  gatewaytest.Config
	// change changes the pipeline. Its caps are so small that what waits could fill them.
	change func(w *partialWorld, p *parts)
	size   int // of the payloads; 0: a few bytes
	// sizeOf returns the size of the next payload of a tenant. Nil: size.
	sizeOf func(w *partialWorld, tenant int) int
	// sick is how many messages the sick tenant sends whenever the others send one. 0: one, too.
	// The fault lasts until it has sent atLeast, and as long as other faults do.
	sick, atLeast int
	// sickTenants is how many tenants inject makes sick. 0: the first one.
	sickTenants int
	// begin adds to the pipeline when it runs. Nil: nothing.
	begin func(w *partialWorld, p *pipeline)
	// stored: what is stored in time counts, as there are no confirmations during the fault.
	stored bool
	// strike begins the fault and returns what ends it. Nil if faultNow is enough.
	strike func(w *partialWorld) (end func())
	// everybody: the fault is nobody's in particular, so everybody counts.
	everybody bool
	want      expectation
	// after looks at the pipeline when all is over.
	after func(w *partialWorld, p *pipeline)
}

// partialWorld is a world of several tenants.
type partialWorld struct {
	*world
	row     partialRow
	tenants []string
	senders []string
	// tenantOf has the tenants of the receiving endpoints, whose IDs are in lower case.
	tenantOf map[string]string
	rate     int
	hits     atomic.Int64 // how often the fault hit something

	peer      atomic.Pointer[peer] // during a fault of sharedStore
	peers     atomic.Int64
	sickPaths sync.Map // of the sick tenant's payloads
	mu        sync.Mutex
	confirmed map[string]time.Time // by message ID; or stored
	fault     chan struct{}        // closed at the end of the fault; nil without one
}

// TestPartialFaults breaks one thing at a time and compares what the others get with what
// they got a moment before: three times, in turns, and the median counts. PAIRS=1 does it once.
func TestPartialFaults(t *testing.T) {
	pairs := 3
	if text := os.Getenv("PAIRS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("PAIRS: %q is no number of pairs", text)
		}
		pairs = n
	}
	for _, row := range partialRows() {
		t.Run(row.name, func(t *testing.T) { newPartialWorld(t, row).run(pairs) })
	}
}

func newPartialWorld(t *testing.T, row partialRow) *partialWorld {
	if row.share == 0 {
		row.share = healthyShare
	}
	if row.recovery == 0 {
		row.recovery = recovery
	}
	w := &partialWorld{world: newWorld(t, worldConfig{gateway: row.gateway}), row: row, rate: rate, confirmed: map[string]time.Time{}, tenantOf: map[string]string{}}
	w.row.sick, w.row.sickTenants = max(w.row.sick, 1), max(w.row.sickTenants, 1)
	w.tenants, w.senders = []string{w.gateway.Tenant()}, []string{w.sender.ID}
	w.tenantOf[strings.ToLower(w.receivers[0].ID)] = w.tenants[0]
	types := []string{messageType, fileType}
	for range tenants - 1 {
		tenant := w.gateway.AddTenant()
		w.gateway.Authorize(w.gateway.Application(), tenant)
		w.tenants = append(w.tenants, tenant)
		w.senders = append(w.senders, w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: types}).ID)
		receiver := w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: types, Subscribe: types})
		w.tenantOf[strings.ToLower(receiver.ID)] = tenant
	}
	w.gateway.OnConfirm(func(e gatewaytest.LedgerEntry) {
		if !w.row.stored {
			w.counts(e.MessageID)
		}
	})
	return w
}

// counts notes that a message has arrived where it counts.
func (w *partialWorld) counts(message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.confirmed[message].IsZero() {
		w.confirmed[message] = time.Now()
	}
}

func (w *partialWorld) run(pairs int) {
	p := w.start((*parts).hasty, func(p *parts) { // some rows leave a message open
		p.Subscriber.MaxInFlight, p.Subscriber.Confirm.MaxBacklog = 80, 100
		if w.row.change != nil {
			w.row.change(w, p)
		}
	})
	if w.row.begin != nil {
		w.row.begin(w, p)
	}
	w.calibrate()
	shares := make([]float64, 0, pairs)
	for i := range pairs {
		without := w.load(calm, 0)
		w.mu.Lock()
		w.fault = make(chan struct{})
		w.mu.Unlock()
		w.hits.Store(0)
		end := func() {}
		if w.row.strike != nil {
			end = w.row.strike(w)
		}
		with := w.load(faulty, w.row.atLeast)
		w.Logf("pair %d: %.2f without the fault, %.2f with it, which has hit %d times", i+1, without, with, w.hits.Load())
		w.mu.Lock()
		close(w.fault)
		w.fault = nil
		w.mu.Unlock()
		end()
		ended := time.Now()
		w.waitAll(w.row.recovery)
		w.Logf("all confirmed %v after it", time.Since(ended).Round(time.Millisecond))
		if w.hits.Load() == 0 {
			w.Fatal("the fault hit nothing: nothing is shown")
		}
		if without < 0.5 {
			w.Fatalf("%.2f were confirmed within %v without any fault: nothing is shown", without, inTime)
		}
		shares = append(shares, with/without)
	}
	slices.Sort(shares)
	if median := shares[len(shares)/2]; median < w.row.share {
		w.Errorf("the others kept %.2f of their rate, want %.2f", median, w.row.share)
	}
	if w.row.after != nil {
		w.row.after(w, p)
	}
	w.judge(w.row.want)
}

// calibrate keeps the load below half of what the pipeline can do on this machine.
func (w *partialWorld) calibrate() {
	const n = 60
	began := time.Now()
	for range n {
		for i := range w.tenants {
			w.sendAs(i)
		}
	}
	w.waitAll(testkit.Patience)
	capacity := n * float64(tenants) / time.Since(began).Seconds() // a second
	w.rate = min(rate, int(capacity/2/float64(tenants-1+w.row.sick)))
	if w.rate < 5 {
		w.Fatalf("this machine does %.0f messages a second: too few to measure anything", capacity)
	}
}

func (w *partialWorld) sendAs(i int) (id string) {
	size := w.row.size
	if w.row.sizeOf != nil {
		size = w.row.sizeOf(w, i)
	}
	payload := w.bytes(max(size, 1))
	ids, err := w.gateway.Send(gatewaytest.SendRequest{From: w.senders[i], MessageType: messageType, Payload: payload})
	if err != nil || len(ids) != 1 {
		w.Fatalf("%d messages, %v", len(ids), err)
	}
	return ids[0]
}

// load lets all tenants send for d, and until the sick one has sent atLeast, and returns how
// much of what the healthy ones sent was confirmed in time.
func (w *partialWorld) load(d time.Duration, atLeast int) float64 {
	w.Helper()
	sent := map[string]time.Time{}
	tick := time.NewTicker(time.Second / time.Duration(w.rate))
	defer tick.Stop()
	ofSick := 0
	for began := time.Now(); time.Since(began) < d || ofSick < atLeast; <-tick.C {
		for range w.row.sick - 1 {
			w.sendAs(0)
		}
		ofSick += w.row.sick
		for i := range w.tenants {
			now := time.Now()
			if id := w.sendAs(i); i >= w.row.sickTenants || w.row.everybody {
				sent[id] = now
			}
		}
	}
	<-time.After(inTime)
	w.mu.Lock()
	defer w.mu.Unlock()
	good := 0
	for id, at := range sent {
		if confirmed := w.confirmed[id]; !confirmed.IsZero() && confirmed.Sub(at) <= inTime {
			good++
		}
	}
	return float64(good) / float64(len(sent))
}

// waitAll waits until all that the row expects to be confirmed is.
func (w *partialWorld) waitAll(limit time.Duration) {
	w.Helper()
	began := time.Now()
	for {
		open := 0
		for _, e := range w.gateway.Ledger() {
			if !e.Confirmed() && (w.row.want.open == nil || !w.row.want.open(e)) {
				open++
			}
		}
		if open == 0 {
			return
		}
		if time.Since(began) > limit {
			w.Fatalf("%d messages are not confirmed after %v", open, limit)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// noteSickPath notes the address of a payload of the sick tenant.
func (w *partialWorld) noteSickPath(uri string) {
	if u, err := url.Parse(uri); err == nil {
		w.sickPaths.Store(u.Path, true)
	}
}

func (w *partialWorld) isSickPath(path string) bool {
	_, sick := w.sickPaths.Load(path)
	return sick
}

func (w *partialWorld) sick() string { return w.tenants[0] }

func (w *partialWorld) isSick(msg *message.Message) bool {
	return strings.EqualFold(msg.Metadata[gateway.KeyTenantID], w.sick())
}

// faultNow is closed when the fault ends; it is nil while there is none.
func (w *partialWorld) faultNow() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// hit counts if hit is true, and returns it.
func (w *partialWorld) hit(hit bool) bool {
	if hit {
		w.hits.Add(1)
	}
	return hit
}

// The matrix has the same rows.
func TestPartialMatrixIsComplete(t *testing.T) {
	page := testkit.Must(os.ReadFile("matrix.md"))(t)
	var documented []string
	for _, match := range regexp.MustCompile(`(?m)^\| (P\d+) \| ([^|]+) \|`).FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, match[1]+" "+match[2])
	}
	var tested []string
	for _, row := range partialRows() {
		tested = append(tested, row.name)
	}
	if !slices.Equal(documented, tested) {
		t.Errorf("the matrix has the rows\n%s\nand these are tested\n%s", strings.Join(documented, "\n"), strings.Join(tested, "\n"))
	}
}
