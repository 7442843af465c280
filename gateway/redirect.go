package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// maxRedirects is how many redirects are followed for one attempt.
const maxRedirects = 5

// follow makes one attempt: a request, and those to where redirects lead. Package http would send the
// URI of a payload, which grants access, as Referer if it followed them.
func (x *exchange) follow(ctx context.Context) (*http.Response, error) {
	if err := x.verifyEmpty(ctx); err != nil {
		return nil, err
	}
	to := x.req.like.URL
	for hop := 0; ; hop++ {
		send := x.authorized
		if x.req.op == opPayload {
			send = x.unauthorized
		}
		resp, err := send(ctx, to)
		if err != nil || !isRedirect(resp.StatusCode) {
			return resp, err
		}
		discard(resp.Body)
		if to = x.redirected(resp, to, hop); to == nil {
			return resp, ErrRedirect
		}
	}
}

// redirected returns the address to which a response leads, or nil if the redirect is refused.
func (x *exchange) redirected(resp *http.Response, from *url.URL, hop int) *url.URL {
	location := resp.Header.Get("Location")
	target, err := url.Parse(location)
	if err != nil || location == "" || target.User != nil {
		return nil
	}
	to := from.ResolveReference(target) // with the credentials of from, if target names no host
	switch {
	case to.Hostname() == "", to.Scheme != from.Scheme:
		return nil
	case hop >= maxRedirects:
		return nil
	case x.req.op == opPayload:
		return to
	case !sameOrigin(to, x.c.origin):
		return nil
	case x.req.like.Method != http.MethodGet && resp.StatusCode < http.StatusTemporaryRedirect:
		return nil // a POST that becomes a GET is answered 200 and delivers nothing
	}
	return to
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

func sameOrigin(a, b *url.URL) bool {
	if a.Scheme == b.Scheme && a.Host == b.Host {
		return true // as nearly always, and without taking the hosts apart
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
