//go:build ha

package command

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
)

const (
	haKeys  = 8 // receiving endpoints, each with an order of its own
	haBurst = 10 * time.Millisecond
	// haStreamDown is how long a holder may be without the stream.
	haStreamDown = 2 * time.Second
	// haErrors is how many lines of errors and warnings an instance may write in a run.
	haErrors = 60
)

// haTraces is what becomes of the only message on its way, with which the holder stops at a point: how many reach the
// sink late, and how many it keeps twice.
type haTraces struct{ landed, copies int }

// haSinkKind is a sink, with what it is left with at the points that are not like the others.
type haSinkKind struct {
	kafka  bool
	traces map[stoppoint.Point]haTraces
}

var (
	haInNATS  = haSinkKind{traces: map[stoppoint.Point]haTraces{stoppoint.Write: {1, 0}}}
	haInKafka = haSinkKind{kafka: true, traces: map[stoppoint.Point]haTraces{
		stoppoint.Publish: {0, 0},
		stoppoint.Write:   {1, 1},
		stoppoint.Stored:  {0, 1},
		stoppoint.Commit:  {0, 1},
	}}
)

// haAloneRate is how many messages per second one key can be sure to carry.
const haAloneRate = 100

// haForm is how TestHighAvailability is run: see `make torture PART=ha`.
type haForm struct {
	runs      int
	keys      int // of haKeys
	ttl, away time.Duration
	rate      int           // messages per second
	slack     time.Duration // added to each bound
	clocks    time.Duration // how far the clocks of two instances are apart in the rows about that; 0: no such rows

	sink  haSinkKind
	kafka string          // the address of a broker, if the sink is in Kafka
	alone bool            // one message is on its way at a time
	back  bool            // every instance carries to the gateway what is in haKafka.back
	point stoppoint.Point // where the holder is to stop
	ahead time.Duration   // the clock of the first instance; negative: behind
}

// haRow is a row of the table.
type haRow struct {
	name   string
	bound  time.Duration // until the next confirmation
	fault  func(r *haRun) haFault
	points []stoppoint.Point // at each of them in turn
	clocks bool              // with clocks that are apart
	sink   *haSinkKind       // with one message on its way at a time; nil: in NATS, with as many as there are keys
}

