package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agrimill/agrimill/router"
)

const (
	// maxJobIDs is how many messages a request can name; a selection has no limit.
	maxJobIDs = 100
	// maxJobResults is how many results a job keeps, so that each status can have them.
	maxJobResults = 20
)

// Why a job ended before all of its messages were tried.
var (
	errStopping = errors.New("agrimill is stopping")
	errStopped  = errors.New("stopped")
)

// PoisonJob is a replay or a drop of messages of the poison queue. There is one at a time, and it runs in the server: it goes on
// when whoever began it has left.
type PoisonJob struct {
	// Action is replay or drop.
	Action string `json:"action"`
	// Started is when it began, Ended when it was over; zero while it runs.
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	ReplayCounts
	// Results are those of the first 20 messages that are still in the queue, or were gone.
	Results []ReplayResult `json:"results"`
	// Error is why it ended before all were tried; empty if all were. What it did not try is in the queue.
	Error string `json:"error,omitempty"`
}

func (j *PoisonJob) add(result ReplayResult) {
	j.ReplayCounts.Add(result.Outcome)
	stays := result.Outcome == ReplayPoisoned || result.Outcome == ReplayKept || result.Outcome == ReplayGone
	if stays && len(j.Results) < maxJobResults {
		j.Results = append(j.Results, result)
	}
}

// ReplayCounts are messages that were selected for a replay or drop, and what became of them.
type ReplayCounts struct {
	Selected  int `json:"selected"`
	Delivered int `json:"delivered"`
	Duplicate int `json:"duplicate"`
	Poisoned  int `json:"poisoned"`
	Kept      int `json:"kept"`
	Gone      int `json:"gone"`
	Dropped   int `json:"dropped,omitzero"`
}

// Add counts a message.
func (c *ReplayCounts) Add(outcome ReplayOutcome) {
	switch outcome {
	case ReplayDelivered:
		c.Delivered++
	case ReplayDuplicate:
		c.Duplicate++
	case ReplayPoisoned:
		c.Poisoned++
	case ReplayKept:
		c.Kept++
	case ReplayGone:
		c.Gone++
	case ReplayDropped:
		c.Dropped++
	}
}

// Tried is how many messages were tried.
func (c *ReplayCounts) Tried() int {
	return c.Delivered + c.Duplicate + c.Poisoned + c.Kept + c.Gone + c.Dropped
}

