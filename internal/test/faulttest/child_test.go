//go:build faults

package faulttest

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// childEnv holds the order of a process that runs a pipeline: the test binary
// once more.
const childEnv = "AGRIMILL_FAULTTEST_CHILD"

// order is what a child is to do.
type order struct {
	BaseURL, TokenURL, ClientID, ClientSecret string
	// CA signs the gateway's certificate, in PEM. Empty: there is none.
	CA []byte

	Broker address
	Store  string
	// Hasty ends under a fault, see [parts.hasty].
	Hasty bool
	// Ordered delivers by key, one message of a receiver at a time.
	Ordered bool
	// Chunk is the gateway's chunk size, InFlight how many events may be open.
	// 0: the default.
	Chunk, InFlight int
	// Point is where the child kills itself, when it comes there for the After'th
	// time. Empty: nowhere.
	Point point
	After int64
	// Outward makes it the way back.
	Outward *outOrder
	// Report is how often the child writes its sample. 0: never.
	Report time.Duration
}

// point is a place in the pipeline.
type point string

// The points, in the order in which a message passes them.
const (
	pointConnected    point = "connected"
	pointRead         point = "event read"
	pointDownload     point = "before the payload is fetched"
	pointDownloading  point = "payload half fetched"
	pointReserved     point = "reserved in the dedup store"
	pointHandled      point = "handled, before the sink"
	pointPublish      point = "before the sink writes"
	pointPublished    point = "after the sink acknowledged"
	pointCommitted    point = "committed to the dedup store"
	pointPoison       point = "before the poison queue writes"
	pointPoisoned     point = "after the poison queue acknowledged"
	pointQuarantine   point = "before the quarantine writes"      // row 24
	pointQuarantined  point = "after the quarantine acknowledged" // row 24
	pointConfirm      point = "before the confirmation is sent"
	pointConfirmed    point = "after the confirmation was answered"
	pointAnswered     point = "after the gateway answered, before that is read" // outward
	pointConfirmTaken point = "between the confirmation and its answer"         // killed by the parent
)

const (
	brokenPayload      = "broken"
	childStoppedNormal = 0
)

var childPoints = []point{
	pointConnected, pointRead, pointDownload, pointDownloading, pointReserved, pointHandled, pointPublish,
	pointPublished, pointCommitted, pointPoison, pointPoisoned, pointConfirm, pointConfirmed, pointConfirmTaken,
}

// sample is what a child tells about itself.
type sample struct {
	HeapMB, SystemMB, RSSMB float64
	Goroutines, Files       int
	Delivered               uint64
}

// fuse kills the process at its point.
type fuse struct {
	point point
	left  atomic.Int64
}

func (f *fuse) pass(p point) {
	if p != f.point || f.left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it takes effect
}

// runChild runs the pipeline until it is told to stop: by SIGTERM, or because the
// parent is gone.
func runChild() int {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // this is a program
	defer stop()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	var p *pipeline
	var err error
	if o.Outward != nil {
		p, err = buildOutward(childParts(o), *o.Outward, logger)
	} else {
		p, err = build(childParts(o), logger)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fmt.Println("ready")
	if o.Report > 0 {
		go report(ctx, o.Report, p)
	}
	<-ctx.Done()
	stop() // a second SIGTERM ends the process at once
	fmt.Println("stopping")
	if err := p.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return childStoppedNormal
}

func childParts(o order) *parts {
	f := &fuse{point: o.Point}
	f.left.Store(o.After)
	p := newParts(gateway.Config{
		BaseURL: o.BaseURL, TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: gateway.Secret(o.ClientSecret),
	}, o.Broker)
	if len(o.CA) > 0 {
		p.Gateway.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		p.Gateway.TLS.RootCAs.AppendCertsFromPEM(o.CA)
	}
	if o.Outward != nil {
		p.Gateway.Transport = &fusedTransport{&http.Transport{TLSClientConfig: p.Gateway.TLS, ForceAttemptHTTP2: true}, f}
	}
	if o.Hasty {
		p.hasty()
	}
	if o.Ordered {
		p.Subscriber.Order = subscriber.OrderByKey
	}
	p.Store, p.Subscriber.ChunkSize, p.Subscriber.MaxInFlight = o.Store, o.Chunk, o.InFlight
	p.Subscriber.Hooks.Connected = func() { f.pass(pointConnected) }
	p.Subscriber.Hooks.Event = func(gateway.Event) { f.pass(pointRead) }
	p.Subscriber.Hooks.Confirmed = func(string, []gateway.MessageConfirmation) { f.pass(pointConfirmed) }
	p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		defer f.pass(pointHandled)
		if isBroken(msg) {
			return nil, router.Permanent(errBroken)
		}
		return []*message.Message{msg}, nil
	}
	p.Client = func(c subscriber.Client) subscriber.Client { return &fusedClient{c, f} }
	p.Sink = func(s sinks.Sink) sinks.Sink { return &fusedSink{s, f} }
	p.Dedup = func(s router.DedupStore) router.DedupStore {
		if s == nil {
			return nil
		}
		return &fusedStore{s, f}
	}
	return p
}