func haEnv[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// TestHighAvailability runs two instances with a lease, as processes, under load, and takes away
// from the one that works: its life, NATS, the gateway, or the time. What the gateway was told, and what the
// sink holds, says whether anything was lost, confirmed early, stored twice or out of order.
// Neither router nor subscriber has a part in the judgment. A sink in Kafka keeps copies: they are
// counted, and read once more by a consumer that drops them.
func TestHighAvailability(t *testing.T) {
	form := haForm{
		keys: haKeys,
		runs: haEnv(t, "RUNS", 2, strconv.Atoi), rate: haEnv(t, "RATE", 200, strconv.Atoi),
		ttl: haEnv(t, "TTL", 2*time.Second, time.ParseDuration), away: haEnv(t, "AWAY", 5*time.Second, time.ParseDuration),
		slack: haEnv(t, "SLACK", 30*time.Second, time.ParseDuration), clocks: haEnv(t, "CLOCKS", 0, time.ParseDuration),
	}
	built := newEndToEnd(t)
	stopping := built.build("agrimill-stoppoints", "../..", "-tags", "stoppoints")
	shifted := ""
	if form.clocks != 0 {
		shifted = built.buildShifted()
	}
	var table []string
	for _, row := range []haRow{
		{name: "the holder is killed", bound: form.ttl + time.Second, fault: (*haRun).kill},
		{name: "the holder is told to stop", bound: time.Second, fault: (*haRun).terminate},
		{name: "both are replaced, one by one", bound: time.Second, fault: (*haRun).roll},
		{name: "both are restarted, one by one", bound: time.Second, fault: (*haRun).restart},
		{name: "both are reloaded, one by one", bound: time.Second, fault: (*haRun).reload},
		{name: "the holder is frozen for 3 TTL", bound: form.ttl + time.Second, fault: (*haRun).freeze},
		{name: "the same, at one of ten points", bound: form.ttl + time.Second, fault: (*haRun).stopAtPoint, points: stoppoint.All()},
		{name: "one key: at one of ten points", bound: form.ttl + time.Second, fault: (*haRun).stopAtPoint, points: stoppoint.All(), sink: &haInNATS},
		{name: "the sink is in Kafka: at four points", bound: form.ttl + time.Second, fault: (*haRun).stopAtPoint, points: slices.Sorted(maps.Keys(haInKafka.traces)), sink: &haInKafka},
		{name: "the holder cannot reach NATS", bound: form.ttl + time.Second, fault: (*haRun).cut},
		{name: "the holder cannot reach the gateway", bound: haStreamDown + 2*time.Second, fault: (*haRun).astray},
		{name: "the gateway is silent to the holder", bound: haStreamDown + 2*time.Second, fault: (*haRun).hush},
		{name: "clocks apart: the holder is killed", bound: form.ttl + time.Second, fault: (*haRun).kill, clocks: true},
		{name: "clocks apart: it cannot reach NATS", bound: form.ttl + time.Second, fault: (*haRun).cut, clocks: true},
		{name: "nobody can reach NATS for " + form.away.String(), bound: form.ttl + 3*time.Second, fault: (*haRun).outage},
	} {
		if row.clocks && form.clocks == 0 {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			runs, broker := form.runs, ""
			if row.sink != nil && row.sink.kafka {
				broker = haBroker(t)
			}
			runs = max(runs, len(row.points))
			var mu sync.Mutex
			var took []time.Duration
			sum := haResult{}
			t.Run("runs", func(t *testing.T) { // as many at a time as go test -parallel says
				for n := range runs {
					form, agrimill, name := form, built.agrimill, strconv.Itoa(n+1)
					if row.sink != nil {
						form.sink, form.kafka, form.alone, form.keys, form.rate = *row.sink, broker, true, 1, min(form.rate, haAloneRate)
					}
					switch {
					case row.points != nil:
						form.point, agrimill = row.points[n%len(row.points)], stopping
						name += " " + string(form.point)
					case row.clocks:
						form.ahead, agrimill = form.clocks*time.Duration(1-n%2*2), shifted
					}
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						e := &endToEnd{TB: t, folder: t.TempDir(), agrimill: agrimill, natsServer: built.natsServer}
						result := newHARun(e, form).run(row.fault)
						t.Logf("%s: %.2f s, %d messages, %d resent, %d late, %d landed, %d copies", row.name,
							result.took.Seconds(), result.messages, result.again, result.late, result.landed, result.copies)
						if result.took > row.bound+form.slack {
							t.Errorf("the next confirmation took %v, want at most %v", result.took, row.bound+form.slack)
						}
						mu.Lock()
						defer mu.Unlock()
						took = append(took, result.took)
						sum.messages += result.messages
						sum.again += result.again
						sum.late += result.late
						sum.landed += result.landed
						sum.copies += result.copies
					})
				}
			})
			if len(took) < runs {
				return
			}
			slices.Sort(took)
			median, worst := took[(len(took)-1)/2], took[len(took)-1]
			line := fmt.Sprintf("| %-36s | %4d | %8d | %7.2f s | %7.2f s | %5.2f s | %6d | %4d | %6d | %6d |", row.name, runs, sum.messages,
				median.Seconds(), worst.Seconds(), row.bound.Seconds(), sum.again, sum.late, sum.landed, sum.copies)
			fmt.Println(line) // the table comes after an hour or two, if nothing is in its way
			table = append(table, line)
			// A process may be frozen between a check and the write that follows it, but seldom, or
			// at one of the points.
			if sum.late > max(runs/len(stoppoint.All()), 1) {
				t.Errorf("%d requests of former holders in %d runs", sum.late, runs)
			}
		})
	}
	fmt.Printf("\nTTL %v, %d messages per second; nothing was lost, confirmed early or out of order, and no reader sees a copy, in the rows without a failure\n", form.ttl, form.rate)
	fmt.Println("| fault                                | runs | messages |    median |     worst |   bound | resent | late | landed | copies |")
	fmt.Println("|--------------------------------------|------|----------|-----------|-----------|---------|--------|------|--------|--------|")
	for _, line := range table {
		fmt.Println(line)
	}
}

