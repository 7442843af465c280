package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// childEnv makes a process of this test binary a child: it holds a childConfig.
const childEnv = "AGRIMILL_ENDTOEND_CHILD"

// Points at which a child stops, to be killed.
const (
	// The sink holds the message; the dedup store knows only the reservation.
	pointStored = "stored"
	// The dedup store knows that the message is handled; it is not acked.
	pointCommitted = "committed"
	// The message is acked; its confirmation has not been taken.
	pointAcked = "acked"
)

// committed is what a child says of each message that its dedup store knows.
const committed = "committed one"

// crashAfter is how many messages pass the point before it stops.
const crashAfter = 5

type childConfig struct {
	BaseURL, TokenURL, ClientID, ClientSecret string
	NATS                                      string
	DedupWindow                               time.Duration
	BoltFile                                  string // empty: NATS KV
	Point                                     string // empty: none
}

// TestKilledBetweenSinkAndConfirmation kills the process with everything it had
// in flight. The next one gets what was not confirmed once more, recognises it,
// and confirms it: everything is stored once.
func TestKilledBetweenSinkAndConfirmation(t *testing.T) {
	for _, store := range []string{"bbolt", "NATS KV"} {
		for _, point := range []string{pointStored, pointCommitted, pointAcked} {
			t.Run(store+"/"+point, func(t *testing.T) {
				w := newWorld(t, gatewaytest.Config{})
				w.gateway.OnConfirm(w.oracle.onConfirm)
				client := w.gateway.ClientConfig()
				config := childConfig{
					BaseURL: client.BaseURL, TokenURL: client.TokenURL, ClientID: client.ClientID, ClientSecret: string(client.ClientSecret),
					NATS: w.nats.URL(), Point: point,
					// JetStream must not hide what the dedup store misses.
					DedupWindow: 100 * time.Millisecond,
				}
				if point == pointStored {
					config.DedupWindow = 0 // nobody but JetStream can know
				}
				if store == "bbolt" {
					config.BoltFile = filepath.Join(t.TempDir(), "dedup")
				}
				const n = 20
				w.send(n)
				var refused *gatewaytest.Injection
				if point == pointAcked {
					refused = w.gateway.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
				}
				first := startChild(w, config)
				switch point {
				case pointStored:
					first.waitLine("at " + point)
				case pointCommitted:
					first.waitLines(n, committed)
				case pointAcked:
					first.waitLines(n, committed)
					testkit.Eventually(w, "a confirmation is refused", func() bool { return refused.Hits() > 0 })
				}
				first.kill()
				if refused != nil {
					refused.Lift()
				}
				if got := w.confirmed(); got == n {
					t.Fatal("everything is confirmed: the crash came too late to show anything")
				}
				stored, _ := w.oracle.stored()
				if len(stored) < crashAfter && point != pointAcked {
					t.Fatalf("%d messages are stored: the crash came too early to show anything", len(stored))
				}

				config.Point = ""
				second := startChild(w, config)
				w.waitConfirmed(n)
				report := second.stop()
				w.oracle.judge(true)
				if point != pointStored && report.Duplicates == 0 {
					t.Errorf("no duplicate was recognised: %+v", report)
				}
				if report.Poisoned != 0 || report.Delivered+report.Duplicates == 0 {
					t.Errorf("second process: %+v", report)
				}
			})
		}
	}
}

// child is another process with a pipeline of its own.
type child struct {
	w     *world
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
	ended chan struct{} // closed when the output is at its end
}

// linePrefix tells the child's own lines from those of package testing.
const linePrefix = "child: "

func startChild(w *world, config childConfig) *child {
	w.Helper()
	encoded := testkit.Must(json.Marshal(config))(w)
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	w.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(encoded))
	cmd.Stderr = w.Output()
	stdin := testkit.Must(cmd.StdinPipe())(w)
	stdout := testkit.Must(cmd.StdoutPipe())(w)
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	c := &child{w: w, cmd: cmd, stdin: stdin, lines: make(chan string, 1024), ended: make(chan struct{})}
	// Ends with the child's output.
	go func() {
		defer close(c.ended)
		defer close(c.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			if line, ok := strings.CutPrefix(scanner.Text(), linePrefix); ok {
				c.lines <- line
			}
		}
	}()
	w.Cleanup(func() { c.kill() })
	return c
}

