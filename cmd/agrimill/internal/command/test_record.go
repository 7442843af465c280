package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
)

const maxEventLine = 16 << 20 // bytes

type testRecord struct {
	file    string   // new
	queries []string // for the journal
	at      adminAt  // of the journal; that of the configuration without an address
}

func (r *testRecord) run(ctx context.Context, p *program, cfg *config.Config, files []string) (err error) {
	if len(files) == 0 && len(r.queries) == 0 {
		return usagef("--record needs files with EVENTS of agrimill tail --json, or --trace")
	}
	var messages []testMessage
	for _, name := range files {
		var found []testMessage
		err := await(ctx, func() (err error) { // it may be a pipe
			found, err = r.fromEvents(p, name)
			return err
		})
		if err != nil {
			return err
		}
		messages = append(messages, found...)
	}
	for _, query := range r.queries {
		found, err := r.fromJournal(ctx, cfg, query)
		if err != nil {
			return err
		}
		messages = append(messages, found...)
	}
	if len(messages) == 0 {
		return errors.New("there is no message to make a case of")
	}
	data, err := recorded(ctx, cfg, filepath.Dir(r.file), messages)
	if err != nil {
		return err
	}
	if err := create(r.file, 0o600, func(to io.Writer) error {
		_, err := to.Write(data)
		return err
	}); err != nil {
		return err
	}
	for _, m := range messages {
		if m.PayloadFile == "" {
			p.notef("%s: the payload is not known: add payload_file if a route looks into it", cell(m.name()))
		}
	}
	_, err = fmt.Fprintf(p.stdout, "%s in %s, with what the routes do now: check expect\n", plural(len(messages), "case"), cell(r.file))
	return err
}

func (r *testRecord) fromEvents(p *program, name string) (list []testMessage, err error) {
	source := p.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		source = file
	}
	lines := bufio.NewScanner(source)
	lines.Buffer(nil, maxEventLine)
	for n := 1; lines.Scan(); n++ {
		var line eventLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s:%d: is not what agrimill tail --json writes: %w", cell(name), n, err)
		}
		if line.Event != gateway.EventMessageReceived && line.Event != gateway.EventFileReceived {
			continue
		}
		m := testMessage{
			Event: string(line.Event), Type: line.MessageType, Tenant: line.TenantID, Receiver: line.EndpointID, named: line.ExternalID, Context: line.ContextID,
			Teamset: line.TeamsetContextID, Filename: line.Filename,
		}
		if line.Saved != "" {
			if m.PayloadFile, err = relative(filepath.Dir(r.file), line.Saved); err != nil {
				return nil, err
			}
		}
		list = append(list, m)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", cell(name), err)
	}
	return list, nil
}

func relative(dir, name string) (string, error) {
	dir, err1 := filepath.Abs(dir)
	name, err2 := filepath.Abs(name)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	if short, err := filepath.Rel(dir, name); err == nil {
		return filepath.ToSlash(short), nil
	}
	return name, nil
}

// fromJournal returns the message that a query finds in the journal of a running agrimill, which has no payloads.
func (r *testRecord) fromJournal(ctx context.Context, cfg *config.Config, query string) ([]testMessage, error) {
	if r.at.address != "" {
		cfg = nil
	}
	server, err := r.at.of(cfg)
	if err != nil {
		return nil, err
	}
	trace, err := server.trace(ctx, query, 1)
	if err != nil {
		return nil, err
	}
	switch n := len(trace.Messages) + trace.More; {
	case n == 0:
		return nil, fmt.Errorf("nothing is known of %s", quote(cell(query)))
	case n > 1:
		return nil, fmt.Errorf("%s finds %s: give an ID of one, see agrimill trace", quote(cell(query)), plural(n, "message"))
	}
	found := trace.Messages[0]
	m := testMessage{
		Event: found.EventType, Type: found.MessageType, Tenant: found.Tenant, Receiver: found.Endpoint, Context: found.ContextID, Filename: found.Filename,
	}
	if found.Delivery != "" { // from a broker
		for _, e := range found.Events {
			m.Route = cmp.Or(m.Route, e.Route)
		}
	}
	return []testMessage{m}, nil
}

func (m *testMessage) name() string {
	return cmp.Or(m.Filename, m.Context, m.Type, "message")
}

// recorded returns the file with a case for each message.
func recorded(ctx context.Context, cfg *config.Config, dir string, messages []testMessage) ([]byte, error) {
	trial := pipeline.NewTrial(cfg)
	used := map[string]int{}
	var file struct {
		Cases []testCase `yaml:"cases"`
	}
	for _, m := range messages {
		c := testCase{Name: m.name(), Expect: []expectation{}}
		if used[c.Name]++; used[c.Name] > 1 {
			c.Name = fmt.Sprintf("%s (%d)", c.Name, used[c.Name])
		}
		results, err := m.try(ctx, trial, dir)
		if errors.Is(err, pipeline.ErrOffline) && m.named != "" {
			m.Receiver = m.named
			results, err = m.try(ctx, trial, dir)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cell(m.name()), err)
		}
		c.Message = m
		for _, result := range results {
			c.Expect = append(c.Expect, newExpected(result))
		}
		file.Cases = append(file.Cases, c)
	}
	return yaml.Dump(&file)
}

func (m *testMessage) try(ctx context.Context, trial *pipeline.Trial, dir string) ([]pipeline.TrialResult, error) {
	msg, err := m.message(dir)
	if err != nil {
		return nil, err
	}
	return trial.Run(ctx, m.Route, msg)
}

// newExpected returns what a route did as what it has to do.
func newExpected(r pipeline.TrialResult) expectation {
	e := expectation{Route: r.Route, Class: r.Class, Reason: r.Reason}
	if r.Outcome != pipeline.TrialPublished {
		e.Outcome = r.Outcome
		return e
	}
	e.Topic = r.Messages[0].Topic
	for _, m := range r.Messages {
		if m.Topic != e.Topic {
			e.Topic = ""
			break
		}
	}
	if n := len(r.Messages); n > 1 {
		e.Messages = &n
	}
	return e
}