// haResult is what a run has shown.
type haResult struct {
	took     time.Duration // until the next confirmation
	messages int
	again    int // messages that were delivered more than once
	late     int // requests of a former holder after its time
	landed   int // messages of a former holder that reached the sink after its time
	copies   int // messages that the sink keeps a second time
}

// haFault is a fault that has begun.
type haFault struct {
	began time.Time
	// by is who has to confirm next; nil: anybody.
	by *haInstance
	// mend ends the fault; nil: it does not end. It returns from when on it counts, if later
	// than began.
	mend func() time.Time
	// former is the holder before, if it lives on without the lease after mend.
	former *haInstance
}

// haRun is two instances with what is around them.
type haRun struct {
	*endToEnd
	form      haForm
	gate      *gatewaytest.Server
	kafka     *haKafka // nil: the sink is in NATS
	nats      *process
	port      string        // of NATS
	instances []*haInstance // the first two from the beginning
	sink      haSink
	sender    string
	receivers []string
}

// haInstance is one of them, with ways of its own to the gateway and to NATS.
type haInstance struct {
	*process
	name   string
	file   string // with the configuration
	text   string // of it
	origin string
	toNATS *faultproxy.Proxy
	way    *haWay
}

// haWay is a way to the gateway. It remembers what was asked for.
type haWay struct {
	*httptest.Server
	broken atomic.Bool                   // nothing gets through
	silent atomic.Pointer[chan struct{}] // until it is closed, everything is taken and nothing answered; nil: not
	mu     sync.Mutex
	calls  []haCall
}

// haCall is a request that would be wrong without the lease.
type haCall struct {
	what     string
	came     time.Time
	answered time.Time // zero: not yet
	ok       bool
}

func newHAWay(t testing.TB, target string) *haWay {
	t.Helper()
	to := testkit.Must(url.Parse(target))(t)
	w := &haWay{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		FlushInterval: -1,
		ErrorHandler:  func(rw http.ResponseWriter, _ *http.Request, _ error) { rw.WriteHeader(http.StatusBadGateway) },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.broken.Load() {
			panic(http.ErrAbortHandler) // the connection is closed without a response
		}
		if quiet := w.silent.Load(); quiet != nil {
			select {
			case <-*quiet:
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler)
		}
		counts := strings.HasSuffix(r.URL.Path, "/confirmations") || strings.HasSuffix(r.URL.Path, "/events") || r.Method == http.MethodPut
		if !counts {
			proxy.ServeHTTP(rw, r)
			return
		}
		w.mu.Lock()
		n := len(w.calls)
		w.calls = append(w.calls, haCall{what: r.Method + " " + r.URL.Path, came: time.Now()})
		w.mu.Unlock()
		answer := &haAnswer{ResponseWriter: rw, way: w, request: r}
		proxy.ServeHTTP(answer, r)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls[n].answered, w.calls[n].ok = time.Now(), answer.status/100 == 2
	}))
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
	})
	return w
}

type haAnswer struct {
	http.ResponseWriter
	way     *haWay
	request *http.Request
	status  int
}

// Write says nothing while its way is silent.
func (a *haAnswer) Write(p []byte) (int, error) {
	if quiet := a.way.silent.Load(); quiet != nil {
		select {
		case <-*quiet:
		case <-a.request.Context().Done():
		}
		return 0, http.ErrAbortHandler
	}
	return a.ResponseWriter.Write(p)
}

func (a *haAnswer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *haAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// confirmed returns when a confirmation was first answered of those that came after a time; false if none was.
func (w *haWay) confirmed(after time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if c.ok && c.came.After(after) && strings.HasSuffix(c.what, "/confirmations") {
			return c.answered, true
		}
	}
	return time.Time{}, false
}

