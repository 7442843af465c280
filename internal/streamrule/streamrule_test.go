package streamrule_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/streamrule"
)

func TestLoses(t *testing.T) {
	transform := func(source, destination string) jetstream.StreamConfig {
		return jetstream.StreamConfig{SubjectTransform: &jetstream.SubjectTransformConfig{Source: source, Destination: destination}}
	}
	for name, c := range map[string]struct {
		have jetstream.StreamConfig
		want string // empty: nothing is wrong
	}{
		"limits":                  {jetstream.StreamConfig{Retention: jetstream.LimitsPolicy}, ""},
		"work queue":              {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, ""},
		"interest":                {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention interest"},
		"all subjects":            {transform("agrimill.>", "zzz.>"), "agrimill.> as zzz.>"},
		"without a source":        {transform("", "zzz.>"), "> as zzz.>"},
		"only the poison queue":   {transform("agrimill.poison", "zzz.poison"), "agrimill.poison as zzz.poison"},
		"by a wildcard":           {transform("*.poison", "zzz.{{wildcard(1)}}"), "*.poison as zzz"},
		"the same subjects":       {transform("agrimill.>", "agrimill.>"), ""},
		"the subjects of another": {transform("other.>", "zzz.>"), ""},
		"the prefix alone":        {transform("agrimill", "zzz"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := streamrule.Loses(c.have, "agrimill.>")
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
