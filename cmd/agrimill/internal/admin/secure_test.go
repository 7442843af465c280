package admin

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// FuzzLoopbackHost checks that no Host header passes as loopback that leads
// elsewhere when it stands in an address.
func FuzzLoopbackHost(f *testing.F) {
	for _, seed := range []string{
		"localhost", "localhost:80", "LOCALHOST.", "[::1]:80", "127.0.0.1", "[::ffff:127.0.0.1]", "a.example", "127.0.0.1.a.example",
		"[::1%25lo]", "", ":", "[", "::1", "[127.0.0.1]", "127.0.0.0]", "a@localhost", "localhost:80:80",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if !isLoopback(hostOf(header)) {
			return
		}
		address, err := url.Parse("http://" + header)
		if err != nil || address.User != nil || address.Path != "" || address.RawQuery != "" || address.Fragment != "" {
			return // no host that a client could have asked for
		}
		host := address.Hostname()
		if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
			return
		}
		if addr, err := netip.ParseAddr(host); err != nil || !addr.Unmap().IsLoopback() {
			t.Errorf("%q passes as loopback and leads to %q", header, host)
		}
	})
}