// since returns what was asked for after a time.
func (w *haWay) since(after time.Time) (calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if c.came.After(after) {
			calls = append(calls, c.what)
		}
	}
	return calls
}

func newHARun(e *endToEnd, form haForm) *haRun {
	e.Helper()
	r := &haRun{endToEnd: e, form: form, gate: gatewaytest.New(e.TB, gatewaytest.Config{KeepAlive: time.Second})}
	var address string
	r.nats, address = r.startNATS("-1")
	_, r.port, _ = net.SplitHostPort(address)
	r.sender = r.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: []string{taskData}}).ID
	for i := range haKeys {
		r.receivers = append(r.receivers, r.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprintf("farm %d", i), Receive: []string{taskData}}).ID)
	}
	r.sink = &haStream{haRun: r}
	if form.kafka != "" {
		r.kafka = newHAKafka(e.TB, form.kafka)
		r.sink = &haTopics{haRun: r}
	}
	r.free(address)
	defer r.roles()
	for _, name := range []string{"a", "b"} {
		r.join(name)
	}
	return r
}

// free leaves the record of somebody who has released the lease, so that the first one need not
// wait for its end.
func (r *haRun) free(address string) {
	r.Helper()
	conn := testkit.Must(natsgo.Connect("nats://" + address))(r)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(r)
	kv := testkit.Must(js.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: "agrimill-lease"}))(r)
	if _, err := kv.PutString(r.Context(), "agrimill", `{"epoch":1,"holder":"nobody","released":true,"writes":1}`); err != nil {
		r.Fatal(err)
	}
}

// join starts an instance and waits until it is ready.
func (r *haRun) join(name string) *haInstance {
	r.Helper()
	i := r.instance(name, net.JoinHostPort("127.0.0.1", r.port))
	r.instances = append(r.instances, i)
	testkit.Eventually(r, name+" is ready", func() bool {
		status, _ := haGet(i.origin + "/readyz")
		return status == http.StatusOK
	})
	if status, _ := haGet(i.origin + "/healthz"); status != http.StatusOK {
		r.Errorf("%s would be restarted: /healthz is %d", name, status)
	}
	return i
}

// leave stops an instance that stands by.
func (r *haRun) leave(i *haInstance) {
	r.Helper()
	if status := i.stop(syscall.SIGTERM); status != statusOK {
		r.Errorf("%s, which stood by, ended with status %d", i.name, status)
	}
}

func (r *haRun) instance(name, nats string) *haInstance {
	r.Helper()
	c := r.gate.ClientConfig()
	base := testkit.Must(url.Parse(c.BaseURL))(r)
	origin := base.Scheme + "://" + base.Host
	i := &haInstance{name: name, toNATS: faultproxy.New(r.TB), way: newHAWay(r.TB, origin)}
	i.toNATS.SetTarget(nats)
	back, consumers := "", "holder"
	if r.form.back {
		consumers = "every_instance"
		back = fmt.Sprintf("  - {name: back, from: {kafka: {brokers: %q, topics: %s, group: %[2]s}}, to: {gateway: {tenant: %s, endpoint: %s, recipients: [%s], type: %q}}}",
			r.kafka.addr, r.kafka.back(), r.gate.Tenant(), r.sender, r.receivers[0], taskData)
	}
	text := fmt.Sprintf(`
gateway: {base_url: %q, token_url: %q, client_id: %q, client_secret: "${SECRET}", application_id: %q, software_version_id: %q}
endpoints: [{external_id: "urn:example:bridge", capabilities: [{type: "img:png", direction: RECEIVE}]}]
sinks: {farm: {%s}}
routes:
  - {name: farm-data, from: {gateway: all}, to: {sink: farm, topic: one}}
%s
poison: {sink: farm}
ha: {nats_kv: {url: &nats "nats://%s"}, ttl: %v, stop_without_nats: true, consumers: %s}
dedup: {nats_kv: {url: *nats}}
subscriber: {stream_down_for: %v}
`, strings.Replace(c.BaseURL, origin, i.way.URL, 1), strings.Replace(c.TokenURL, origin, i.way.URL, 1), c.ClientID,
		r.gate.Application().ID, r.gate.Application().SoftwareVersionID, r.sink.config(i), back, i.toNATS.Addr(), r.form.ttl, consumers, haStreamDown)
	i.file = filepath.Join(r.folder, name+".yaml")
	i.configure(r.TB, text)
	r.env = map[string]string{"SECRET": r.gate.Application().ClientSecret, stoppoint.Env: string(r.form.point)}
	if len(r.instances) == 0 {
		r.env[haClock] = strconv.Itoa(int(r.form.ahead.Seconds()))
	}
	i.process = r.start(name, r.agrimill, "run", i.file, "--address", "127.0.0.1:0", "--watch", "0")
	i.origin = i.process.origin()
	if shown, ahead := i.clock(), r.form.ahead; len(r.instances) == 0 && ahead != 0 && (time.Until(shown)-ahead).Abs() > time.Minute {
		r.Errorf("the clock of %s shows %v", name, shown)
	}
	return i
}

