package gatewaytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/agrimill/agrimill/gateway"
)

// This file contains what the operations share.

// StatusError is an unsuccessful response of the service, also of Go methods.
type StatusError struct {
	// Status is the HTTP status.
	Status int
	// Message is the `message` of the error body.
	Message string
}

// Error returns status and message.
func (e *StatusError) Error() string { return fmt.Sprintf("%d: %s", e.Status, e.Message) }

// The exact texts given in the specification.
const (
	messageNoRecipients    = "No recipients for this sender and info type"
	messagePartialDelivery = "Recipient is not allowed from this sender"
	messageRateLimited     = "rate limit exceeded"
)

func statusError(status int, format string, args ...any) *StatusError {
	return &StatusError{Status: status, Message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *StatusError {
	return statusError(http.StatusBadRequest, format, args...)
}

func forbidden(format string, args ...any) *StatusError {
	return statusError(http.StatusForbidden, format, args...)
}

// request is a request of an authenticated application.
type request struct {
	*http.Request
	app *Application
}

// fixedPaths are the operations whose path has no parameter.
var fixedPaths = map[string]Operation{
	"POST " + tokenPath: OpToken, "POST /messages": OpSendMessage, "GET /events": OpEvents,
	"POST /confirmations": OpConfirm, "GET /tenants": OpListTenants,
}

// operationOf returns the operation of a request, empty for none. It does not use ServeMux, which would clean the path,
// because an externalId may contain anything from `//` to `/../`.
func operationOf(r *http.Request) Operation {
	path := r.URL.EscapedPath()
	switch {
	case strings.HasPrefix(path, "/tenants/") && strings.HasSuffix(path, "/endpoints") && r.Method == http.MethodGet:
		return OpListEndpoints
	case strings.HasPrefix(path, endpointsPath) && r.Method == http.MethodPut:
		return OpPutEndpoint
	case strings.HasPrefix(path, endpointsPath) && r.Method == http.MethodDelete:
		return OpDeleteEndpoint
	}
	return fixedPaths[r.Method+" "+path]
}

func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	op := operationOf(r)
	switch {
	case op == OpToken:
		s.serve(op, w, r, s.tokenHandler())
	case op != "" && s.replay != nil:
		s.serveAuthorized(op, w, r, s.handleReplay)
	case op != "":
		s.serveAuthorized(op, w, r, s.handlers[op])
	case s.cfg.ControlPrefix != "" && strings.HasPrefix(r.URL.EscapedPath(), s.cfg.ControlPrefix+"/"):
		s.serveControl(w, r)
	default:
		s.writeError(w, r, statusError(http.StatusNotFound, "no such resource"))
	}
}

// serveAuthorized runs an operation that needs an access token.
func (s *Server) serveAuthorized(op Operation, w http.ResponseWriter, r *http.Request, handle func(http.ResponseWriter, *request) error) {
	s.serve(op, w, r, func(w http.ResponseWriter, r *http.Request) {
		app, err := s.authenticate(r)
		if err == nil {
			err = handle(w, &request{Request: r, app: app})
		}
		if err != nil {
			s.writeError(w, r, err)
		}
	})
}

// authenticate resolves the access token (401) and applies the rate limit (429).
func (s *Server) authenticate(r *http.Request) (*Application, error) {
	scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	now := s.clock.now()
	s.mu.Lock()
	t, known := s.tokens[value]
	s.mu.Unlock()
	switch {
	case !strings.EqualFold(scheme, "Bearer") || value == "":
		return nil, statusError(http.StatusUnauthorized, "access token is missing")
	case !known:
		return nil, statusError(http.StatusUnauthorized, "access token is invalid")
	case t.expired(now):
		return nil, statusError(http.StatusUnauthorized, "access token is expired")
	case t.app.limiter != nil && !t.app.limiter.AllowN(now, 1):
		return nil, statusError(http.StatusTooManyRequests, messageRateLimited)
	}
	return t.app, nil
}

// writeError responds with the current error body.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	status, ok := errors.AsType[*StatusError](err)
	if !ok {
		status = statusError(http.StatusInternalServerError, "internal error")
	}
	s.drain(r)
	if status.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, status.Status, gateway.ErrorResponse{Message: status.Message})
}

// drain reads the rest of a request: unread data would reset the connection before the client has read the response. A
// body beyond the limit is not worth reading.
func (s *Server) drain(r *http.Request) {
	if r.ContentLength > 0 && r.ContentLength <= s.cfg.MaxPayloadSize {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil { // cannot happen with the types used
		status, data = http.StatusInternalServerError, []byte(`{"message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// header returns the value of the header that the specification calls key, under the
// service's name. A header that occurs more than once is malformed.
func (s *Server) header(r *request, key string, required bool) (value string, err error) {
	name := gateway.HeaderName(s.cfg.ServiceName, key)
	values := r.Header.Values(name)
	switch {
	case len(values) > 1:
		return "", badRequest("header %s occurs more than once", name)
	case len(values) == 0 && required:
		return "", badRequest("header %s is missing", name)
	case len(values) == 0:
		return "", nil
	case values[0] == "" && required:
		return "", badRequest("header %s is empty", name)
	}
	return values[0], nil
}

func (s *Server) uuidHeader(r *request, key string) (string, error) {
	value, err := s.header(r, key, true)
	if err != nil {
		return "", err
	}
	id, ok := canonicalUUID(value)
	if !ok {
		return "", badRequest("header %s is not a UUID", gateway.HeaderName(s.cfg.ServiceName, key))
	}
	return id, nil
}

// textHeader returns a header of 1 to 100 characters.
func (s *Server) textHeader(r *request, key string, required bool) (string, error) {
	value, err := s.header(r, key, required)
	if err == nil && value != "" && !withinCharacters(value, 1, 100) {
		err = badRequest("header %s is longer than 100 characters or not UTF-8", gateway.HeaderName(s.cfg.ServiceName, key))
	}
	return value, err
}

// tenantLocked returns the tenant of a request, for which the application must have
// an authorization: with the given scope, or with any scope if it is empty.
func (s *Server) tenantLocked(app *Application, id, scope string) (*tenant, error) {
	t := s.tenants[id]
	if t == nil || !app.authorized(t, "") {
		// An unknown tenant is not distinguished from a foreign one.
		return nil, forbidden("the application is not authorized for tenant %s", id)
	}
	if scope != "" && !app.authorized(t, scope) {
		return nil, forbidden("the application has no authorization with scope %s for tenant %s", scope, id)
	}
	return t, nil
}

// readJSON decodes a JSON body of at most limit bytes. Unknown fields are ignored.
func readJSON(r *http.Request, limit int64, tooLarge int, into any) error {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return badRequest("header Content-Type must be application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return badRequest("body cannot be read")
	}
	if int64(len(body)) > limit {
		return statusError(tooLarge, "body is larger than %d bytes", limit)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return badRequest("body cannot be parsed: %v", err)
	}
	return nil
}

// pathSegment returns what follows prefix in the path, unescaped once, slashes included.
func pathSegment(r *http.Request, prefix, suffix string) (string, error) {
	escaped := strings.TrimSuffix(strings.TrimPrefix(r.URL.EscapedPath(), prefix), suffix)
	value, err := url.PathUnescape(escaped)
	if err != nil {
		return "", badRequest("path is malformed")
	}
	return value, nil
}
