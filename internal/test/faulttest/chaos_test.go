//go:build faults && chaos

package faulttest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// TestChaos runs random combinations of faults: SEEDS of them with N messages
// each, from SEED on, or from a random one. Every fourth seed goes the way back.
// KILL=0 leaves out kill -9.
func TestChaos(t *testing.T) {
	seeds, n := number(t, "SEEDS", 1), number(t, "N", 5000)
	first := seedOf(t)
	t.Logf("seeds %d to %d, %d messages each", first, first+uint64(seeds)-1, n)
	var sum verdict
	began := time.Now()
	for i := range uint64(seeds) {
		t.Run(fmt.Sprint("seed=", first+i), func(t *testing.T) {
			c := &chaos{n: n}
			v := c.run(t, first+i)
			sum.sent += v.sent
			sum.stored += v.stored
			sum.duplicates += v.duplicates
			sum.poisoned += v.poisoned
		})
	}
	t.Logf("%d seeds in %v: sent %d, stored %d, raw duplicates %d, poisoned %d", seeds, time.Since(began).Round(time.Second),
		sum.sent, sum.stored, sum.duplicates, sum.poisoned)
}

// number is a number from the environment.
func number(t *testing.T, name string, value int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return value
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s: %q is no number", name, text)
	}
	return n
}

// chaos is one run.
type chaos struct {
	*world
	n        int
	rng      *rand.Rand
	poisoned int
	active   []activeFault

	// Partial faults hit the confirmations of one tenant, which a sender and a receiver
	// of its own have.
	sick, sickSender string

	// The pipeline is in this process or in one of its own.
	apart bool
	order order
	child *child
	own   *pipeline
	tune  func(*parts)

	out *outward // what goes the way back; nil: nothing does
}

type activeFault struct {
	name  string
	until int // the step that lifts it
	lift  func()
}

const chaosChunk = 10_000

func (c *chaos) run(t *testing.T, seed uint64) verdict {
	rng := rand.New(rand.NewPCG(seed, 1))
	c.rng = rng
	pick := func(one, other string) string {
		if rng.IntN(2) == 0 {
			return one
		}
		return other
	}
	cfg := gatewaytest.Config{
		InlineLimit: []int64{1000, 64 << 10}[rng.IntN(2)], ChunkSize: chaosChunk, FileOrder: gatewaytest.FileOrder(rng.IntN(3)),
		Streams: gatewaytest.StreamPolicy(rng.IntN(2)), StrictConfirmations: rng.IntN(2) == 0,
		ConfirmationLag: []time.Duration{0, 0, 10 * time.Minute}[rng.IntN(3)], ReleaseConfirmed: true,
	}
	kind := pick(kindNATS, kindKafka)
	c.world = newWorld(t, worldConfig{kind: kind, gateway: cfg, seed: seed, heap: 2 << 30})
	types := []string{messageType, fileType}
	for range rng.IntN(3) {
		c.receivers = append(c.receivers, c.gateway.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types}))
	}
	c.sick = c.gateway.AddTenant()
	c.gateway.Authorize(c.gateway.Application(), c.sick)
	c.sickSender = c.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: c.sick, Send: types}).ID
	c.gateway.AddEndpoint(gatewaytest.EndpointConfig{Tenant: c.sick, Receive: types, Subscribe: types})
	c.apart = os.Getenv("KILL") != "0" && rng.IntN(2) == 0
	c.order = order{Hasty: true, Ordered: rng.IntN(2) == 0, Chunk: chaosChunk}
	if rng.IntN(2) == 0 {
		c.order.Store = t.TempDir() + "/dedup"
	}
	inFlight := []int{10, 100, 1000}[rng.IntN(3)]
	c.order.InFlight = inFlight
	c.tune = func(p *parts) {
		p.hasty()
		p.Store, p.Subscriber.ChunkSize, p.Subscriber.MaxInFlight = c.order.Store, chaosChunk, inFlight
		if c.order.Ordered {
			p.Subscriber.Order = subscriber.OrderByKey
		}
		p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			if isBroken(msg) {
				return nil, router.Permanent(errBroken)
			}
			return []*message.Message{msg}, nil
		}
	}
	if seed%4 == 0 {
		return c.runOutward(kind)
	}
	t.Logf("%s, %+v, process of its own: %v, %d receivers, %+v", kind, c.order, c.apart, len(c.receivers), cfg)

	c.startPipeline()
	c.steps(c.n/len(c.receivers), func(n int) {
		for range n {
			c.sendAny()
		}
	})
	c.gateway.Advance(time.Hour) // confirmations that lag take effect, tokens expire
	c.restart()
	if cfg.Streams == gatewaytest.OneStream {
		// What the stream before took while this one was open comes to the next one that connects.
		testkit.Eventually(c, "the stream before has ended", func() bool { return c.gateway.Streams() <= 1 })
		c.gateway.CutStreams()
	}
	c.waitProgress(len(c.gateway.Ledger()), c.confirmed)
	c.stopPipeline()
	return c.judge(expectation{poisoned: c.poisoned, gone: true, earlyFiles: cfg.FileOrder != gatewaytest.FileLast})
}

