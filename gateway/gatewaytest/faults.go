package gatewaytest

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Operation is the target of a fault.
type Operation string

// The operations of the service, the token endpoint and the payload host.
const (
	OpToken          Operation = "token"
	OpSendMessage    Operation = "sendMessages"
	OpEvents         Operation = "receiveEvents"
	OpConfirm        Operation = "confirmMessages"
	OpListTenants    Operation = "listAuthorizedTenants"
	OpListEndpoints  Operation = "listTenantEndpoints"
	OpPutEndpoint    Operation = "putEndpoint"
	OpDeleteEndpoint Operation = "deleteEndpoint"
	OpPayload        Operation = "payload"
	// OpAny is every operation.
	OpAny Operation = "*"
)

func checkFault(op Operation, f Fault) error {
	all := []Operation{OpToken, OpSendMessage, OpEvents, OpConfirm, OpListTenants, OpListEndpoints, OpPutEndpoint, OpDeleteEndpoint, OpPayload, OpAny}
	switch {
	case !slices.Contains(all, op):
		return badRequest("operation %q is unknown", op)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return badRequest("status must be 200 to 599")
	}
	return nil
}

// AfterHeader, as [Fault.CutAfter] or [Fault.HangAfter], means before the first byte of the body.
const AfterHeader int64 = -1

// CutStyle is how a connection is ended.
type CutStyle int

// The values of [Fault.Cut].
const (
	// CutClose closes the connection without completing the response.
	CutClose CutStyle = iota
	// CutReset resets the connection.
	CutReset
	// CutClean ends the response as if it were complete, if it has no Content-Length.
	CutClean
)

// Fault is what happens to a request instead of, or in addition to, its regular response. Fields combine in the order given
// here. The zero Fault only counts its hits.
type Fault struct {
	// Match restricts the fault to some requests of the operation. It must not read the body. Nil: all.
	Match func(*http.Request) bool `json:"-"`
	// Skip is how many matching requests pass before the fault applies.
	Skip int `json:"skip"`
	// Times is how many requests are hit. 0 means until lifted.
	Times int `json:"times"`

	// Delay is how long to wait before anything else happens.
	Delay time.Duration `json:"-"`
	// Hang holds the request until the fault is lifted; then it is processed.
	Hang bool `json:"hang"`
	// Refuse drops the connection without processing the request.
	Refuse bool `json:"refuse"`
	// AfterWork processes the request before Status and Body, which otherwise replace that.
	AfterWork bool `json:"after_work"`
	// DropAnswer processes the request, then drops the connection.
	DropAnswer bool `json:"drop_answer"`

	// Status replaces the response, with an error body with Message unless Body is set.
	Status int `json:"status"`
	// Message is the `message` of the error body. Default: the status text.
	Message string `json:"message"`
	// Body replaces the body of the response, with status 200 unless Status is set.
	Body []byte `json:"-"`
	// ContentType replaces the Content-Type of the response, regular or not.
	ContentType string `json:"content_type"`
	// Header is added to the response, for example Retry-After or Location.
	Header http.Header `json:"-"`

	// CutAfter cuts the connection after that many bytes of the body, or [AfterHeader]. 0 disables it.
	CutAfter int64 `json:"cut_after"`
	// Cut is how CutAfter, Refuse and DropAnswer end the connection. Default: CutClose.
	Cut CutStyle `json:"-"`
	// HangAfter holds the body after that many bytes, or [AfterHeader], until the fault is lifted. 0 disables it.
	HangAfter int64 `json:"hang_after"`
	// BytesPerSecond limits the speed of the response body. 0 disables it.
	BytesPerSecond int `json:"bytes_per_second"`
}

// Injection is an active fault.
type Injection struct {
	server *Server
	id     string
	op     Operation
	fault  Fault
	lifted chan struct{}
	once   sync.Once

	// Guarded by Server.mu.
	seen, hits int
}

