package command

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks"
)

type testCase struct {
	Name    string        `yaml:"name" xml:"name,attr"`
	Message testMessage   `yaml:"message" xml:"-"`
	Expect  []expectation `yaml:"expect" xml:"-"`

	Seconds seconds  `yaml:"-" xml:"time,attr"`
	Failure *failure `yaml:"-" xml:"failure"`

	msg *message.Message
}

type failure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type testMessage struct {
	// Route has the source that it comes from; empty: from the gateway.
	Route string `yaml:"route,omitempty"`

	Event     string `yaml:"event,omitempty"`
	Type      string `yaml:"type,omitempty"`
	Tenant    string `yaml:"tenant,omitempty"`
	Receiver  string `yaml:"receiver,omitempty"`
	named     string // the receiver's external ID, if it is known
	Sender    string `yaml:"sender,omitempty"`
	Context   string `yaml:"context,omitempty"`
	Recipient string `yaml:"recipient,omitempty"`
	Teamset   string `yaml:"teamset,omitempty"`
	Filename  string `yaml:"filename,omitempty"`

	Metadata map[string]string `yaml:"metadata,omitempty"`

	Payload       string `yaml:"payload,omitempty"`
	PayloadBase64 string `yaml:"payload_base64,omitempty"`
	PayloadFile   string `yaml:"payload_file,omitempty"`
}

type expectation struct {
	Route    string                `yaml:"route,omitempty"`
	Outcome  pipeline.TrialOutcome `yaml:"outcome,omitempty"`
	Topic    string                `yaml:"topic,omitempty"`
	Metadata map[string]string     `yaml:"metadata,omitempty"`
	Messages *int                  `yaml:"messages,omitempty"`
	Class    string                `yaml:"class,omitempty"`
	Reason   string                `yaml:"reason,omitempty"`
}

// unknownKey is what the library says of a key, with the names of types.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type [^;\n]*`)

func readCases(name string) (testSuite, error) {
	var file struct {
		Cases []testCase `yaml:"cases"`
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return testSuite{}, err
	}
	if err := yaml.Load(data, &file, yaml.WithKnownFields()); err != nil {
		return testSuite{}, fmt.Errorf("%s: %s", cell(name), unknownKey.ReplaceAllString(err.Error(), "unknown key $1"))
	}
	if len(file.Cases) == 0 {
		return testSuite{}, fmt.Errorf("%s: has no cases", cell(name))
	}
	for i := range file.Cases {
		c := &file.Cases[i]
		if err := c.prepare(filepath.Dir(name)); err != nil {
			return testSuite{}, fmt.Errorf("%s: cases[%d]: %w", cell(name), i, err)
		}
	}
	return testSuite{Name: name, Cases: file.Cases}, nil
}

func (c *testCase) prepare(dir string) (err error) {
	if c.Name == "" {
		return errors.New("name is required")
	}
	if c.Expect == nil {
		return errors.New("expect is required: [] if no route publishes or poisons the message")
	}
	seen := map[string]bool{}
	for i := range c.Expect {
		e := &c.Expect[i]
		if e.Outcome == "" {
			e.Outcome = pipeline.TrialPublished
		}
		switch {
		case e.Route == "":
			err = errors.New("route is required")
		case seen[e.Route]:
			err = fmt.Errorf("route %s is expected twice", e.Route)
		case !slices.Contains([]pipeline.TrialOutcome{pipeline.TrialPublished, pipeline.TrialFiltered, pipeline.TrialPoisoned}, e.Outcome):
			err = errors.New("outcome must be published, filtered or poisoned")
		case e.Outcome != pipeline.TrialPublished && (e.Topic != "" || len(e.Metadata) > 0 || e.Messages != nil):
			err = fmt.Errorf("topic, metadata and messages do not apply to a message that is %s", e.Outcome)
		case e.Outcome != pipeline.TrialPoisoned && (e.Class != "" || e.Reason != ""):
			err = fmt.Errorf("class and reason do not apply to a message that is %s", e.Outcome)
		}
		if err != nil {
			return fmt.Errorf("expect[%d]: %w", i, err)
		}
		seen[e.Route] = true
	}
	if c.msg, err = c.Message.message(dir); err != nil {
		return fmt.Errorf("message: %w", err)
	}
	return nil
}