// steps sends n messages under faults, and lifts these in the end.
func (c *chaos) steps(n int, send func(n int)) {
	const steps = 40
	for step := range steps {
		c.lift(step)
		if len(c.active) < 3 && c.rng.IntN(3) > 0 {
			c.strike(step)
		}
		send(n*(step+1)/steps - n*step/steps)
		c.pause(time.Duration(c.rng.IntN(200)) * time.Millisecond)
		c.revive()
	}
	c.lift(1 << 30)
	c.gateway.LiftAll()
}

// runOutward sends from the broker to the gateway.
func (c *chaos) runOutward(kind string) verdict {
	n := c.n
	if kind == kindKafka {
		n /= 4 // the source has one message open at a time
	}
	c.out = newOutward(c.world)
	as := c.out.as()
	c.order = order{Hasty: true, Outward: &as}
	c.Logf("outward from %s, process of its own: %v, %d messages", kind, c.apart, n)
	c.out.put(1) // a source has to exist
	c.startPipeline()
	c.steps(n-1, func(n int) {
		for range n {
			c.out.late = append(c.out.late, c.out.newMessage())
		}
		if err := c.out.flush(); err != nil {
			c.Logf("%d messages wait for the broker: %v", len(c.out.late), err)
		}
	})
	testkit.Eventually(c, "the broker takes what is late", func() bool { return c.out.flush() == nil })
	c.gateway.Advance(time.Hour)
	c.restart()
	c.waitProgress(n, func() int { return len(contexts(c.gateway.Ledger())) })
	c.out.waitPoisoned()
	c.stopPipeline()
	return c.out.judgeOutward(-1)
}

// sendAny sends a message of any kind, one in six of them in the sick tenant.
func (c *chaos) sendAny() {
	req, receivers := gatewaytest.SendRequest{MessageType: messageType}, len(c.receivers)
	if c.rng.IntN(6) == 0 {
		req.From, receivers = c.sickSender, 1
	}
	switch c.rng.IntN(50) {
	case 0:
		req.MessageType, req.Payload = fileType, c.bytes(3*chaosChunk)
	case 1:
		req.MessageType, req.Payload = fileType, c.bytes(200)
	case 2, 3:
		req.Payload = c.bytes(1500)
	case 4:
		req.Payload = append([]byte(brokenPayload), c.bytes(20)...)
		c.poisoned += receivers
	default:
		req.Payload = c.bytes(20)
	}
	c.sendRequest(req)
}

// strike begins a fault, until a few steps later.
func (c *chaos) strike(step int) {
	faults := c.faults()
	f := faults[c.rng.IntN(len(faults))]
	active := func(name string) bool {
		return slices.ContainsFunc(c.active, func(a activeFault) bool { return a.name == name })
	}
	// The gateway ends when it has answered, and a confirmation is answered when
	// the oracle has looked into the broker.
	if active(f.name) || f.name == gatewayDown && active(brokerDown) {
		return
	}
	until := step + 1 + c.rng.IntN(6)
	c.Logf("step %d to %d: %s", step, until, f.name)
	f.until, f.lift = until, f.begin()
	if f.lift != nil {
		c.active = append(c.active, f.activeFault)
	}
}

func (c *chaos) lift(step int) {
	for i := len(c.active) - 1; i >= 0; i-- {
		if c.active[i].until <= step {
			c.active[i].lift()
			c.active = slices.Delete(c.active, i, i+1)
		}
	}
}

const (
	gatewayDown = "gateway down"
	brokerDown  = "broker down"
)

