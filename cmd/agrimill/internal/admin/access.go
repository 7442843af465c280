package admin

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// access says who may read, and who may do what needs Config.Token.
type access struct {
	token      *token
	userHeader string
	proxies    []netip.Prefix // empty: loopback
}

func newAccess(config Config) *access {
	a := &access{token: newToken(string(config.Token), config.Now), userHeader: config.UserHeader}
	if config.ReadToken != "" {
		digest := sha256.Sum256([]byte(config.ReadToken))
		a.token.reader = &digest
	}
	for _, proxy := range config.Proxies {
		if network, err := parseNetwork(proxy); err == nil { // Validate has seen it
			a.proxies = append(a.proxies, network)
		}
	}
	return a
}

// parseNetwork reads an address or a network.
func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err
}

// protected reports whether reading needs anything.
func (a *access) protected() bool { return a.token.reader != nil || a.userHeader != "" }

// user returns whom a proxy names as the user of a request; empty if none does. A header that is
// there twice is not believed: the proxy added its own to that of the client.
func (a *access) user(r *http.Request) string {
	if a.userHeader == "" {
		return ""
	}
	names := r.Header.Values(a.userHeader)
	if len(names) != 1 || !a.fromProxy(r.RemoteAddr) {
		return ""
	}
	return names[0]
}

func (a *access) fromProxy(remote string) bool {
	host, _, _ := net.SplitHostPort(remote)
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	if len(a.proxies) == 0 {
		return addr.IsLoopback()
	}
	return slices.ContainsFunc(a.proxies, func(network netip.Prefix) bool { return network.Contains(addr) })
}

// mayRead checks whether a request may see more than the page without data.
func (a *access) mayRead(r *http.Request) verdict {
	if !a.protected() || a.user(r) != "" {
		return reads
	}
	return a.token.check(r)
}

// reading passes requests on that may read.
func (s *Server) reading(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch v := s.access.mayRead(r); v {
		case accepted, reads:
			next.ServeHTTP(w, r)
		default:
			s.refuse(w, r, v, "request")
		}
	})
}

// tells reports whether the response to a probe may have reasons.
func (s *Server) tells(r *http.Request) bool {
	v := s.access.mayRead(r)
	return v == accepted || v == reads
}

// authorized checks whether a request has the token for what it wants to do or see, and responds if it
// has not.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, what string) bool {
	if !s.access.token.configured() {
		writeProblem(w, http.StatusForbidden, what+" is disabled: no token is configured")
		return false
	}
	v := s.access.token.check(r)
	if v != accepted {
		s.refuse(w, r, v, what)
	}
	return v == accepted
}

// refuse responds to a request without the token that it needs.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, v verdict, what string) {
	switch v {
	case limited:
		w.Header().Set("Retry-After", strconv.Itoa(int(tokenInterval/time.Second)))
		writeProblem(w, http.StatusTooManyRequests, "too many wrong tokens; try again later")
		return
	case reads:
		writeProblem(w, http.StatusForbidden, "this token may only read")
		return
	case refused:
		// Only wrong tokens are logged, so that requests without one cannot flood the log.
		s.log.Warn("admin: rejected a "+what+" with a wrong token", "remote", r.RemoteAddr)
	case accepted, missing:
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="agrimill"`)
	writeProblem(w, http.StatusUnauthorized, "the token is missing or wrong")
}