// waitLine waits until the child says what is wanted.
func (c *child) waitLine(want string) string {
	c.w.Helper()
	deadline := time.After(testkit.Patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.w.Fatalf("the child ended without %q", want)
			}
			if strings.HasPrefix(line, want) {
				return strings.TrimPrefix(line, want)
			}
		case <-deadline:
			c.w.Fatalf("the child does not say %q", want)
		}
	}
}

// waitLines waits until the child has said it n times.
func (c *child) waitLines(n int, want string) {
	c.w.Helper()
	for range n {
		c.waitLine(want)
	}
}

// kill ends the child as `kill -9` does. Killing an ended one does nothing.
func (c *child) kill() {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.w.Errorf("kill: %v", err)
	}
	<-c.ended
	_ = c.cmd.Wait() // the error is the kill
}

// stop ends the child as an application ends, and returns its report.
func (c *child) stop() router.RouteHealth {
	c.w.Helper()
	_ = c.stdin.Close()
	var report router.RouteHealth
	if err := json.Unmarshal([]byte(c.waitLine("report ")), &report); err != nil {
		c.w.Fatal(err)
	}
	<-c.ended
	if err := c.cmd.Wait(); err != nil {
		c.w.Errorf("the child ended with %v", err)
	}
	return report
}

// TestCrashChild is the child process. In the parent it does nothing.
func TestCrashChild(t *testing.T) {
	encoded, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	var config childConfig
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		t.Fatal(err)
	}
	report := testkit.Must(runChild(t, config))(t)
	line := testkit.Must(json.Marshal(report))(t)
	fmt.Println(linePrefix + "report " + string(line))
}

// runChild runs a pipeline until stdin is closed.
func runChild(t *testing.T, config childConfig) (report router.RouteHealth, err error) {
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	client, err := gateway.New(gateway.Config{
		BaseURL: config.BaseURL, TokenURL: config.TokenURL, ClientID: config.ClientID, ClientSecret: gateway.Secret(config.ClientSecret),
	})
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sub, err := subscriber.New(subscriber.Config{
		Client: client, Order: subscriber.Unordered, Confirm: subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond},
	}, logger)
	if err != nil {
		return report, err
	}
	sink, err := nats.New(nats.Config{URL: config.NATS, DedupWindow: config.DedupWindow}, logger)
	if err != nil {
		return report, err
	}
	store, release, err := openStore(t.Context(), config)
	if err != nil {
		return report, err
	}
	defer release()
	stop := &stopPoint{name: config.Point}
	r, err := router.New(router.Config{
		Poison: sink,
		Dedup: router.DedupSettings{
			Store: stoppingStore{store, stop},
			Owner: router.Owner{Instance: "child"}, // the next one takes over
		},
	}, logger)
	if err != nil {
		return report, err
	}
	route := router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: stoppingSink{sink, stop}, ToTopic: topicTemplate}
	if err := r.Add(route); err != nil {
		return report, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Ends when the parent closes the pipe, or has ended.
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	err = r.Run(ctx)
	return r.Health()[0], errors.Join(err, sink.Close())
}

func openStore(ctx context.Context, config childConfig) (store router.DedupStore, release func(), err error) {
	if config.BoltFile != "" {
		bolt, err := boltstore.New(boltstore.Config{Path: config.BoltFile})
		if err != nil {
			return nil, nil, err
		}
		return bolt, func() { _ = bolt.Close() }, nil
	}
	conn, err := natsgo.Connect(config.NATS)
	if err != nil {
		return nil, nil, err
	}
	kv, err := kvstore.New(ctx, kvstore.Config{Conn: conn})
	return kv, func() { _ = kv.Close(); conn.Close() }, err
}

// stopPoint stops everybody who comes to it after the first few.
type stopPoint struct {
	name   string
	passed atomic.Int64
}

func (p *stopPoint) reach(name string) {
	if name != p.name || p.passed.Add(1) < crashAfter {
		return
	}
	fmt.Println(linePrefix + "at " + name)
	select {} // until the parent kills us
}

type stoppingSink struct {
	sinks.Sink
	point *stopPoint
}

func (s stoppingSink) Publish(topic string, messages ...*message.Message) error {
	err := s.Sink.Publish(topic, messages...)
	if err == nil {
		s.point.reach(pointStored)
	}
	return err
}

type stoppingStore struct {
	router.DedupStore
	point *stopPoint
}

func (s stoppingStore) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	err := s.DedupStore.Commit(ctx, claim, token, ttl)
	if err == nil {
		fmt.Println(linePrefix + committed)
		s.point.reach(pointCommitted)
	}
	return err
}
