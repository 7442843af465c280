package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
)

// maxEventLine is the longest line of events that is read, in bytes.
const maxEventLine = 16 << 20

// testRecord makes cases of messages that came.
type testRecord struct {
	file    string   // new
	queries []string // for the journal
	address string   // of the journal; empty: that of the configuration
	// tokenFile has the token for it; empty: that of the configuration
	tokenFile string
}

// recordedCase is a case as it is written.
type recordedCase struct {
	Name    string             `yaml:"name"`
	Message recordedMessage    `yaml:"message"`
	Expect  []recordedExpected `yaml:"expect"`
}

type recordedMessage struct {
	Route       string `yaml:"route,omitempty"`
	Event       string `yaml:"event,omitempty"`
	Type        string `yaml:"type,omitempty"`
	Tenant      string `yaml:"tenant,omitempty"`
	Receiver    string `yaml:"receiver,omitempty"`
	Context     string `yaml:"context,omitempty"`
	Teamset     string `yaml:"teamset,omitempty"`
	Filename    string `yaml:"filename,omitempty"`
	PayloadFile string `yaml:"payload_file,omitempty"`
}

type recordedExpected struct {
	Route    string                `yaml:"route"`
	Outcome  pipeline.TrialOutcome `yaml:"outcome,omitempty"`
	Topic    string                `yaml:"topic,omitempty"`
	Messages int                   `yaml:"messages,omitempty"`
	Class    string                `yaml:"class,omitempty"`
	Reason   string                `yaml:"reason,omitempty"`
}

// run writes a case for each message, with what the configuration does with it now.
func (r *testRecord) run(ctx context.Context, p *program, cfg *config.Config, files []string) (err error) {
	if len(files) == 0 && len(r.queries) == 0 {
		return usagef("--record needs files with EVENTS of agrimill tail --json, or --trace")
	}
	var messages []recordedMessage
	for _, name := range files {
		found, err := r.fromEvents(p, name)
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
	file, err := os.OpenFile(r.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
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

// fromEvents returns the messages that agrimill tail --json wrote.
func (r *testRecord) fromEvents(p *program, name string) (list []recordedMessage, err error) {
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
		m := recordedMessage{
			Event: string(line.Event), Type: line.MessageType, Tenant: line.TenantID, Receiver: line.EndpointID, Context: line.ContextID,
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

// relative returns how a file is called from a directory, or its whole name.
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
func (r *testRecord) fromJournal(ctx context.Context, cfg *config.Config, query string) ([]recordedMessage, error) {
	var server *adminServer
	var err error
	switch {
	case r.address != "":
		server, err = adminServerAt(r.address, r.tokenFile)
	case cfg.Admin.Address == config.AdminOff:
		err = invalid(errors.New("admin.address is off, so there is nobody to ask; see --admin"))
	default:
		server, err = adminServerOf(cfg.Admin, r.tokenFile)
	}
	if err != nil {
		return nil, err
	}
	var trace journal.Trace
	if err := server.ask(ctx, "/api/trace", url.Values{"q": {query}, "limit": {"1"}}, &trace); err != nil {
		return nil, err
	}
	switch n := len(trace.Messages) + trace.More; {
	case n == 0:
		return nil, fmt.Errorf("nothing is known of %s", quote(cell(query)))
	case n > 1:
		return nil, fmt.Errorf("%s finds %s: give an ID of one, see agrimill trace", quote(cell(query)), plural(n, "message"))
	}
	found := trace.Messages[0]
	m := recordedMessage{
		Event: found.EventType, Type: found.MessageType, Tenant: found.Tenant, Receiver: found.Endpoint, Context: found.ContextID, Filename: found.Filename,
	}
	if found.Delivery != "" { // from a broker
		for _, e := range found.Events {
			m.Route = cmp.Or(m.Route, e.Route)
		}
	}
	return []recordedMessage{m}, nil
}

func (m *recordedMessage) name() string {
	return cmp.Or(m.Filename, m.Context, m.Type, "message")
}

// recorded returns the file with a case for each message.
func recorded(ctx context.Context, cfg *config.Config, dir string, messages []recordedMessage) ([]byte, error) {
	trial := pipeline.NewTrial(cfg)
	used := map[string]int{}
	var file struct {
		Cases []recordedCase `yaml:"cases"`
	}
	for _, m := range messages {
		c := recordedCase{Name: m.name(), Message: m, Expect: []recordedExpected{}}
		if used[c.Name]++; used[c.Name] > 1 {
			c.Name = fmt.Sprintf("%s (%d)", c.Name, used[c.Name])
		}
		msg, err := (&testMessage{
			Route: m.Route, Event: m.Event, Type: m.Type, Tenant: m.Tenant, Receiver: m.Receiver, Context: m.Context, Teamset: m.Teamset,
			Filename: m.Filename, PayloadFile: m.PayloadFile,
		}).message(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cell(m.name()), err)
		}
		results, err := trial.Run(ctx, m.Route, msg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cell(m.name()), err)
		}
		for _, result := range results {
			c.Expect = append(c.Expect, newExpected(result))
		}
		file.Cases = append(file.Cases, c)
	}
	return yaml.Dump(&file)
}

// newExpected returns what a route did as what it has to do.
func newExpected(r pipeline.TrialResult) recordedExpected {
	e := recordedExpected{Route: r.Route, Class: r.Class, Reason: r.Reason}
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
	if len(r.Messages) > 1 {
		e.Messages = len(r.Messages)
	}
	return e
}
