package gatewaytest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/memnet"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// TB is the part of testing.TB that [New] uses. It is declared here so that
// programs that use [Start] do not link package testing.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// ErrClosed is returned by the wait functions if the server was closed.
var ErrClosed = errors.New("gatewaytest: server closed")

// Server is the in-memory service. All methods are safe for concurrent use, except that
// those that can fail the test (see [New]) must be called from the test's goroutine.
type Server struct {
	cfg   Config
	tb    TB // nil with Start
	log   *slog.Logger
	clock clock
	// secret signs payload URIs.
	secret  []byte
	control http.Handler // nil without a control API
	replay  *replay      // nil without Config.Replay
	// handlers are those of the operations that need a token.
	handlers map[Operation]func(http.ResponseWriter, *request) error

	defaultApp    *Application
	defaultTenant string

	// mu guards everything below. Nothing is written to a client and no hook is called under it.
	mu sync.Mutex
	listening
	closed   chan struct{} // closed by Close
	sequence uint64
	registry
	tokens      map[string]token
	ledger      ledger
	faults      injections
	stats       map[Operation]*OperationStats
	madeClients []*gateway.Client // closed with the server
}

// listening is where and how the two listeners serve; tls and memory never change.
type listening struct {
	tls       *authority      // nil without TLS
	memory    *memnet.Network // nil without Config.InMemory
	run       *run            // nil while stopped
	addresses addresses
}

// addresses are where the two listeners are, or will be.
type addresses struct{ api, payload string }

// registry is who and what there is. The server's mu guards it.
type registry struct {
	applications     map[string]*Application // by ID
	applicationOrder []*Application
	clients          map[string]*Application // by client ID
	tenants          map[string]*tenant
	tenantOrder      []*tenant
	endpoints        map[string]*endpoint
	payloads         map[string]*payload // those with a payload_uri
}

func newRegistry() registry {
	return registry{
		applications: map[string]*Application{},
		clients:      map[string]*Application{},
		tenants:      map[string]*tenant{},
		endpoints:    map[string]*endpoint{},
		payloads:     map[string]*payload{},
	}
}

// injections are the faults that were injected, the oldest first.
type injections struct {
	list   []*Injection
	last   int // ID
	stalls int // active StallStreams calls
}

// New starts a server for a test and closes it when the test ends. A mistake in cfg, or later in the arguments of methods
// without an error result, fails the test.
func New(tb TB, cfg Config) *Server {
	tb.Helper()
	s, err := start(cfg, tb)
	if err != nil {
		tb.Fatalf("gatewaytest: %v", err)
		return nil
	}
	tb.Cleanup(s.Close)
	return s
}

// Start starts a server for a program, which must call [Server.Close]. Methods without an error result log mistakes in
// their arguments and do nothing.
func Start(cfg Config) (*Server, error) { return start(cfg, nil) }

func start(cfg Config, tb TB) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Server{
		cfg: cfg, tb: tb, log: cfg.Logger,
		secret:    make([]byte, 32),
		listening: listening{addresses: addresses{cfg.Listen, cfg.PayloadListen}},
		closed:    make(chan struct{}),
		registry:  newRegistry(),
		tokens:    map[string]token{},
		ledger:    ledger{index: map[entryKey]*entry{}},
		stats:     map[Operation]*OperationStats{},
	}
	s.handlers = map[Operation]func(http.ResponseWriter, *request) error{
		OpSendMessage: s.handleSendMessage, OpEvents: s.handleEvents, OpConfirm: s.handleConfirm, OpListTenants: s.handleListTenants,
		OpListEndpoints: s.handleListEndpoints, OpPutEndpoint: s.handlePutEndpoint, OpDeleteEndpoint: s.handleDeleteEndpoint,
	}
	_, _ = rand.Read(s.secret) // never fails (crypto/rand)
	if cfg.InMemory {
		s.memory = memnet.New()
	}
	if cfg.TLS {
		var err error
		protocols := []string{"http/1.1"}
		if cfg.HTTP2 {
			protocols = []string{"h2", "http/1.1"}
		}
		if s.tls, err = newAuthority(protocols, cfg.Certificate, cfg.Listen, cfg.PayloadListen); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	if cfg.ControlPrefix != "" {
		s.control = s.controlAPI()
	}
	if cfg.Replay != "" {
		recorded, err := readRecording(cfg.Replay, s.log)
		if err != nil {
			return nil, fmt.Errorf("recording: %w", err)
		}
		s.replay = &replay{recorded: recorded, played: map[string]int{}}
	}
	app, err := s.addApplication(cfg.Application)
	if err != nil {
		return nil, err
	}
	s.defaultApp = app
	s.defaultTenant = s.AddTenant()
	if err := s.authorize(app, s.defaultTenant, defaultScope); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

// BaseURL returns {base_url}: scheme, host and port of the service.
func (s *Server) BaseURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scheme() + s.addresses.api
}