type fault struct {
	activeFault
	begin func() (lift func())
}

// faults are all there are. One that has nothing to lift returns nil.
func (c *chaos) faults() []fault {
	at := func(name string, begin func() func()) fault { return fault{activeFault{name: name}, begin} }
	inject := func(name string, op gatewaytest.Operation, f gatewaytest.Fault) fault {
		return at(name, func() func() { return c.gateway.Inject(op, f).Lift })
	}
	once := func(name string, f func()) fault { return at(name, func() func() { f(); return nil }) }
	retryAfter := http.Header{"Retry-After": {[]string{"0", "1", "soon", "9999999"}[c.rng.IntN(4)]}}
	cutAt := 1 + c.rng.Int64N(20_000)
	style := gatewaytest.CutStyle(c.rng.IntN(3))
	common := []fault{
		once("tokens expired", c.gateway.ExpireTokens),
		at(gatewayDown, func() func() {
			c.gateway.Stop()
			return func() {
				testkit.NoError(c, c.gateway.Restart())
			}
		}),
		inject("token 500", gatewaytest.OpToken, gatewaytest.Fault{Status: 500}),
		inject("token hangs", gatewaytest.OpToken, gatewaytest.Fault{Hang: true}),
		inject("everything 503", gatewaytest.OpAny, gatewaytest.Fault{Status: 503}),
		once("broker's connections cut", c.broker.cut),
		at(brokerDown, func() func() { c.broker.stop(); return c.broker.restart }),
		at("broker hangs", func() func() { c.broker.hang(); return c.broker.resume }),
		at("broker's answers lost", func() func() { c.broker.loseReplies(); return c.broker.cut }),
		once("restart", func() { c.restart() }),
		once("kill", func() { c.kill() }),
		once("kill", func() { c.kill() }),
	}
	if c.out != nil {
		return append(common,
			inject("messages 503", gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503}),
			inject("messages 429", gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 429, Header: retryAfter, Times: 5}),
			inject("messages 401", gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 401, Times: 5}),
			inject("messages refused", gatewaytest.OpSendMessage, gatewaytest.Fault{Refuse: true, Cut: style, Times: 50}),
			inject("messages hang", gatewaytest.OpSendMessage, gatewaytest.Fault{Hang: true, Times: 10}),
			inject("messages slow", gatewaytest.OpSendMessage, gatewaytest.Fault{Delay: 300 * time.Millisecond}),
			inject("answers lost", gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true, Times: 20, Cut: style}),
			inject("500 after acceptance", gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 500, AfterWork: true, Times: 20}),
		)
	}
	// Partial faults: one tenant's confirmations, or some payloads, always the same ones.
	part := func(name string, op gatewaytest.Operation, f gatewaytest.Fault) fault {
		salt := c.rng.Uint32()
		f.Match = func(r *http.Request) bool {
			if op == gatewaytest.OpConfirm {
				return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), c.sick)
			}
			hash := fnv.New32a()
			_ = binary.Write(hash, binary.LittleEndian, salt)
			_, _ = io.WriteString(hash, r.URL.Path)
			return hash.Sum32()%4 == 0
		}
		return inject(name, op, f)
	}
	return append(common,
		part("one tenant's confirmations 500", gatewaytest.OpConfirm, gatewaytest.Fault{Status: 500}),
		part("one tenant's confirmations 403", gatewaytest.OpConfirm, gatewaytest.Fault{Status: 403}),
		part("one tenant's confirmations 429", gatewaytest.OpConfirm, gatewaytest.Fault{Status: 429, Header: http.Header{"Retry-After": {"1"}}}),
		part("one tenant's confirmations hang", gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true}),
		part("one tenant's confirmations' answers lost", gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Cut: style}),
		part("some payloads gone", gatewaytest.OpPayload, gatewaytest.Fault{Status: 404}),
		part("some payloads 500", gatewaytest.OpPayload, gatewaytest.Fault{Status: 500}),
		part("some payloads hang", gatewaytest.OpPayload, gatewaytest.Fault{Hang: true}),
		part("some payloads drip", gatewaytest.OpPayload, gatewaytest.Fault{BytesPerSecond: 1}),
		part("some payloads in an unknown coding", gatewaytest.OpPayload, gatewaytest.Fault{Header: http.Header{"Content-Encoding": {"gzip"}}}),
		once("streams cut", func() { c.gateway.CutStreams() }),
		once("redelivery", func() { c.gateway.RedeliverUnconfirmed() }),
		once("20 minutes pass", func() { c.gateway.Advance(20 * time.Minute) }),
		at("streams silent", c.gateway.StallStreams),
		inject("streams end soon", gatewaytest.OpEvents, gatewaytest.Fault{CutAfter: cutAt, Cut: style}),
		inject("events 503", gatewaytest.OpEvents, gatewaytest.Fault{Status: 503}),
		inject("events 429", gatewaytest.OpEvents, gatewaytest.Fault{Status: 429, Header: retryAfter, Times: 3}),
		inject("confirmations 503", gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503}),
		inject("confirmations 429", gatewaytest.OpConfirm, gatewaytest.Fault{Status: 429, Header: retryAfter, Times: 5}),
		inject("confirmations hang", gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true, Times: 10}),
		inject("confirmations' answers lost", gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Times: 20, Cut: style}),
		inject("confirmations slow", gatewaytest.OpConfirm, gatewaytest.Fault{Delay: 300 * time.Millisecond}),
		inject("payloads 500", gatewaytest.OpPayload, gatewaytest.Fault{Status: 500}),
		inject("payloads gone", gatewaytest.OpPayload, gatewaytest.Fault{Status: 404, Times: 5}),
		inject("payloads cut", gatewaytest.OpPayload, gatewaytest.Fault{CutAfter: 1 + cutAt%1500, Cut: style}),
		inject("payloads hang", gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 500, Times: 5}),
	)
}