// Inject activates a fault. Of several, only the oldest hits a request.
func (s *Server) Inject(op Operation, f Fault) *Injection {
	i := &Injection{server: s, op: op, fault: f, lifted: make(chan struct{})}
	if err := checkFault(op, f); err != nil {
		s.helper()
		s.must("Inject", err)
		return i
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.last++
	i.id = strconv.Itoa(s.faults.last)
	s.faults.list = append(s.faults.list, i)
	return i
}

// Lift removes the fault and releases the requests that it holds. It is idempotent.
func (i *Injection) Lift() {
	i.once.Do(func() { close(i.lifted) })
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	i.server.faults.list = slices.DeleteFunc(i.server.faults.list, func(other *Injection) bool { return other == i })
}

// Hits returns the number of requests that the fault has hit.
func (i *Injection) Hits() int {
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	return i.hits
}

// LiftAll removes all faults.
func (s *Server) LiftAll() {
	s.mu.Lock()
	all := slices.Clone(s.faults.list)
	s.mu.Unlock()
	for _, i := range all {
		i.Lift()
	}
}

// fault returns the injection that hits the request, or nil.
func (s *Server) fault(op Operation, r *http.Request) *Injection {
	s.mu.Lock()
	candidates := slices.Clone(s.faults.list)
	s.mu.Unlock()
	for _, i := range candidates {
		if i.op != op && i.op != OpAny || i.fault.Match != nil && !i.fault.Match(r) {
			continue
		}
		if i.take() {
			return i
		}
	}
	return nil
}

// take counts a matching request and reports whether it is hit.
func (i *Injection) take() bool {
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	i.seen++
	if i.seen <= i.fault.Skip || i.fault.Times > 0 && i.hits >= i.fault.Times {
		return false
	}
	i.hits++
	i.server.changedLocked()
	return true
}

// OperationStats counts the requests and responses of an operation.
type OperationStats struct {
	// Requests counts all requests, including those hit by a fault.
	Requests int
	// Status counts the responses by status, of requests that were not dropped.
	Status map[int]int
	// HTTP2 counts requests over HTTP/2.
	HTTP2 int
	// WithAuthorization counts requests with an Authorization or Cookie header: none for OpPayload.
	WithAuthorization int
}

// Stats returns a copy of the counters of an operation.
func (s *Server) Stats(op Operation) OperationStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := OperationStats{Status: map[int]int{}}
	for name, counted := range s.stats {
		if op != OpAny && op != name {
			continue
		}
		stats.Requests += counted.Requests
		stats.HTTP2 += counted.HTTP2
		stats.WithAuthorization += counted.WithAuthorization
		for status, n := range counted.Status {
			stats.Status[status] += n
		}
	}
	return stats
}

func (s *Server) statsLocked(op Operation) *OperationStats {
	stats := s.stats[op]
	if stats == nil {
		stats = &OperationStats{Status: map[int]int{}}
		s.stats[op] = stats
	}
	return stats
}

// serve performs an operation, subject to the fault that hits it.
func (s *Server) serve(op Operation, w http.ResponseWriter, r *http.Request, work func(http.ResponseWriter, *http.Request)) {
	s.mu.Lock()
	stats := s.statsLocked(op)
	stats.Requests++
	if r.ProtoMajor == 2 {
		stats.HTTP2++
	}
	if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
		stats.WithAuthorization++
	}
	faulty := len(s.faults.list) > 0
	s.changedLocked()
	s.mu.Unlock()

	w.Header().Set("Date", s.clock.now().UTC().Format(http.TimeFormat))
	a := &answer{ResponseWriter: w, request: r, onStatus: func(status int) {
		s.log.Info("gatewaytest", "operation", string(op), "method", r.Method, "status", status)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.statsLocked(op).Status[status]++
	}}
	var injected *Injection
	if faulty {
		injected = s.fault(op, r)
	}
	if injected == nil {
		work(a, r)
		return
	}
	s.serveFault(injected, a, r, work)
}

func (s *Server) serveFault(i *Injection, a *answer, r *http.Request, work func(http.ResponseWriter, *http.Request)) {
	f := i.fault
	if f.Delay > 0 && !i.wait(r, time.After(f.Delay)) || f.Hang && !i.wait(r, nil) {
		return
	}
	a.injection = i
	switch {
	case f.Refuse:
		a.drop()
	case f.Status != 0 || f.Body != nil:
		if f.AfterWork || f.DropAnswer {
			work(newBlackHole(), r)
		}
		if f.DropAnswer {
			a.drop()
			return
		}
		s.writeFault(a, r, f)
	case f.DropAnswer:
		work(newBlackHole(), r)
		a.drop()
	default:
		work(a, r)
	}
}

// wait waits until the time has come or the fault is lifted. It returns false if the request has ended before.
func (i *Injection) wait(r *http.Request, until <-chan time.Time) bool {
	select {
	case <-until:
	case <-i.lifted:
	case <-r.Context().Done():
		return false
	}
	return true
}