var errBroken = errors.New("broken")

func isBroken(msg *message.Message) bool {
	return len(msg.Payload) > len(brokenPayload) && string(msg.Payload[:len(brokenPayload)]) == brokenPayload
}

type fusedClient struct {
	subscriber.Client
	fuse *fuse
}

func (c *fusedClient) OpenPayload(ctx context.Context, uri string, size int64) (*gateway.PayloadReader, error) {
	c.fuse.pass(pointDownload)
	r, err := c.Client.OpenPayload(ctx, uri, size)
	if err == nil {
		c.fuse.pass(pointDownloading)
	}
	return r, err
}

func (c *fusedClient) ConfirmMessages(ctx context.Context, tenant string, confirmations []gateway.MessageConfirmation) error {
	c.fuse.pass(pointConfirm)
	return c.Client.ConfirmMessages(ctx, tenant, confirmations)
}

type fusedSink struct {
	sinks.Sink
	fuse *fuse
}

func (s *fusedSink) Publish(topic string, messages ...*message.Message) error {
	before, after := pointPublish, pointPublished
	if topic == router.DefaultPoisonTopic {
		before, after = pointPoison, pointPoisoned
	}
	if topic == subscriber.DefaultQuarantineTopic {
		before, after = pointQuarantine, pointQuarantined
	}
	s.fuse.pass(before)
	err := s.Sink.Publish(topic, messages...)
	if err == nil {
		s.fuse.pass(after)
	}
	return err
}

type fusedStore struct {
	router.DedupStore
	fuse *fuse
}

func (s *fusedStore) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	reservation, err := s.DedupStore.Reserve(ctx, claim, lease)
	s.fuse.pass(pointReserved)
	return reservation, err
}

func (s *fusedStore) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	err := s.DedupStore.Commit(ctx, claim, token, ttl)
	s.fuse.pass(pointCommitted)
	return err
}

// Close closes the store as the Router would.
func (s *fusedStore) Close() error {
	if c, ok := s.DedupStore.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// report writes a sample in each interval.
func report(ctx context.Context, every time.Duration, p *pipeline) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			_ = out.Encode(sample{
				HeapMB: float64(m.HeapAlloc) / (1 << 20), SystemMB: float64(m.Sys-m.HeapReleased) / (1 << 20),
				RSSMB: float64(residentBytes()) / (1 << 20), Goroutines: runtime.NumGoroutine(), Files: openFiles(),
				Delivered: p.health().Delivered,
			})
		}
	}
}

// residentBytes is what the kernel says; 0 where it does not.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(text), &total, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// openFiles is the number of open files; 0 where it is not known.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// child is a process that runs a pipeline.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string // what it writes; closed when it has ended
	samples []sample
}

// startChild starts one. It is killed when the test ends, if not before.
func (w *world) startChild(o order) *child {
	w.Helper()
	cfg := w.gateway.ClientConfig()
	o.CA = w.gateway.CACertPEM()
	o.TokenURL, o.ClientID, o.ClientSecret = cfg.TokenURL, cfg.ClientID, string(cfg.ClientSecret)
	if o.BaseURL == "" {
		o.BaseURL = cfg.BaseURL
	}
	if o.Broker == (address{}) {
		o.Broker = w.broker.address()
	}
	text := testkit.Must(json.Marshal(o))(w)
	c := &child{cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stderr = w.logs
	c.stdin = testkit.Must(c.cmd.StdinPipe())(w)
	out := testkit.Must(c.cmd.StdoutPipe())(w)
	testkit.NoError(w, c.cmd.Start())
	go func() { // ends with the child
		defer close(c.lines)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			c.lines <- scanner.Text()
		}
	}()
	w.Cleanup(func() { _ = c.kill() })
	return c
}

// wait waits for the end of the child and returns its exit code, -1 when it was
// killed.
func (c *child) wait() int {
	for range c.lines { // Wait closes the pipe
	}
	_ = c.cmd.Wait() // says what the state says
	return c.cmd.ProcessState.ExitCode()
}

// kill kills the child with SIGKILL.
func (c *child) kill() int {
	_ = c.cmd.Process.Kill() // it may have ended
	return c.wait()
}

// ended reports whether the child has ended, and reads what it has written.
func (c *child) ended() bool {
	for {
		select {
		case line, more := <-c.lines:
			if !more {
				return true
			}
			var s sample
			if json.Unmarshal([]byte(line), &s) == nil {
				c.samples = append(c.samples, s)
			}
		default:
			return false
		}
	}
}

// terminate is what an operator does.
func (c *child) terminate() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