func (i *haInstance) configure(tb testing.TB, text string) {
	tb.Helper()
	i.text = text
	must(tb, os.WriteFile(i.file, []byte(text), 0o600))
}

func haGet(address string) (status int, body []byte) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(address)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = response.Body.Close() }()
	var text json.RawMessage
	if json.NewDecoder(response.Body).Decode(&text) != nil {
		return response.StatusCode, nil
	}
	return response.StatusCode, text
}

// role is what the instance says that it is; empty if it does not answer.
func (i *haInstance) role() string {
	role, _ := i.lease()
	return role
}

// lease is its role, with the epoch.
func (i *haInstance) lease() (role string, epoch uint64) {
	_, text := haGet(i.origin + "/api/status")
	var status struct {
		Lease struct {
			Role  string `json:"role"`
			Epoch uint64 `json:"epoch"`
		} `json:"lease"`
	}
	if json.Unmarshal(text, &status) != nil {
		return "", 0
	}
	return status.Lease.Role, status.Lease.Epoch
}

// roles waits until one instance is the holder, and the other one stands by.
func (r *haRun) roles() (holder, standby *haInstance) {
	r.Helper()
	testkit.Eventually(r, "one is the holder", func() bool {
		a, b := r.instances[0], r.instances[1]
		switch one, other := a.role(), b.role(); {
		case one == "holder" && other == "standby":
			holder, standby = a, b
		case one == "standby" && other == "holder":
			holder, standby = b, a
		}
		return holder != nil
	})
	return holder, standby
}

func (i *haInstance) signal(signal syscall.Signal) time.Time {
	i.Helper()
	now := time.Now()
	if err := i.cmd.Process.Signal(signal); err != nil {
		i.Error(err)
	}
	return now
}

func (r *haRun) kill() haFault {
	holder, standby := r.roles()
	return haFault{began: holder.signal(syscall.SIGKILL), by: standby}
}

func (r *haRun) terminate() haFault {
	holder, standby := r.roles()
	return haFault{began: holder.signal(syscall.SIGTERM), by: standby}
}

// roll replaces both, as a Deployment does that may have one instance more meanwhile and none less.
func (r *haRun) roll() haFault {
	holder, standby := r.roles()
	next := r.join("c")
	r.leave(standby)
	began := holder.signal(syscall.SIGTERM)
	testkit.Eventually(r, "the former holder ends", holder.hasEnded)
	testkit.Eventually(r, "the next one takes over", func() bool { return next.role() == "holder" }) // or who starts now may be first
	r.join("d")
	return haFault{began: began, by: next}
}

// restart restarts one after the other, as with two machines: the one that stands by first.
func (r *haRun) restart() haFault {
	holder, standby := r.roles()
	r.leave(standby)
	next := r.join(standby.name)
	began := holder.signal(syscall.SIGTERM)
	testkit.Eventually(r, "the former holder ends", holder.hasEnded)
	testkit.Eventually(r, "the next one takes over", func() bool { return next.role() == "holder" }) // or who starts now may be first
	r.join(holder.name)
	return haFault{began: began, by: next}
}

