package publisher_test

import (
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
)

// A Marshaler needs the payload in the message, and Publish refuses references
// then; routes learn of it before.
func TestOpensPayloads(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	for _, marshaler := range []publisher.Marshaler{nil, publisher.EnvelopeMarshaler{}} {
		p, err := publisher.New(publisher.Config{Client: f.client, Marshaler: marshaler}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.OpensPayloads(); got != (marshaler == nil) {
			t.Errorf("with %v: %t", marshaler, got)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
