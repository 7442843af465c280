//go:build powercut

package powercut

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// setupEnv has the setup of a process that is agrimill.
const setupEnv = "POWERCUT_AGRIMILL"

// setup is what agrimill is told.
type setup struct {
	BaseURL, TokenURL, ClientID, Secret, ServiceName string // of the gateway

	URL      string // of the broker, or the addresses of Kafka brokers
	Kafka    bool
	Synced   sinks.Synced
	Replicas int
	Durable  string
	Store    string
}

func (s *setup) nats() nats.Config {
	return nats.Config{Connection: nats.Connection{URL: s.URL}, Synced: s.Synced, Replicas: s.Replicas, PublishTimeout: 2 * time.Second}
}

func (s *setup) kafka() kafka.Config {
	config := kafka.Config{Connection: kafka.Connection{Brokers: strings.Split(s.URL, ",")}, Synced: s.Synced, ReplicationFactor: int16(s.Replicas), PublishTimeout: 5 * time.Second}
	switch s.Synced {
	case sinks.SyncedAlways:
		config.TopicConfig = map[string]string{"flush.messages": "1"}
	case sinks.SyncedReplicas:
		config.TopicConfig = map[string]string{"min.insync.replicas": "2"}
	}
	return config
}

// sink opens the sink; the broker may be on its way, too. What it has lost is written to standard output by ID.
func (s *setup) sink(places *places) (sinks.Sink, error) {
	if s.Kafka {
		config := s.kafka()
		config.RetryOnFailedConnect = true
		config.Lost = func(topic string, partition int32, first, last int64) {
			places.lost(sinks.Receipt{Topic: topic, Partition: partition, Offset: first}, uint64(last-first))
		}
		return kafka.New(config, nil)
	}
	config := s.nats()
	config.RetryOnFailedConnect = true
	config.Lost = func(first, last uint64) {
		places.lost(sinks.Receipt{Stream: nats.DefaultStream, Sequence: first}, last-first)
	}
	return nats.New(config, nil)
}

// places knows the IDs of the messages that were stored, by where.
type places struct {
	mu sync.Mutex
	at map[sinks.Receipt]string
}

// Observe implements [router.Observer].
func (p *places) Observe(e router.Event) {
	if e.Kind == router.EventStored {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.at[place(e.Receipt)] = e.Message.Metadata[gateway.KeyMessageID]
	}
}

// place is where a receipt says, and no more.
func place(r sinks.Receipt) sinks.Receipt {
	return sinks.Receipt{Stream: r.Stream, Sequence: r.Sequence, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
}

// lost writes the IDs of what was stored at a place, and of so many behind it.
func (p *places) lost(from sinks.Receipt, more uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range more + 1 {
		if id := p.at[from]; id != "" {
			fmt.Println("lost", id)
		}
		if from.Topic != "" {
			from.Offset++
		} else {
			from.Sequence++
		}
	}
}

func TestMain(m *testing.M) {
	text := os.Getenv(setupEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var s setup
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is agrimill until standard input ends.
func (s *setup) run() error {
	client, err := gateway.New(gateway.Config{
		BaseURL: s.BaseURL, TokenURL: s.TokenURL, ClientID: s.ClientID, ClientSecret: gateway.Secret(s.Secret), ServiceName: s.ServiceName,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	sub, err := subscriber.New(subscriber.Config{Client: client, Confirm: subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond}}, nil)
	if err != nil {
		return err
	}
	stored := &places{at: map[sinks.Receipt]string{}}
	sink, err := s.sink(stored)
	if err != nil {
		return err
	}
	store, err := boltstore.New(boltstore.Config{Path: s.Store})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: sink, Dedup: router.DedupSettings{Store: store}, CloseTimeout: 3 * time.Second, Observer: stored}, nil)
	if err != nil {
		return err
	}
	route := router.Route{Name: "farm", From: sub, Topic: subscriber.AllData, To: sink}
	if err := route.Durable.UnmarshalText([]byte(s.Durable)); err != nil {
		return err
	}
	if err := r.Add(route); err != nil {
		return err
	}
	go func() {
		<-r.Running()
		fmt.Println("running")
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = r.Close()
	}()
	return r.Run(context.Background())
}

// process is agrimill.
type process struct {
	*testing.T
	command *exec.Cmd
	stdin   io.Closer

	mu   sync.Mutex
	lost map[string]int
}

func start(t *testing.T, s setup) *process {
	t.Helper()
	text := testkit.Must(json.Marshal(s))(t)
	p := &process{T: t, command: exec.Command(os.Args[0]), lost: map[string]int{}}
	p.command.Env, p.command.Stderr = append(os.Environ(), setupEnv+"="+string(text)), os.Stderr
	p.stdin = testkit.Must(p.command.StdinPipe())(t)
	stdout := testkit.Must(p.command.StdoutPipe())(t)
	testkit.NoError(t, p.command.Start())
	t.Cleanup(p.kill)
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "running" {
		t.Fatalf("agrimill does not run: %q, %v", lines.Text(), lines.Err())
	}
	go func() { // ends with the process
		for lines.Scan() {
			if _, id, ok := strings.Cut(lines.Text(), "lost "); ok {
				p.mu.Lock()
				p.lost[id]++
				p.mu.Unlock()
			}
		}
	}()
	return p
}

// told returns the IDs of what it has said to be lost.
func (p *process) told() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.lost)
}

// kill kills it, as kill -9 does.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// end shuts it down.
func (p *process) end() {
	p.Helper()
	_ = p.stdin.Close()
	if err := p.command.Wait(); err != nil {
		p.Errorf("agrimill ended with %v", err)
	}
}