// reload changes the route of both, the one that stands by first. That leaves the lease alone.
func (r *haRun) reload() haFault {
	holder, standby := r.roles()
	_, epoch := holder.lease()
	var began time.Time
	for _, i := range []*haInstance{standby, holder} {
		i.configure(r.TB, strings.Replace(i.text, "topic: one", "topic: another", 1))
		began = i.signal(syscall.SIGHUP)
		testkit.Eventually(r, i.name+" is reloaded", func() bool { return i.count("configuration: reloaded") == 1 })
	}
	if role, now := holder.lease(); role != "holder" || now != epoch {
		r.Errorf("after the reload the holder is %s with epoch %d, want the holder with %d", role, now, epoch)
	}
	return haFault{began: began, by: holder}
}

func (r *haRun) freeze() haFault {
	holder, standby := r.roles()
	r.sink.watch()
	began := holder.signal(syscall.SIGSTOP)
	return haFault{began: began, by: standby, former: holder, mend: func() time.Time {
		haWait(r, time.Until(began.Add(3*r.form.ttl)))
		return holder.signal(syscall.SIGCONT)
	}}
}

// stopAtPoint is freeze at a point: the holder stops itself as soon as it gets there.
func (r *haRun) stopAtPoint() haFault {
	holder, standby := r.roles()
	r.sink.watch()
	holder.signal(syscall.SIGUSR2)
	testkit.Eventually(r, "the holder stops at "+string(r.form.point), holder.isStopped)
	began := time.Now()
	return haFault{began: began, by: standby, former: holder, mend: func() time.Time {
		haWait(r, time.Until(began.Add(3*r.form.ttl)))
		return holder.signal(syscall.SIGCONT)
	}}
}

func (r *haRun) cut() haFault {
	holder, standby := r.roles()
	began := time.Now()
	holder.toNATS.Hang()
	return haFault{began: began, by: standby, former: holder, mend: func() time.Time {
		holder.toNATS.Resume()
		return time.Now()
	}}
}

func (r *haRun) astray() haFault {
	holder, standby := r.roles()
	began := time.Now()
	holder.way.broken.Store(true)
	holder.way.CloseClientConnections()
	return haFault{began: began, by: standby, former: holder, mend: func() time.Time {
		holder.way.broken.Store(false)
		return time.Now()
	}}
}

// hush leaves the holder's connections to the gateway open, and takes new ones; nothing comes back.
func (r *haRun) hush() haFault {
	holder, standby := r.roles()
	began := time.Now()
	quiet := make(chan struct{})
	holder.way.silent.Store(&quiet)
	return haFault{began: began, by: standby, former: holder, mend: func() time.Time {
		holder.way.silent.Store(nil)
		close(quiet)
		return time.Now()
	}}
}

func (r *haRun) outage() haFault {
	r.roles()
	r.nats.stop(syscall.SIGTERM)
	haWait(r, r.form.away)
	r.nats, _ = r.startNATS(r.port)
	return haFault{began: time.Now()}
}

// haWait waits while a fault lasts.
func haWait(tb testing.TB, d time.Duration) {
	tb.Helper()
	select {
	case <-time.After(d):
	case <-tb.Context().Done():
	}
}

// load sends messages until stop is called: the keys in turn, each message with its number.
func (r *haRun) load() (stop func() int) {
	ctx, cancel := context.WithCancel(r.Context())
	sent := make(chan int, 1)
	go func() { // ends with ctx
		n := 0
		defer func() { sent <- n }()
		began, tick := time.Now(), time.NewTicker(haBurst)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for due := int(time.Since(began).Seconds() * float64(r.form.rate)); n < due; n++ {
				request := gatewaytest.SendRequest{
					From: r.sender, MessageType: taskData, Recipients: []string{r.receivers[n%r.form.keys]}, Payload: []byte(strconv.Itoa(n)),
				}
				if _, err := r.gate.Send(request); err != nil {
					r.Error(err)
					return
				}
			}
		}
	}()
	return func() int {
		cancel()
		return <-sent
	}
}