// TokenURL returns the full URL of the token endpoint, {auth_url}/token.
func (s *Server) TokenURL() string { return s.BaseURL() + tokenPath }

// PayloadURL returns the base URL of the listener that serves payloads.
func (s *Server) PayloadURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scheme() + s.addresses.payload
}

// ServiceName returns the name used in the request headers.
func (s *Server) ServiceName() string { return s.cfg.ServiceName }

// Tenant returns the ID of the default tenant, which exists from the start.
func (s *Server) Tenant() string { return s.defaultTenant }

func (s *Server) scheme() string {
	if s.tls != nil {
		return "https://"
	}
	return "http://"
}

// Close stops the server permanently, ends all waits, and waits for its goroutines. It is idempotent.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.isClosed() {
		close(s.closed)
	}
	clients := s.madeClients
	s.madeClients = nil
	s.mu.Unlock()
	s.Stop()
	for _, client := range clients {
		_ = client.Close() // always nil
	}
}

func (s *Server) isClosed() bool {
	return wakeup.Raised(s.closed)
}

func (s *Server) helper() {
	if s.tb != nil {
		s.tb.Helper()
	}
}

// must reports a mistake by the caller of a method without an error result; nil is none.
func (s *Server) must(method string, err error) {
	s.helper()
	switch {
	case err == nil:
	case s.tb != nil:
		s.tb.Fatalf("gatewaytest: %s: %v", method, err)
	default:
		s.log.Error(fmt.Sprintf("gatewaytest: %s: %v", method, err))
	}
}

// run is one lifetime of the two listeners, from listen to Stop.
type run struct {
	api, payload *http.Server
	cancel       context.CancelFunc
	serving      sync.WaitGroup  // the two Serve goroutines
	handlers     *lifecycle.Life // those that are running
}

type connKey struct{}

// connOf returns the network connection of a request.
func connOf(r *http.Request) net.Conn {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	return conn
}

// listen opens both listeners, always on the same ports.
func (s *Server) listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed() {
		return ErrClosed
	}
	if s.run != nil {
		return nil
	}
	api, err := s.listener(s.addresses.api)
	if err != nil {
		return err
	}
	payload, err := s.listener(s.addresses.payload)
	if err != nil {
		_ = api.Close()
		return err
	}
	s.addresses = addresses{reachable(api.Addr()), reachable(payload.Addr())}
	if s.tls != nil {
		api, payload = tls.NewListener(api, s.tls.server), tls.NewListener(payload, s.tls.server)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{cancel: cancel, handlers: lifecycle.New()}
	r.api = s.httpServer(ctx, r, s.serveAPI)
	r.payload = s.httpServer(ctx, r, s.servePayload)
	s.run = r
	// Stop closes both servers and waits for these goroutines.
	r.serving.Go(func() { _ = r.api.Serve(api) })
	r.serving.Go(func() { _ = r.payload.Serve(payload) })
	return nil
}

// listener opens one of the listeners, on the network or in memory.
func (s *Server) listener(address string) (net.Listener, error) {
	if s.memory == nil {
		return net.Listen("tcp", address)
	}
	return s.memory.Listen(address)
}

func (s *Server) httpServer(ctx context.Context, r *run, handle http.HandlerFunc) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			// After Stop a handler that just returns would answer with 200 and nothing, or with
			// the proper end of half a body, if the connection is still open.
			if !r.handlers.Enter() {
				panic(http.ErrAbortHandler)
			}
			defer r.handlers.Leave()
			handle(w, req)
			if ctx.Err() != nil {
				panic(http.ErrAbortHandler)
			}
		}),
		ReadHeaderTimeout: time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// reachable converts an unspecified listening address into one that clients can dial.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
}

// Stop closes both listeners and drops every connection, like a crash of the service: unconfirmed messages are kept. It
// returns when no handler is running. On a stopped server it does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	r := s.run
	s.run = nil
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.handlers.Close(func() {
		r.cancel()
		_ = r.api.Close()
		_ = r.payload.Close()
		<-r.handlers.Idle()
		r.serving.Wait()
	})
}

// restartPatience is how long Restart waits for a port that another process has taken.
const restartPatience = 10 * time.Second

// Restart stops the server if it is running and starts it again on the same ports, with all its state. It waits for up to
// ten seconds for a port that another process has taken meanwhile.
func (s *Server) Restart() error {
	s.Stop()
	deadline := time.Now().Add(restartPatience)
	for {
		err := s.listen()
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
		pause := time.NewTimer(10 * time.Millisecond)
		select {
		case <-pause.C:
		case <-s.closed:
			pause.Stop()
			return ErrClosed
		}
	}
}

func newID() string { return uuid.NewString() }
