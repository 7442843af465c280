package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/semaphore"
)

// Limits of the server. Package pprof extends its own deadline.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 60 * time.Second
	shutdownTimeout   = 5 * time.Second // for requests in progress
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
	access   *access
	tls      *certificates // nil: HTTP

	// background ends with Close.
	background context.Context
	stop       context.CancelFunc

	listing *semaphore.Weighted // one for each poison list that is being read
	tracing *semaphore.Weighted // one while the journal is searched
	looking *semaphore.Weighted // one for each stored message that is being read
	jobs    jobs
}

// New listens on config.Address. The Server must be served with Serve, or closed with Close. The error matches ErrConfig, or is
// that of listening.
func New(config Config, source Source) (*Server, error) {
	if source == nil {
		return nil, fmt.Errorf("%w: the source is nil", ErrConfig)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	s := &Server{
		config: config, source: source, log: config.Logger, access: newAccess(config),
		listing: semaphore.NewWeighted(maxListings), tracing: semaphore.NewWeighted(1), looking: semaphore.NewWeighted(maxLooks),
	}
	if config.TLS.Enabled() {
		s.tls = &certificates{files: config.TLS, log: config.Logger}
		if err := s.tls.load(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s.background, s.stop = ctx, func() { stop(errStopping) }
	listener, err := (&net.ListenConfig{}).Listen(s.background, "tcp", config.Address)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the status page (admin.address): %w", err)
	}
	s.listener = listener
	s.handler = s.newHandler()
	return s, nil
}

// Addr is the address that the server listens on, with the port that was picked.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve serves requests until ctx ends, waits for those in progress for at most five seconds, and closes the Server. The error
// is what prevented it from serving. It can be called once.
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
	s.log.Info("admin: serving", "address", s.Addr(), "tls", s.tls != nil, "protected", s.access.protected(),
		"replay", s.access.writes(), "pprof", s.config.PProf)
	if !s.onLoopback() {
		if !s.access.protected() {
			s.log.Warn("admin: the address is not on loopback: anyone who can reach it sees names, states and errors of this agrimill; "+
				"set admin.read_token or admin.user_header, or restrict who can reach it", "address", s.Addr())
		}
		if s.tls == nil && (s.config.Token != "" || s.config.ReadToken != "") {
			s.log.Warn("admin: the address is not on loopback, and tokens are sent in plain text: set admin.tls, or have a reverse proxy do it", "address", s.Addr())
		}
	}
	served := make(chan error, 1)
	// Ends when the server is shut down or closed below.
	go func() {
		if s.tls == nil {
			served <- server.Serve(s.listener)
			return
		}
		server.TLSConfig = s.tls.config()
		served <- server.ServeTLS(s.listener, "", "")
	}()
	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("admin: %w", err)
	case <-ctx.Done():
		s.stop()
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(timed) != nil {
			// Affects only clients that did not read their responses in time.
			_ = server.Close()
		}
		s.jobs.wait(timed)
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
	// The page itself tells nothing.
	servePage(mux)
	read := func(pattern string, find answer, parameters ...string) {
		mux.Handle(pattern, guarded(find, s.reading, knowing(parameters)))
	}
	read("GET /api/status", s.statusOf, "tenant", "endpoint")
	read("GET /api/tenants", s.tenants)
	read("GET /api/waiting", s.waiting, "tenant", "endpoint")
	read("GET /api/poison", s.poison, "offset", "limit", "group", "q", "tenant", "endpoint")
	read("GET /api/poison/groups", s.poisonGroups, "group", "q", "tenant", "endpoint")
	read("GET /api/trace", s.trace, "q", "limit", "tenant", "endpoint")
	read("GET /api/why", s.why, "tenant", "type", "from")
	read("GET /api/history", s.history, "range", "route", "tenant", "endpoint")
	read("GET /api/config", s.settings)
	mux.Handle("GET /api/poison/contents", guarded(answer(s.poisonContents), knowing([]string{"id"}), s.authorized("preview")))
	mux.Handle("GET /api/contents", guarded(answer(s.contents), knowing([]string{"id", "endpoint"}), s.authorized("preview")))
	for _, action := range []string{"replay", "drop"} {
		begin := answer(func(r *http.Request) (any, error) { return s.beginJob(r, action) })
		mux.Handle("POST /api/poison/"+action, guarded(begin, s.authorized(action)))
	}
	mux.Handle("POST /api/poison/stop", guarded(answer(s.stopJob), s.authorized("stop")))
	if s.config.Gatherer != nil {
		mux.Handle("GET /metrics", guarded(promhttp.HandlerFor(s.config.Gatherer, promhttp.HandlerOpts{
			// One broken collector must not break the others.
			ErrorHandling: promhttp.ContinueOnError,
			ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelError),
			// Scrapes that pile up are rejected.
			MaxRequestsInFlight: 4, Timeout: writeTimeout / 2,
		}), s.reading))
	}
	if s.config.PProf {
		for pattern, handler := range map[string]http.HandlerFunc{
			"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
		} {
			mux.Handle("GET /debug/pprof/"+pattern, guarded(handler, s.authorized("profile")))
		}
	}
	var handler http.Handler = mux
	handler = http.MaxBytesHandler(handler, maxBodyBytes)
	// Browsers send the origin of a request; other clients have no cookies to abuse.
	handler = http.NewCrossOriginProtection().Handler(handler)
	handler = s.checkHost(handler)
	return secureHeaders(handler)
}
