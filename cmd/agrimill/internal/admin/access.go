package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Wrong tokens allowed per address: a few at once, then one every few seconds.
const (
	tokenBurst    = 5
	tokenInterval = 10 * time.Second
	// maxAddresses bounds the memory; beyond it, new addresses share one limiter.
	maxAddresses = 1024
)

// access says who may read, and who may do what needs Config.Token.
type access struct {
	// writer and reader are the digests of Config.Token and Config.ReadToken, so that a comparison takes the same time for
	// tokens of any length; nil if there is none.
	writer, reader *[sha256.Size]byte
	userHeader     string
	proxies        []netip.Prefix // empty: loopback
	now            func() time.Time

	mu       sync.Mutex
	limiters map[netip.Addr]*rate.Limiter
	others   *rate.Limiter
}

func newAccess(config Config) *access {
	a := &access{userHeader: config.UserHeader, now: config.Now, limiters: make(map[netip.Addr]*rate.Limiter), others: newLimiter()}
	if config.Token != "" {
		a.writer = new(sha256.Sum256([]byte(config.Token)))
	}
	if config.ReadToken != "" {
		a.reader = new(sha256.Sum256([]byte(config.ReadToken)))
	}
	for _, proxy := range config.Proxies {
		if network, err := parseNetwork(proxy); err == nil { // Validate has seen it
			a.proxies = append(a.proxies, network)
		}
	}
	return a
}

func newLimiter() *rate.Limiter { return rate.NewLimiter(rate.Every(tokenInterval), tokenBurst) }

func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err
}

// writes reports whether there is a token that may do more than read.
func (a *access) writes() bool { return a.writer != nil }

// protected reports whether reading needs anything.
func (a *access) protected() bool { return a.reader != nil || a.userHeader != "" }

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

// addressOf returns the address in that of a connection, the zero Addr if there is none.
func addressOf(remote string) netip.Addr {
	at, _ := netip.ParseAddrPort(remote)
	return at.Addr().Unmap().WithZone("")
}

func (a *access) fromProxy(remote string) bool {
	addr := addressOf(remote)
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
	return a.check(r)
}

func (s *Server) reading(r *http.Request) error {
	if v := s.access.mayRead(r); v != accepted && v != reads {
		return s.refusal(r, v, "request")
	}
	return nil
}

// tells reports whether the response to a probe may have reasons.
func (s *Server) tells(r *http.Request) bool {
	v := s.access.mayRead(r)
	return v == accepted || v == reads
}

// authorized refuses requests without the token for what they want to do or see.
func (s *Server) authorized(what string) check {
	return func(r *http.Request) error {
		if !s.access.writes() {
			return problem{status: http.StatusForbidden, Text: what + " is disabled: no token is configured"}
		}
		if v := s.access.check(r); v != accepted {
			return s.refusal(r, v, what)
		}
		return nil
	}
}

// refusal is the response to a request without the token that it needs.
func (s *Server) refusal(r *http.Request, v verdict, what string) error {
	switch v {
	case limited:
		return problem{http.StatusTooManyRequests, tokenInterval, "too many wrong tokens; try again later"}
	case reads:
		return problem{status: http.StatusForbidden, Text: "this token may only read"}
	case refused:
		// Only wrong tokens are logged, so that requests without one cannot flood the log.
		s.log.Warn("admin: rejected a "+what+" with a wrong token", "remote", r.RemoteAddr)
	case accepted, missing:
	}
	return problem{status: http.StatusUnauthorized, Text: "the token is missing or wrong"}
}

type verdict int

const (
	accepted verdict = iota
	// reads: it is the token that may only read.
	reads
	// missing: there is no token in the request.
	missing
	refused
	// limited: too many wrong tokens came from this address. The token was not checked, so
	// that guessing is not faster with luck.
	limited
)

func (a *access) check(r *http.Request) verdict {
	scheme, credentials, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if a.writer == nil && a.reader == nil || !strings.EqualFold(scheme, "Bearer") || credentials == "" {
		return missing
	}
	limiter := a.limiter(r.RemoteAddr)
	now := a.now()
	// Reserved before the comparison, so that concurrent requests do not count as one.
	reservation := limiter.ReserveN(now, 1)
	if reservation.DelayFrom(now) > 0 {
		reservation.CancelAt(now)
		return limited
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(credentials)))
	is := func(right *[sha256.Size]byte) bool {
		return right != nil && subtle.ConstantTimeCompare(digest[:], right[:]) == 1
	}
	result := refused
	switch {
	case is(a.writer):
		result = accepted
	case is(a.reader):
		result = reads
	}
	if result != refused {
		reservation.CancelAt(now)
	}
	return result
}

func (a *access) limiter(remote string) *rate.Limiter {
	addr := addressOf(remote)
	switch {
	case !addr.IsValid():
		return a.others
	case addr.Is6(): // a client with one usually has the whole /64
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if limiter := a.limiters[addr]; limiter != nil {
		return limiter
	}
	if len(a.limiters) >= maxAddresses {
		a.forget()
	}
	if len(a.limiters) >= maxAddresses {
		return a.others
	}
	limiter := newLimiter()
	a.limiters[addr] = limiter
	return limiter
}

// forget drops the limiters that are as good as new. It is called with the lock held.
func (a *access) forget() {
	now := a.now()
	for addr, limiter := range a.limiters {
		if limiter.TokensAt(now) >= tokenBurst {
			delete(a.limiters, addr)
		}
	}
}
