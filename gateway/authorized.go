package gateway

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// authorized makes a request to the service, and another one with a fresh token if that is refused.
func (x *exchange) authorized(ctx context.Context, to *url.URL) (*http.Response, error) {
	resp, token, err := x.withToken(ctx, to, "")
	if err != nil || resp.StatusCode != http.StatusUnauthorized || x.refreshed {
		return x.refusedAgain(resp, token, err)
	}
	x.refreshed = true
	retry, first := x.c.tokens.invalidate(token)
	if !retry {
		return resp, nil
	}
	discard(resp.Body)
	resp, token, err = x.withToken(ctx, to, token)
	if first && err == nil {
		x.c.tokens.replaced(resp.StatusCode != http.StatusUnauthorized)
	}
	return x.refusedAgain(resp, token, err)
}

// refusedAgain turns a 401 for a token that was refused before into an outage.
func (x *exchange) refusedAgain(resp *http.Response, token string, err error) (*http.Response, error) {
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !x.c.tokens.again(token) {
		return resp, err
	}
	_ = resp.Body.Close()
	x.c.tokens.invalidate(token)
	return nil, errSameToken()
}

// withToken sends one request, with another token than the one that was refused, and returns the token it used.
func (x *exchange) withToken(ctx context.Context, to *url.URL, refused string) (_ *http.Response, used string, err error) {
	if !sameOrigin(to, x.c.origin) { // already ensured by redirected; double-checked because of the token
		return nil, "", ErrRedirect
	}
	a := x.newAttempt(ctx, to)
	defer func() {
		if err != nil {
			a.discard()
		}
	}()
	started, err := x.c.limiter.wait(ctx)
	if err != nil {
		return nil, "", err
	}
	token, err := x.c.tokens.get(ctx, refused)
	if err != nil {
		return nil, "", err
	}
	// A process may have been stopped while it waited, and the time of the context be over before Done says so.
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	next := x.c.callTransport
	if x.req.streaming {
		next = x.c.streamTransport
	}
	x.token = token.value
	a.token[0] = token.header
	a.req.Header["Authorization"] = a.token[:]
	x.sentAt = time.Now()
	resp, err := a.send(next)
	if err != nil {
		return nil, token.value, err
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		token.accepted.Store(x.sentAt.UnixNano())
	}
	tenant := x.c.tenantOf(x.req.header)
	if resp.StatusCode == http.StatusTooManyRequests {
		x.c.limiter.reject(started, tenant, x.c.cfg.Retry.retryAfter(resp.Header, time.Now()))
	} else {
		x.c.limiter.accept(started, tenant)
	}
	return resp, token.value, nil
}
