package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// readyFor is how long a response of /readyz is reused without new checks.
const readyFor = time.Second

// graceForChecks is how much longer than their timeout the checks may take before the
// response is sent without them.
const graceForChecks = 250 * time.Millisecond

// pipelineCheck is the name of the check that the server adds itself, unless the source
// provides it.
const pipelineCheck = "pipeline"

// serveHealth reports the health of the process: a restart helps only if the pipeline has
// ended, not if something else is down.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.source.Live(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		if !s.tells(r) {
			_, _ = fmt.Fprintln(w, "the pipeline stopped")
			return
		}
		_, _ = fmt.Fprintf(w, "the pipeline stopped: %s\n", redact(err))
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func (s *Server) serveReadiness(w http.ResponseWriter, r *http.Request) {
	result := s.ready(r.Context())
	status := http.StatusOK
	if !result.Ready {
		status = http.StatusServiceUnavailable
	}
	if !s.tells(r) {
		result.Checks, result.Sentence = []Check{}, ""
	}
	writeJSON(w, status, result)
}

// readiness keeps the newest run of the checks.
type readiness struct {
	mu     sync.Mutex
	newest *readinessRun
}

type readinessRun struct {
	// done is closed when result is set.
	done   chan struct{}
	result Readiness
}

// ready returns a result that is at most readyFor old. Concurrent requests share one run of
// the checks.
func (s *Server) ready(ctx context.Context) Readiness {
	run := s.readinessRun()
	timer := time.NewTimer(s.config.CheckTimeout + graceForChecks)
	defer timer.Stop()
	select {
	case <-run.done:
		return run.result
	case <-timer.C:
	case <-ctx.Done():
	}
	return Readiness{CheckedAt: s.config.Now(), Checks: []Check{{
		Name: "checks", Message: fmt.Sprintf("not finished within %s", s.config.CheckTimeout),
	}}}
}

func (s *Server) readinessRun() *readinessRun {
	s.readiness.mu.Lock()
	defer s.readiness.mu.Unlock()
	if run := s.readiness.newest; run != nil && !s.outdated(run) {
		return run
	}
	run := &readinessRun{done: make(chan struct{})}
	s.readiness.newest = run
	// Ends with its timeout or with the background; Close waits for it.
	s.running.Go(func() {
		defer close(run.done)
		ctx, cancel := context.WithTimeout(s.background, s.config.CheckTimeout)
		defer cancel()
		run.result = s.check(ctx)
	})
	return run
}

func (s *Server) outdated(run *readinessRun) bool {
	select {
	case <-run.done:
		return s.config.Now().Sub(run.result.CheckedAt) >= readyFor
	default:
		return false
	}
}

func (s *Server) check(ctx context.Context) Readiness {
	checks := s.source.Ready(ctx)
	if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == pipelineCheck }) {
		checks = append([]Check{s.checkPipeline()}, checks...)
	}
	return Readiness{
		Sentence:  s.status().Verdict.Sentence,
		Ready:     !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK }),
		Checks:    checks,
		CheckedAt: s.config.Now(),
	}
}

// checkPipeline fails before the pipeline takes messages, when it no longer does, and when it
// will not recover by itself. Routes that are replaced by a reload, and outages, have their own
// checks.
func (s *Server) checkPipeline() Check {
	status, own := s.status(), s.source.Snapshot().State
	check := Check{Name: pipelineCheck, Message: string(status.State)}
	check.OK = status.Error == "" && own != StateStarting && own != StateDraining && own != StateStopped
	if status.Error != "" {
		check.Message = status.Error
	}
	return check
}
