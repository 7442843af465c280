//go:build powercut

package powercut

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// setupEnv has the setup of a process that is agrimill.
const setupEnv = "POWERCUT_AGRIMILL"

// setup is what agrimill is told.
type setup struct {
	BaseURL, TokenURL, ClientID, Secret, ServiceName string // of the gateway

	URL      string // of the broker
	Synced   sinks.Synced
	Replicas int
	Durable  string
	Store    string
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
	var sink *nats.Sink
	for { // the broker may be on its way, too
		if sink, err = nats.New(nats.Config{Connection: nats.Connection{URL: s.URL}, Synced: s.Synced, Replicas: s.Replicas, PublishTimeout: 2 * time.Second}, nil); err == nil {
			break
		}
	}
	store, err := boltstore.New(boltstore.Config{Path: s.Store})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: sink, Dedup: router.DedupSettings{Store: store}, CloseTimeout: 3 * time.Second}, nil)
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
}

func start(t *testing.T, s setup) *process {
	t.Helper()
	text := testkit.Must(json.Marshal(s))(t)
	p := &process{T: t, command: exec.Command(os.Args[0])}
	p.command.Env, p.command.Stderr = append(os.Environ(), setupEnv+"="+string(text)), os.Stderr
	p.stdin = testkit.Must(p.command.StdinPipe())(t)
	stdout := testkit.Must(p.command.StdoutPipe())(t)
	testkit.NoError(t, p.command.Start())
	t.Cleanup(p.kill)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("agrimill does not run: %q, %v", line, err)
	}
	return p
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