func (r *haRun) run(begin func(*haRun) haFault) (result haResult) {
	stop := r.load()
	start := time.Now()
	confirmed := func(by *haInstance, after time.Time) (time.Time, bool) {
		var first time.Time
		for _, i := range r.instances {
			if at, ok := i.way.confirmed(after); ok && (by == nil || by == i) && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		return first, !first.IsZero()
	}
	testkit.Eventually(r, "messages are confirmed", func() bool { _, ok := confirmed(nil, start.Add(500*time.Millisecond)); return ok })

	fault := begin(r)
	testkit.Eventually(r, "the next confirmation", func() bool {
		at, ok := confirmed(fault.by, fault.began)
		result.took = at.Sub(fault.began)
		return ok
	})
	if fault.mend != nil {
		mended := fault.mend()
		_, epoch := fault.by.lease()
		testkit.Eventually(r, "the former holder stands by", func() bool { return fault.former.role() == "standby" })
		late := fault.former.way.since(mended)
		if role, now := fault.by.lease(); role != "holder" || now != epoch {
			late = nil // it was not alone with the lease, so the other one may have had it
		}
		result.late = len(late)
		defer func() {
			// Each key has one message on its way.
			if result.landed = r.sink.repeated(mended); result.landed > r.form.keys {
				r.Errorf("%d messages of the former holder reached the sink after its time", result.landed)
			}
			if want := r.form.sink.traces[r.form.point]; r.form.alone && (result.landed != want.landed || result.copies != want.copies) {
				r.Errorf("the message at %s: %d landed and %d copies, want %d and %d", r.form.point, result.landed, result.copies, want.landed, want.copies)
			}
		}()
		if slices.ContainsFunc(late, func(what string) bool { return !strings.HasSuffix(what, "/confirmations") }) || len(late) > 1 {
			r.Errorf("the former holder went on: %v", late)
		}
	}
	testkit.Eventually(r, "messages are confirmed", func() bool { _, ok := confirmed(fault.by, time.Now().Add(-200*time.Millisecond)); return ok })
	result.messages = stop()
	r.finish(&result)
	return result
}

// finish waits until everything is confirmed, stops the instances, and looks at what there is.
func (r *haRun) finish(result *haResult) {
	r.Helper()
	// A long outage at a high rate leaves so many that only progress can be asked for.
	const some = 10_000
	for n := min(some, result.messages); ; n = min(n+some, result.messages) {
		ctx, cancel := context.WithTimeout(r.Context(), testkit.Patience)
		err := r.gate.WaitConfirmed(ctx, n)
		cancel()
		if err != nil {
			r.Fatalf("not even %d of %d messages are confirmed: %v", n, result.messages, err)
		}
		if n == result.messages {
			break
		}
	}
	for _, i := range r.instances {
		if i.cmd.ProcessState == nil && !i.hasEnded() {
			if status := i.stop(syscall.SIGTERM); status != statusOK && status != statusUnfinished {
				r.Errorf("%s ended with status %d", i.name, status)
			}
		}
		errors := i.count("level=ERROR") + i.count("level=WARN")
		if errors > haErrors {
			r.Errorf("%s wrote %d errors and warnings", i.name, errors)
		}
	}
	confirmed := map[string]time.Time{}
	for _, e := range r.gate.Ledger() {
		if len(e.Confirmations) == 0 {
			r.Errorf("message %s is not confirmed", e.MessageID)
			continue
		}
		confirmed[e.ContextID] = e.Confirmations[0]
		if len(e.Deliveries) > 1 {
			result.again++
		}
	}
	if len(confirmed) != result.messages {
		r.Errorf("%d of %d messages are in the ledger", len(confirmed), result.messages)
	}
	result.copies = r.sink.check(confirmed)
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// count counts the lines that have a text in them.
func (p *process) count(text string) int {
	n := 0
	for _, line := range p.output() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
