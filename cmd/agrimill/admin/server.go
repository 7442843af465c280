package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the server. A replay may take longer, see replayPoisoned, and package pprof
// extends its own deadline.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
	maxBodyBytes      = 64 << 10
)

// Server serves the pages and probes of one pipeline.
type Server struct {
	config   Config
	source   Source
	log      *slog.Logger
	listener net.Listener
	handler  http.Handler
	token    *token

	// background ends with Close; running counts the goroutines under it.
	background context.Context
	stop       context.CancelFunc
	running    sync.WaitGroup

	readiness readiness
	listing   chan struct{} // one entry for each poison list that is being read
	replaying chan struct{} // one entry while a replay runs
	tracing   chan struct{} // one entry while the journal is searched
}

// New listens on config.Address and returns a Server that serves requests once Serve is
// called. A Server that is not served must be closed with Close. The error matches
// ErrConfig, or is that of listening.
func New(config Config, source Source) (*Server, error) {
	if source == nil {
		return nil, fmt.Errorf("%w: the source is nil", ErrConfig)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	s := &Server{
		config: config, source: source, log: config.Logger, token: newToken(string(config.Token), config.Now),
		listing: make(chan struct{}, maxListings), replaying: make(chan struct{}, 1), tracing: make(chan struct{}, 1),
	}
	s.background, s.stop = context.WithCancel(context.Background())
	listener, err := (&net.ListenConfig{}).Listen(s.background, "tcp", config.Address)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("admin: %w", err)
	}
	s.listener = listener
	s.handler = s.newHandler()
	return s, nil
}

// Addr is the address that the server listens on, with the port that was picked.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve serves requests until ctx ends, waits for those in progress for at most
// Config.ShutdownTimeout, and closes the Server. It then returns nil, or the error that
// prevented it from serving. It can be called once.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.log.Info("admin: serving", "address", s.Addr(), "replay", s.token.configured(), "pprof", s.config.PProf)
	if !s.onLoopback() {
		s.log.Warn("admin: the address is not on loopback: anyone who can reach it sees names, states and errors of this agrimill",
			"address", s.Addr())
	}
	served := make(chan error, 1)
	// Ends when the server is shut down or closed below.
	go func() { served <- server.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("admin: %w", err)
	case <-ctx.Done():
		// A replay would outlast ShutdownTimeout.
		s.stop()
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownTimeout)
		defer cancel()
		if server.Shutdown(timed) != nil {
			// Affects only clients that did not read their responses in time.
			_ = server.Close()
		}
		if err = <-served; errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
	}
	return errors.Join(err, s.Close())
}

// Close frees the address of a Server that is not being served. It is idempotent.
func (s *Server) Close() error {
	s.stop()
	err := s.listener.Close()
	s.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) onLoopback() bool {
	addr, ok := s.listener.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// newHandler returns all handlers behind the checks that apply to every request.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.serveHealth)
	mux.HandleFunc("GET /readyz", s.serveReadiness)
	mux.HandleFunc("GET /api/status", s.serveStatus)
	mux.HandleFunc("GET /api/tenants", s.serveTenants)
	mux.HandleFunc("GET /api/poison", s.servePoison)
	mux.HandleFunc("GET /api/poison/contents", s.servePoisonContents)
	mux.HandleFunc("POST /api/poison/replay", s.replayPoisoned)
	mux.HandleFunc("POST /api/poison/drop", s.dropPoisoned)
	mux.HandleFunc("GET /api/poison/groups", s.servePoisonGroups)
	mux.HandleFunc("GET /api/poison/ids", s.servePoisonIDs)
	mux.HandleFunc("GET /api/trace", s.serveTrace)
	mux.HandleFunc("GET /api/why", s.serveWhy)
	servePage(mux)
	if s.config.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.config.Gatherer, promhttp.HandlerOpts{
			// One broken collector must not break the others.
			ErrorHandling: promhttp.ContinueOnError,
			ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelError),
			// Scrapes that pile up are rejected.
			MaxRequestsInFlight: 4, Timeout: writeTimeout / 2,
		}))
	}
	if s.config.PProf {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	var handler http.Handler = mux
	handler = http.MaxBytesHandler(handler, maxBodyBytes)
	// Browsers send the origin of a request; other clients have no cookies to abuse.
	handler = http.NewCrossOriginProtection().Handler(handler)
	handler = s.checkHost(handler)
	return secureHeaders(handler)
}