// PoisonSelection is the body of POST /api/poison/replay and /api/poison/drop. It is either IDs, or at least one of the others: what
// is left out must not select everything.
type PoisonSelection struct {
	// IDs are those of the records, 1 to 100 distinct ones.
	IDs []string `json:"ids,omitempty"`
	// All selects every message, unless Group, Text, Tenant or Endpoint, which are those of GET /api/poison, select fewer.
	All      bool   `json:"all,omitempty"`
	Group    string `json:"group,omitempty"`
	Text     string `json:"q,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	// First is how many of them at most, the oldest ones; 0 is all.
	First int `json:"first,omitempty"`
}

func (p *PoisonSelection) validate() error {
	others := p.All || p.filter() != poisonFilter{}
	if p.First < 0 || others == (len(p.IDs) > 0) || len(p.IDs) > maxJobIDs || len(p.IDs) > 0 && p.First > 0 {
		return badRequest(`either "ids" (1 to %d), or at least one of "all": true, "group", "q", "tenant", "endpoint", and with them "first" (from 1)`, maxJobIDs)
	}
	seen := make(map[string]bool)
	for _, id := range p.IDs {
		if id == "" || seen[id] {
			return badRequest("the IDs must be unique and not empty")
		}
		seen[id] = true
	}
	return nil
}

func (p *PoisonSelection) filter() poisonFilter {
	return poisonFilter{group: p.Group, text: p.Text, tenant: p.Tenant, endpoint: p.Endpoint}
}

// ids returns the IDs of the messages that are selected now. What no router wrote can be dropped, and not replayed.
func (p *PoisonSelection) ids(ctx context.Context, store router.PoisonStore, replay bool) (ids []string, err error) {
	if len(p.IDs) > 0 {
		return p.IDs, nil
	}
	filter := p.filter()
	for poisoned, err := range store.Messages(ctx) {
		if err != nil {
			return nil, err
		}
		if record := NewPoisonedRecord(poisoned); !filter.match(record) || replay && record.Foreign {
			continue
		}
		if ids = append(ids, poisoned.ID); len(ids) == p.First {
			break
		}
	}
	return ids, nil
}

type jobs struct {
	mu     sync.Mutex
	latest *PoisonJob
	stop   context.CancelCauseFunc // of the latest
	ended  chan struct{}           // closed when the latest has ended
}

// now returns a copy of the latest job, nil if there was none.
func (j *jobs) now() *PoisonJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.latest == nil {
		return nil
	}
	return new(*j.latest)
}

// begin takes the place of the latest job, unless that runs.
func (j *jobs) begin(ctx context.Context, job *PoisonJob) (context.Context, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if ctx.Err() != nil || j.latest != nil && j.latest.Ended.IsZero() {
		return nil, false
	}
	ctx, j.stop = context.WithCancelCause(ctx)
	j.latest, j.ended = job, make(chan struct{})
	return ctx, true
}

func (j *jobs) wait(ctx context.Context) {
	j.mu.Lock()
	ended := j.ended
	j.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func (s *Server) beginJob(r *http.Request, action string) (any, error) {
	selection, err := readSelection(r)
	if err != nil {
		return nil, err
	}
	store := s.source.PoisonStore()
	if store == nil {
		return nil, errNoQueue
	}
	job := &PoisonJob{Action: action, Started: s.config.Now(), Results: []ReplayResult{}}
	ctx, begun := s.jobs.begin(s.background, job)
	if !begun {
		return nil, problem{status: http.StatusConflict, Text: "another replay or drop is in progress"}
	}
	log := s.log
	if user := s.access.user(r); user != "" {
		log = log.With("user", capText(user, 256))
	}
	asked, _ := json.Marshal(selection) // strings and numbers
	log = log.With("remote", r.RemoteAddr, "forwarded_for", capText(r.Header.Get("X-Forwarded-For"), 256), "asked", capText(string(asked), 4096))
	log.Info("admin: a " + action + " of poisoned messages begins")
	go func() { // ends with s.background
		err := s.runJob(ctx, job, selection, store)
		s.source.CountPoisoned(s.background) // who sees the end sees what is left
		s.jobs.mu.Lock()
		defer s.jobs.mu.Unlock()
		job.Ended, job.Error = s.config.Now(), redact(err)
		log.Info("admin: poisoned messages "+map[string]string{"replay": "replayed", "drop": "dropped"}[action], "selected", job.Selected, "tried", job.Tried(),
			"delivered", job.Delivered, "duplicate", job.Duplicate, "poisoned", job.Poisoned, "kept", job.Kept, "gone", job.Gone, "dropped", job.Dropped,
			"duration", job.Ended.Sub(job.Started), "error", job.Error)
		s.jobs.stop(nil)
		close(s.jobs.ended)
	}()
	return s.jobs.now(), nil
}

// runJob replays or drops what is selected, from the queue that there was at first: another, after a reload, may have the same IDs.
func (s *Server) runJob(ctx context.Context, job *PoisonJob, selection PoisonSelection, store router.PoisonStore) error {
	ids, err := selection.ids(ctx, store, job.Action == "replay")
	if err != nil {
		return causeOr(ctx, err)
	}
	s.jobs.mu.Lock()
	job.Selected = len(ids)
	s.jobs.mu.Unlock()
	report := func(result ReplayResult) {
		s.jobs.mu.Lock()
		defer s.jobs.mu.Unlock()
		job.add(result)
	}
	if job.Action == "drop" {
		return DropEach(ctx, store, ids, report)
	}
	return ReplayEach(ctx, s.source, store, ids, report)
}

func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// stopJob ends the job that runs after the message that it is at.
func (s *Server) stopJob(*http.Request) (any, error) {
	s.jobs.mu.Lock()
	stop := s.jobs.stop
	s.jobs.mu.Unlock()
	if stop != nil {
		stop(errStopped)
	}
	return s.jobs.now(), nil
}

// capText bounds what somebody else wrote before it is logged or shown.
func capText(text string, longest int) string {
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// DropEach deletes messages one after the other, and reports each that is gone. The error is why the rest are still there; it is the
// cause of ctx once that has ended.
func DropEach(ctx context.Context, store router.PoisonStore, ids []string, report func(ReplayResult)) error {
	for _, id := range ids {
		result := ReplayResult{ID: id, Outcome: ReplayDropped}
		switch err := store.Delete(ctx, id); {
		case errors.Is(err, router.ErrNotInQueue):
			result.Outcome = ReplayGone
		case err != nil:
			return causeOr(ctx, err)
		}
		report(result)
	}
	return nil
}

func readSelection(r *http.Request) (selection PoisonSelection, err error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return selection, problem{status: http.StatusUnsupportedMediaType, Text: "the body must be application/json"}
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&selection); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return selection, problem{status: http.StatusRequestEntityTooLarge, Text: fmt.Sprintf("the body exceeds %d bytes", tooLarge.Limit)}
		}
		return selection, badRequest(`the body must look like {"ids": ["1", "2"]} or {"all": true, "first": 10}`)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return selection, badRequest("the body must be a single JSON object")
	}
	return selection, selection.validate()
}

// ReplayEach replays messages one by one, and reports the outcome of each. It stops at the first error that would affect further
// messages, too, which stay in the queue. If ctx has ended, the error is its cause.
func ReplayEach(ctx context.Context, replayer Replayer, queue router.PoisonStore, ids []string, report func(ReplayResult)) error {
	for _, id := range ids {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		replayed, err := replayer.Replay(ctx, queue, []string{id})
		result := ReplayResult{ID: id, Outcome: ReplayDelivered}
		switch {
		case errors.Is(err, router.ErrNotInQueue):
			result.Outcome = ReplayGone
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && router.ClassOf(err) == router.ClassPermanent:
			result.Outcome, result.Reason = ReplayKept, redact(err)
		case err != nil:
			return err
		case replayed.Partial > 0:
			result.Outcome = ReplayKept
			result.Reason = "some of its recipients have it, and would get it again; agrimill poison replay --force sends it to all"
		case replayed.Kept > 0:
			result.Outcome, result.Reason = ReplayKept, "no router wrote this message"
		case replayed.Poisoned > 0:
			result.Outcome, result.Reason = ReplayPoisoned, replayed.Reason
		case replayed.Duplicates > 0:
			result.Outcome = ReplayDuplicate
		}
		report(result)
	}
	return nil
}