func (c *chaos) startPipeline() {
	if c.apart {
		c.child = c.startChild(c.order)
		return
	}
	// The sink has to find its broker, or there is no pipeline.
	p, err := c.build()
	for began := time.Now(); err != nil && time.Since(began) < testkit.Patience; p, err = c.build() {
		c.Logf("start: %v", err)
		c.lift(1 << 30)
	}
	if err != nil {
		c.Fatal(err)
	}
	c.own = p
	c.Cleanup(func() { _ = p.stop() })
}

func (c *chaos) build() (*pipeline, error) {
	if c.out != nil {
		p := newParts(c.gateway.ClientConfig(), c.broker.address())
		p.hasty()
		return buildOutward(p, c.out.as(), c.logger())
	}
	return build(c.parts(c.tune), c.logger())
}

func (c *chaos) stopPipeline() {
	if c.apart {
		if err := c.child.terminate(); err != nil {
			c.Logf("SIGTERM: %v", err) // it has ended
		}
		c.waitChild(c.child)
		return
	}
	if err := c.own.stop(); err != nil {
		c.Logf("stop: %v", err) // under a fault not everything can be confirmed
	}
}

func (c *chaos) restart() {
	c.stopPipeline()
	c.order.Point = ""
	c.startPipeline()
}

// kill kills the process, or has it kill itself at a point.
func (c *chaos) kill() {
	if !c.apart {
		return
	}
	c.child.kill()
	points := childPoints[:len(childPoints)-1]
	if c.out != nil {
		points = outPoints
	}
	c.order.Point, c.order.After = points[c.rng.IntN(len(points))], 1+c.rng.Int64N(500)
	c.Logf("killed; the next one dies at %q, number %d", c.order.Point, c.order.After)
	c.startPipeline()
}

// revive starts a process that has ended once more.
func (c *chaos) revive() {
	if !c.apart || !c.child.ended() {
		return
	}
	c.waitChild(c.child)
	c.order.Point = ""
	c.startPipeline()
}

// waitProgress waits until count is total, as long as it increases.
func (c *chaos) waitProgress(total int, count func() int) {
	began := time.Now()
	for last := -1; ; {
		c.revive()
		now := count()
		if now == total {
			c.Logf("all %d are there %v after the last fault", total, time.Since(began).Round(time.Millisecond))
			return
		}
		if now == last {
			if c.own != nil && c.own.sub != nil {
				c.Logf("%+v\n%+v", c.own.sub.Stats(), c.own.health())
			}
			c.Fatalf("%d of %d messages are there, and none came in the last %v", now, total, testkit.Patience)
		}
		last = now
		for waited := time.Now(); time.Since(waited) < testkit.Patience && count() < total; c.pause(50 * time.Millisecond) {
			c.revive()
		}
	}
}
