package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
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

// token checks the tokens of requests.
type token struct {
	// digest is the digest of the token, so that a comparison takes the same time for
	// tokens of any length.
	digest [sha256.Size]byte
	off    bool
	// reader is the digest of the token that may only read; nil if there is none.
	reader *[sha256.Size]byte
	now    func() time.Time

	mu       sync.Mutex
	limiters map[netip.Addr]*rate.Limiter
	others   *rate.Limiter
}

func newToken(secret string, now func() time.Time) *token {
	return &token{
		digest: sha256.Sum256([]byte(secret)), off: secret == "", now: now,
		limiters: make(map[netip.Addr]*rate.Limiter), others: newLimiter(),
	}
}

func newLimiter() *rate.Limiter { return rate.NewLimiter(rate.Every(tokenInterval), tokenBurst) }

func (t *token) configured() bool { return !t.off }

// verdict is the result of checking a request's token.
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

func (t *token) check(r *http.Request) verdict {
	scheme, credentials, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if t.off && t.reader == nil || !strings.EqualFold(scheme, "Bearer") || credentials == "" {
		return missing
	}
	limiter := t.limiter(r.RemoteAddr)
	now := t.now()
	// Reserved before the comparison, so that concurrent requests do not count as one.
	reservation := limiter.ReserveN(now, 1)
	if reservation.DelayFrom(now) > 0 {
		reservation.CancelAt(now)
		return limited
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(credentials)))
	writes := !t.off && subtle.ConstantTimeCompare(digest[:], t.digest[:]) == 1
	if writes || t.reader != nil && subtle.ConstantTimeCompare(digest[:], t.reader[:]) == 1 {
		reservation.CancelAt(now)
		if writes {
			return accepted
		}
		return reads
	}
	return refused
}

// limiter returns the limiter of an address, creating it if necessary.
func (t *token) limiter(remote string) *rate.Limiter {
	host, _, _ := net.SplitHostPort(remote)
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return t.others
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		// A client with one IPv6 address usually has the whole /64.
		if prefix, err := addr.Prefix(64); err == nil {
			addr = prefix.Addr()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if limiter := t.limiters[addr]; limiter != nil {
		return limiter
	}
	if len(t.limiters) >= maxAddresses {
		t.forget()
	}
	if len(t.limiters) >= maxAddresses {
		return t.others
	}
	limiter := newLimiter()
	t.limiters[addr] = limiter
	return limiter
}

// forget drops the limiters that are as good as new. It is called with the lock held.
func (t *token) forget() {
	now := t.now()
	for addr, limiter := range t.limiters {
		if limiter.TokensAt(now) >= tokenBurst {
			delete(t.limiters, addr)
		}
	}
}
