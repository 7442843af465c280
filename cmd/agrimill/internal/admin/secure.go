package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// contentSecurityPolicy restricts the page to this server. Trusted types make the browser
// reject every way to turn text into HTML.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func secureHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentSecurityPolicy)
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		next.ServeHTTP(w, r)
	})
}

// checkHost rejects requests for other hosts: a web site whose name resolves to this machine (DNS rebinding) could read everything
// through the browser of someone on its network.
func (s *Server) checkHost(next http.Handler) http.Handler {
	hosts := make(map[string]bool)
	for _, host := range s.config.Hosts {
		hosts[normalHost(host)] = true
	}
	accepts := isLoopback
	if !s.onLoopback() {
		accepts = isNotPublic
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := hostOf(r.Host); !hosts[host] && !accepts(host) {
			http.Error(w, "This server does not serve the requested host: admin.hosts has to have it.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		header = host
	}
	return normalHost(header)
}

func normalHost(host string) string {
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") { // one alone is part of a name
		host = host[1 : len(host)-1]
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().WithZone("").String()
	}
	host = strings.ToLower(host)
	if name := strings.TrimSuffix(host, "."); !isLoopback(name) || name == "localhost" {
		return name
	}
	return host // an address has no trailing dot
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// isNotPublic reports whether a host is none that a web site can have, so that it was not reached through
// DNS rebinding: an address, or a name of one label, as they are in containers.
func isNotPublic(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && !strings.ContainsAny(host, ".:[]")
}

const jsonType = "application/json; charset=utf-8"

// writeJSON responds with a value. A write error means that the client is gone, so there is
// no one to report it to.
func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// respond responds with a value, or with nothing but its ETag to a client that has it already.
func respond(w http.ResponseWriter, r *http.Request, value any) {
	body, _ := json.Marshal(value) // strings, numbers, times
	sum := sha256.Sum256(body)
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("ETag", fmt.Sprintf("%q", base64.RawURLEncoding.EncodeToString(sum[:16])))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(append(body, '\n')))
}

// problem is the API's error response.
type problem struct {
	status int
	retry  time.Duration // when to try again; 0: nobody knows
	Text   string        `json:"error"`
}

// Error returns the text.
func (p problem) Error() string { return p.Text }

func badRequest(format string, args ...any) error {
	return problem{status: http.StatusBadRequest, Text: fmt.Sprintf(format, args...)}
}

// writeError responds with an error. One that is no problem of the API is that of something behind it.
func writeError(w http.ResponseWriter, err error) {
	p, ok := errors.AsType[problem](err)
	if !ok {
		p = problem{status: http.StatusBadGateway, Text: redact(err)}
	}
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.retry/time.Second)))
	}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="agrimill"`)
	}
	writeJSON(w, p.status, p)
}

// check refuses a request by an error.
type check func(r *http.Request) error

// guarded has next handle what no check refuses.
func guarded(next http.Handler, checks ...check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, check := range checks {
			if err := check(r); err != nil {
				writeError(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// answer finds the response to a request; its status is 202 for what is only begun.
type answer func(r *http.Request) (any, error)

// ServeHTTP implements [http.Handler].
func (a answer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch value, err := a(r); {
	case err != nil:
		writeError(w, err)
	case r.Method == http.MethodPost:
		writeJSON(w, http.StatusAccepted, value)
	default:
		respond(w, r, value)
	}
}

// knowing refuses a request whose query is not made of these parameters, each once and of a length that something can have. One
// that is misspelled, or that net/http cannot read and leaves out, would be taken for none: everything would be selected.
func knowing(parameters []string) check {
	return func(r *http.Request) error {
		if text := problemOf(r.URL.RawQuery, parameters); text != "" {
			return badRequest("%s", text)
		}
		return nil
	}
}

// problemOf returns what is wrong with a query, without its values.
func problemOf(raw string, parameters []string) string {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return "the query cannot be read; percent-encode % ; & and + in its values"
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch values := query[name]; {
		case !slices.Contains(parameters, name) && len(parameters) == 0:
			return "this takes no parameters"
		case !slices.Contains(parameters, name):
			return fmt.Sprintf("%.64q is not a parameter; use %s", name, strings.Join(parameters, ", "))
		case len(values) > 1:
			return name + " is there more than once; use it once"
		case len(values[0]) > MaxTraceQuery:
			return fmt.Sprintf("%s must have at most %d bytes", name, MaxTraceQuery)
		}
	}
	return ""
}
