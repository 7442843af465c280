package admin

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// with is a request with a token from an address.
func with(token, remote string) *http.Request {
	return &http.Request{RemoteAddr: remote, Header: http.Header{"Authorization": {"Bearer " + token}}}
}

// TestWrongTokensAreCountedByAddress checks that who tries tokens locks nobody else
// out, and gets no more tries by changing the port or the last half of an IPv6
// address.
func TestWrongTokensAreCountedByAddress(t *testing.T) {
	now := time.Unix(0, 0)
	for _, test := range []struct{ first, same, other string }{
		{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", "192.0.2.2:1"},
		{"[2001:db8::1]:1", "[2001:db8::ffff:2%eth0]:1", "[2001:db8:0:1::1]:1"},
		{"no address", "none either", "192.0.2.2:1"},
	} {
		token := newAccess(Config{Token: "the right one", Now: func() time.Time { return now }})
		for range tokenBurst {
			if got := token.check(with("a wrong one", test.first)); got != refused {
				t.Fatalf("%s: %d", test.first, got)
			}
		}
		for _, remote := range []string{test.first, test.same} {
			if got := token.check(with("the right one", remote)); got != limited {
				t.Errorf("%s after %s: %d", remote, test.first, got)
			}
		}
		if got := token.check(with("the right one", test.other)); got != accepted {
			t.Errorf("%s after %s: %d", test.other, test.first, got)
		}
	}
}

// TestTokenMemoryIsBounded checks that addresses beyond the bound share one limit,
// and that those that tried nothing for a while are forgotten.
func TestTokenMemoryIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	token := newAccess(Config{Token: "the right one", Now: func() time.Time { return now }})
	remote := func(i int) string { return fmt.Sprintf("10.0.%d.%d:1", i/256, i%256) }
	for i := range maxAddresses {
		token.check(with("a wrong one", remote(i)))
	}
	for i := range tokenBurst {
		if got := token.check(with("a wrong one", remote(maxAddresses+i))); got != refused {
			t.Fatalf("try %d: %d", i, got)
		}
	}
	if got := token.check(with("the right one", remote(maxAddresses+tokenBurst))); got != limited {
		t.Errorf("beyond the bound: %d", got)
	}
	if n := len(token.limiters); n != maxAddresses {
		t.Errorf("%d addresses are remembered, want %d", n, maxAddresses)
	}
	now = now.Add(tokenInterval)
	if got := token.check(with("the right one", remote(maxAddresses+tokenBurst))); got != accepted {
		t.Errorf("after a while: %d", got)
	}
	if n := len(token.limiters); n != 1 {
		t.Errorf("%d addresses are remembered, want 1", n)
	}
}
