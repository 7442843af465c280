package gatewaytest

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
)

// The client and the service read the same two rules on their own. They must
// agree on every input: what the client lets pass the service takes, and what
// the client refuses the service would have refused.

func FuzzSpecExternalID(f *testing.F) {
	for _, id := range []string{
		"", "a", "a:", ":a", "a:b", "urn:a:b", "URN:a:b", "urn:a", "urn::a", "urn:", "urn", "urn:urn:a", "urn:urn:", "-a:b", "urn:-a:b",
		"a-:b", "a_b:c", "a:ü", "ä:b", "a:b c", "a:()+,-.:=@;$_!*%/?#", "a:&", "a:\n", "a:\x00", "a:\xff",
		strings.Repeat("n", 32) + ":x", strings.Repeat("n", 33) + ":x", "urn:" + strings.Repeat("n", 32) + ":x", "urn:" + strings.Repeat("n", 33) + ":x",
		"n:" + strings.Repeat("x", 253), "n:" + strings.Repeat("x", 254),
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if client, service := gateway.ValidateExternalID(id), isExternalID(id); (client == nil) != service {
			t.Errorf("%q: the client says %v, the service %v", id, client, service)
		}
	})
}

func FuzzSpecEndpointName(f *testing.F) {
	for _, name := range []string{
		"", " ", "   ", "a", "農", "Größe 2", "-_.,:", " a ", "\t", "a\tb", "a\u00a0b", "\u3000", "a/b", "🚜", "٣", "½", "e\u0301", "a\xff",
		strings.Repeat("ж", 200), strings.Repeat("ж", 201), strings.Repeat(" ", 200),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if client, service := gateway.ValidateEndpointName(name), isEndpointName(name); (client == nil) != service {
			t.Errorf("%q: the client says %v, the service %v", name, client, service)
		}
	})
}
