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

// Limits of the server. A replay may take longer to answer, see replayPoisoned,
// and package pprof extends its own time.
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

	// background ends with Close, and what runs under it is in running.
	background context.Context
	stop       context.CancelFunc
	running    sync.WaitGroup

	readiness readiness
	listing   chan struct{} // one entry for each poison list that is being read
	replaying chan struct{} // one entry while a replay runs
}

// New listens on config.Address and returns a Server that answers once Serve is
// called. Who does not call Serve calls Close. The error matches ErrConfig, or
// is that of listening.
func New(config Config, source Source) (*Server, error) {
	if source == nil {
		return nil, fmt.Errorf("%w: the source is nil", ErrConfig)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	s := &Server{
		config: config, source: source, log: config.Logger, token: newToken(config.Token, config.Now),
		listing: make(chan struct{}, maxListings), replaying: make(chan struct{}, 1),
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

// Serve answers requests until ctx ends, waits for those under way for at most
// Config.ShutdownTimeout, and closes the Server. It returns nil after that, or
// the error that kept it from serving. It can be called once.
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
		s.log.Warn("admin: the address is not on loopback: whoever reaches it sees names, states and errors of this bridge",
			"address", s.Addr())
	}
	served := make(chan error, 1)
	// Ends when the server is shut down or closed, which is below.
	go func() { served <- server.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("admin: %w", err)
	case <-ctx.Done():
		// A replay would outlast the time for the shutdown.
		s.stop()
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownTimeout)
		defer cancel()
		if server.Shutdown(timed) != nil {
			// Only those clients that did not take their answers in time.
			_ = server.Close()
		}
		if err = <-served; errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
	}
	return errors.Join(err, s.Close())
}

// Close frees the address of a Server that is not served. It is idempotent.
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

// newHandler returns everything behind the checks that hold for all requests.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.serveHealth)
	mux.HandleFunc("GET /readyz", s.serveReadiness)
	mux.HandleFunc("GET /api/status", s.serveStatus)
	mux.HandleFunc("GET /api/tenants", s.serveTenants)
	mux.HandleFunc("GET /api/poison", s.servePoison)
	mux.HandleFunc("POST /api/poison/replay", s.replayPoisoned)
	servePage(mux)
	if s.config.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.config.Gatherer, promhttp.HandlerOpts{
			// One broken collector does not take the others with it.
			ErrorHandling: promhttp.ContinueOnError,
			ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelError),
			// Scrapes that pile up are refused.
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
	// Browsers say where a request comes from; others have no cookies to abuse.
	handler = http.NewCrossOriginProtection().Handler(handler)
	handler = s.checkHost(handler)
	return secureHeaders(handler)
}
