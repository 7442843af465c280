package sinks_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

func TestTopicTemplate(t *testing.T) {
	metadata := message.Metadata{
		gateway.KeyTenantID:    "tenant",
		gateway.KeyMessageType: "a.b",
		"own key":              "own",
	}
	for text, want := range map[string]string{
		"{tenant}.{type}":            "tenant.a%2Eb",
		"fixed":                      "fixed",
		"farm.{type}.x":              "farm.a%2Eb.x",
		"{tenant}{type}":             "tenanta%2Eb",
		"{event|other}":              "other",
		"{event|o.o}.{type|untyped}": "o%2Eo.a%2Eb",
		"{meta:own key}":             "own",
		"{meta:none|-}":              "-",
	} {
		template, err := sinks.ParseTopicTemplate(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := template.Topic(metadata, sinks.DefaultSegments.Escape); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
		if template.String() != text {
			t.Errorf("%q: String is %q", text, template)
		}
	}
	for _, text := range []string{"", "{", "}", "{}", "{tenant", "tenant}", "{tenant}}", "{{tenant}}", "{unknown}", "{meta:}", "{type|}", "{Tenant}"} {
		var bad *sinks.TemplateError
		if _, err := sinks.ParseTopicTemplate(text); !errors.As(err, &bad) {
			t.Errorf("%q: got %v, want a TemplateError", text, err)
		}
	}
	template := testkit.Must(sinks.ParseTopicTemplate("{tenant}.{event}"))(t)
	const missing = `the message has no event, which the template "{tenant}.{event}" needs`
	if _, err := template.Topic(metadata, sinks.DefaultSegments.Escape); !errors.Is(err, sinks.ErrMissingValue) || !errors.Is(err, sinks.ErrRejected) || err.Error() != missing {
		t.Errorf("missing value: got %v, want %s", err, missing)
	}
}

// TestTopicVariables holds the variables against the keys of package gateway,
// which package sinks does not import.
func TestTopicVariables(t *testing.T) {
	want := map[string]string{
		"tenant":    gateway.KeyTenantID,
		"type":      gateway.KeyMessageType,
		"event":     gateway.KeyEventType,
		"receiver":  gateway.KeyReceivingEndpointID,
		"sender":    gateway.KeyEndpointID,
		"context":   gateway.KeyContextID,
		"recipient": gateway.KeyDirectRecipients,
		"teamset":   gateway.KeyTeamsetContextID,
		"filename":  gateway.KeyFilename,
	}
	if got := sinks.TopicVariables(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Topics that come again cost no allocation, and no topic is taken for another one, whatever came
// before it and beside it.
func TestTopicTemplateRepeated(t *testing.T) {
	template := testkit.Must(sinks.ParseTopicTemplate("in.{tenant}.{type}"))(t)
	topic := func(tenant, messageType string) string {
		got, err := template.Topic(message.Metadata{gateway.KeyTenantID: tenant, gateway.KeyMessageType: messageType}, sinks.DefaultSegments.Escape)
		if err != nil {
			t.Error(err)
		}
		return got
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			for i := range 20_000 {
				// Some come often, some once.
				tenant := "tenant" + strconv.Itoa(random.IntN(100))
				messageType := "often"
				if i%4 == 0 {
					messageType = strings.Repeat("long", 40) + strconv.Itoa(i)
				}
				if got, want := topic(tenant, messageType), "in."+tenant+"."+messageType; got != want {
					t.Errorf("topic %q, want %q", got, want)
					return
				}
			}
		})
	}
	wg.Wait()

	metadata := message.Metadata{gateway.KeyTenantID: "7a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d", gateway.KeyMessageType: "iso:11783:-10:taskdata:zip"}
	if n := testing.AllocsPerRun(100, func() { _, _ = template.Topic(metadata, sinks.DefaultSegments.Escape) }); n != 0 {
		t.Errorf("a topic that was made before costs %g allocations", n)
	}
}

func FuzzTopicTemplate(f *testing.F) {
	f.Add("{tenant}.{type|x}", "a.b")
	f.Fuzz(func(t *testing.T, text, value string) {
		template, err := sinks.ParseTopicTemplate(text)
		if err != nil {
			return
		}
		metadata := message.Metadata{}
		for _, key := range sinks.TopicVariables() {
			metadata[key] = value
		}
		_, _ = template.Topic(metadata, sinks.DefaultSegments.Escape) // must not panic
	})
}

func ExampleTopicTemplate_Required() {
	template, err := sinks.ParseTopicTemplate("{tenant}.{filename}.{type|untyped}")
	fmt.Println(template.Required(), err)
	// Output: map[filename:x-router-filename tenant:x-router-tenant-id] <nil>
}

func ExampleParseTopicTemplate() {
	template, err := sinks.ParseTopicTemplate("{tenant}.{type|untyped}")
	if err != nil {
		fmt.Println(err)
		return
	}
	topic, err := template.Topic(message.Metadata{
		gateway.KeyTenantID:    "8f0d7a3e-3c1c-4d5b-9a57-0c9d7d2f4a11",
		gateway.KeyMessageType: "iso:11783:-10:taskdata:zip",
	}, sinks.DefaultSegments.Escape)
	fmt.Println(topic, err)
	// Output: 8f0d7a3e-3c1c-4d5b-9a57-0c9d7d2f4a11.iso:11783:-10:taskdata:zip <nil>
}