func (m *testMessage) message(dir string) (*message.Message, error) {
	payload := []byte(m.Payload)
	given := 0
	for _, text := range []string{m.Payload, m.PayloadBase64, m.PayloadFile} {
		if text != "" {
			given++
		}
	}
	var err error
	switch {
	case given > 1:
		err = errors.New("payload, payload_base64 and payload_file exclude each other")
	case m.PayloadBase64 != "":
		if payload, err = base64.StdEncoding.DecodeString(m.PayloadBase64); err != nil {
			err = fmt.Errorf("payload_base64: %w", err)
		}
	case m.PayloadFile != "":
		name := m.PayloadFile
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		payload, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage("00000000-0000-4000-8000-000000000001", payload)
	maps.Copy(msg.Metadata, m.Metadata)
	if m.Route == "" && m.Event == "" {
		m.Event = string(gateway.EventMessageReceived)
	}
	keys := sinks.TopicVariables()
	for name, value := range map[string]string{
		"event": m.Event, "type": m.Type, "tenant": m.Tenant, "receiver": m.Receiver, "sender": m.Sender,
		"context": m.Context, "recipient": m.Recipient, "teamset": m.Teamset, "filename": m.Filename,
	} {
		if value != "" {
			msg.Metadata[keys[name]] = value
		}
	}
	return msg, nil
}

// run returns how what becomes of the message differs from what is expected.
func (c *testCase) run(ctx context.Context, trial *pipeline.Trial) ([]string, error) {
	results, err := trial.Run(ctx, c.Message.Route, c.msg)
	if errors.Is(err, pipeline.ErrNoRoute) || errors.Is(err, pipeline.ErrOffline) {
		return []string{err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	var problems []string
	expected := map[string]bool{}
	for _, e := range c.Expect {
		expected[e.Route] = true
		i := slices.IndexFunc(results, func(r pipeline.TrialResult) bool { return r.Route == e.Route })
		if i < 0 {
			problems = append(problems, fmt.Sprintf("route %s does not get the message", e.Route))
			continue
		}
		for _, problem := range e.compare(results[i]) {
			problems = append(problems, "route "+e.Route+": "+problem)
		}
	}
	for _, r := range results {
		if !expected[r.Route] && r.Outcome != pipeline.TrialFiltered {
			problems = append(problems, fmt.Sprintf("route %s: not expected: %s", r.Route, describe(r)))
		}
	}
	return problems, nil
}

func describe(r pipeline.TrialResult) string {
	switch r.Outcome {
	case pipeline.TrialPoisoned:
		return fmt.Sprintf("poisoned (%s): %s", r.Class, r.Reason)
	case pipeline.TrialPublished:
		return fmt.Sprintf("%s published to %q", plural(len(r.Messages), "message"), r.Messages[0].Topic)
	}
	return string(r.Outcome)
}

func (e *expectation) compare(r pipeline.TrialResult) (problems []string) {
	if r.Outcome != e.Outcome {
		return []string{fmt.Sprintf("got: %s; want: %s", describe(r), e.Outcome)}
	}
	differs := func(what, got, want string) {
		if got != want {
			problems = append(problems, fmt.Sprintf("%s: got %q, want %q", what, got, want))
		}
	}
	if e.Class != "" {
		differs("class", r.Class, e.Class)
	}
	if !strings.Contains(r.Reason, e.Reason) {
		differs("reason", r.Reason, e.Reason)
	}
	if e.Messages != nil && len(r.Messages) != *e.Messages {
		problems = append(problems, fmt.Sprintf("messages: got %d, want %d", len(r.Messages), *e.Messages))
	}
	for i, m := range r.Messages {
		before := len(problems)
		if e.Topic != "" {
			differs("topic", m.Topic, e.Topic)
		}
		for _, key := range slices.Sorted(maps.Keys(e.Metadata)) {
			differs("metadata "+key, m.Message.Metadata[key], e.Metadata[key])
		}
		if len(r.Messages) > 1 {
			for n := before; n < len(problems); n++ {
				problems[n] = fmt.Sprintf("message %d: %s", i, problems[n])
			}
		}
	}
	return problems
}