func (s *Server) writeFault(a *answer, r *http.Request, f Fault) {
	if f.Body == nil {
		if f.Status == http.StatusTooManyRequests {
			f.Message = cmp.Or(f.Message, messageRateLimited)
		}
		f.Message = cmp.Or(f.Message, http.StatusText(f.Status))
		s.writeError(a, r, statusError(f.Status, "%s", f.Message))
		return
	}
	s.drain(r)
	f.Status = cmp.Or(f.Status, http.StatusOK)
	f.ContentType = cmp.Or(f.ContentType, "application/json")
	a.Header().Set("Content-Type", f.ContentType)
	a.WriteHeader(f.Status)
	_, _ = a.Write(f.Body)
}

// answer writes a response to the client, counts its status, and cuts or holds it as a fault demands.
type answer struct {
	http.ResponseWriter
	request   *http.Request
	onStatus  func(int)
	injection *Injection
	started   bool
	written   int64
	ended     bool
	held      bool
}

// errCut ends the processing of a request whose response was cut.
var errCut = errors.New("gatewaytest: answer cut")

// Unwrap gives http.ResponseController access to Flush.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader applies the header changes of the fault. Only the first call counts.
func (a *answer) WriteHeader(status int) {
	if a.started {
		return
	}
	a.started = true
	a.onStatus(status)
	if a.injection != nil {
		f := a.injection.fault
		if f.ContentType != "" {
			a.Header().Set("Content-Type", f.ContentType)
		}
		for name, values := range f.Header {
			a.Header()[http.CanonicalHeaderKey(name)] = values
		}
	}
	a.ResponseWriter.WriteHeader(status)
	if a.injection != nil && a.injection.fault.CutAfter == AfterHeader {
		a.drop() // the body of an event stream may not start for a long time
	}
}

// Write cuts or stalls the response where the fault demands it.
func (a *answer) Write(b []byte) (int, error) {
	if !a.started {
		a.WriteHeader(http.StatusOK)
	}
	if a.injection == nil {
		return a.ResponseWriter.Write(b)
	}
	return a.writeFaulty(b)
}

func (a *answer) writeFaulty(b []byte) (int, error) {
	f := a.injection.fault
	if a.ended {
		return 0, errCut
	}
	total := 0
	if n, due := due(f.HangAfter, a.written, len(b)); due && !a.held {
		if err := a.pass(b[:n], &total); err != nil {
			return total, err
		}
		a.held = true
		if !a.pause(nil) {
			return total, errCut
		}
		b = b[n:]
	}
	if n, due := due(f.CutAfter, a.written, len(b)); due {
		if err := a.pass(b[:n], &total); err != nil {
			return total, err
		}
		a.drop()
		return total, errCut
	}
	err := a.pass(b, &total)
	return total, err
}

// pass sends bytes, in steps of a twentieth of a second if they are throttled.
func (a *answer) pass(b []byte, total *int) error {
	step := len(b)
	slow := a.injection.fault.BytesPerSecond
	if slow > 0 {
		step = max(slow/20, 1)
	}
	for len(b) > 0 {
		if slow > 0 && a.written > 0 && !a.pause(time.After(time.Second/20)) {
			return errCut
		}
		n, err := a.ResponseWriter.Write(b[:min(step, len(b))])
		a.written += int64(n)
		*total += n
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// pause flushes what was written so far and waits as [Injection.wait] does.
func (a *answer) pause(until <-chan time.Time) bool {
	_ = http.NewResponseController(a.ResponseWriter).Flush()
	return a.injection.wait(a.request, until)
}

// due reports whether a limit falls into the next length bytes, and where.
func due(limit, written int64, length int) (at int, ok bool) {
	switch {
	case limit == 0:
		return 0, false
	case limit == AfterHeader:
		limit = 0
	}
	if left := limit - written; left <= int64(length) {
		return int(max(left, 0)), true
	}
	return 0, false
}

// drop ends the connection in the style of the fault, after what has been written.
func (a *answer) drop() {
	a.ended = true
	style := a.injection.fault.Cut
	if a.started {
		_ = http.NewResponseController(a.ResponseWriter).Flush()
		if style == CutClean {
			return
		}
	}
	dropConn(connOf(a.request), style)
}

// dropConn closes the connection underneath the HTTP server, whose handling then ends.
func dropConn(conn net.Conn, style CutStyle) {
	if conn == nil {
		return
	}
	// Closing the TLS layer would send an alert first, and wait for a blocked writer.
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && style == CutReset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// blackHole discards the response of a request.
type blackHole struct{ header http.Header }

func newBlackHole() *blackHole { return &blackHole{header: http.Header{}} }

// Header returns a header that is never sent.
func (b *blackHole) Header() http.Header { return b.header }

// Write discards p.
func (b *blackHole) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader discards the status.
func (b *blackHole) WriteHeader(int) {}

// Flush does nothing.
func (b *blackHole) Flush() {}
