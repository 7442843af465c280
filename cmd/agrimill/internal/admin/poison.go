package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
)

const (
	defaultPageSize = 25
	maxPageSize     = 100
	maxReplayIDs    = 100
	// maxPreview is the largest payload that is looked into.
	maxPreview = 64 << 20
	// listTimeout bounds reading the queue, which takes a request per message. maxListings
	// bounds the number of concurrent readers.
	listTimeout = 10 * time.Second
	maxListings = 2
)

// errStopping is why a replay is interrupted.
var errStopping = errors.New("agrimill is stopping")

func (s *Server) servePoison(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	offset, err1 := number(query.Get("offset"), 0, 0, 1<<31-1)
	limit, err2 := number(query.Get("limit"), defaultPageSize, 1, maxPageSize)
	if err1 != nil || err2 != nil {
		writeProblem(w, http.StatusBadRequest, fmt.Sprintf("offset must be a number from 0, limit a number from 1 to %d", maxPageSize))
		return
	}
	s.list(w, r, func(ctx context.Context, store router.PoisonStore, filter poisonFilter) (any, error) {
		return poisonPage(ctx, store, offset, limit, filter)
	})
}

// list answers with what read finds in the queue, among what the parameters select.
func (s *Server) list(w http.ResponseWriter, r *http.Request, read func(context.Context, router.PoisonStore, poisonFilter) (any, error)) {
	store := s.source.PoisonStore()
	if store == nil {
		writeProblem(w, http.StatusNotFound, noQueue)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	select {
	case s.listing <- struct{}{}:
		defer func() { <-s.listing }()
	case <-ctx.Done():
		writeProblem(w, http.StatusServiceUnavailable, "the poison queue is being read by other requests; try again")
		return
	}
	query := r.URL.Query()
	filter := poisonFilter{group: query.Get("group"), text: query.Get("q"), tenant: query.Get("tenant"), endpoint: query.Get("endpoint")}
	switch answer, err := read(ctx, store, filter); {
	case errors.Is(err, router.ErrNotInQueue):
		writeProblem(w, http.StatusNotFound, err.Error())
	case err != nil:
		writeProblem(w, http.StatusBadGateway, redact(err))
	default:
		writeJSON(w, http.StatusOK, answer)
	}
}

const noQueue = "there is no poison queue whose messages can be listed"

func number(text string, whenEmpty, least, most int) (int, error) {
	if text == "" {
		return whenEmpty, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && (n < least || n > most) {
		err = strconv.ErrRange
	}
	return n, err
}

func poisonPage(ctx context.Context, store router.PoisonStore, offset, limit int, filter poisonFilter) (PoisonPage, error) {
	page := PoisonPage{Offset: offset, Messages: []PoisonedRecord{}}
	place := 0
	for poisoned, err := range store.Messages(ctx) {
		if err != nil {
			return page, err
		}
		record := PoisonedRecord{}
		if filter != (poisonFilter{}) || place >= offset {
			record = NewPoisonedRecord(poisoned)
		}
		if !filter.match(record) {
			continue
		}
		if len(page.Messages) == limit {
			page.More = true
			return page, nil
		}
		if place >= offset {
			page.Messages = append(page.Messages, record)
		}
		place++
	}
	return page, nil
}

// NewPoisonedRecord returns what is shown of a poisoned message in lists.
func NewPoisonedRecord(p router.Poisoned) PoisonedRecord {
	meta := p.Message.Metadata
	_, ours := router.ParsePoisoned(p.Message)
	record := PoisonedRecord{
		ID: p.ID, Route: p.Route, Topic: p.Topic, Reason: p.Reason, Class: p.Class, UUID: p.Message.UUID,
		MessageType: meta[gateway.KeyMessageType], Tenant: meta[gateway.KeyTenantID],
		Endpoint: meta[gateway.KeyReceivingEndpointID], Filename: meta[gateway.KeyFilename],
		Size: int64(len(p.Message.Payload)), PayloadMode: meta[gateway.KeyPayloadMode], Attempts: p.Attempts, Count: p.Count, First: p.First, Last: p.Last,
		Foreign: !ours, Unreadable: p.Unreadable,
	}
	if record.PayloadMode != "" {
		record.Size = -1
		if size, err := strconv.ParseInt(meta[gateway.KeyPayloadSize], 10, 64); err == nil && size >= 0 {
			record.Size = size
		}
	}
	return record
}

// servePoisonContents tells what is in the payload of a poisoned message.
func (s *Server) servePoisonContents(w http.ResponseWriter, r *http.Request) {
	if !s.authorized(w, r, "preview") {
		return
	}
	id := r.URL.Query().Get("id")
	s.list(w, r, func(ctx context.Context, store router.PoisonStore, _ poisonFilter) (any, error) {
		return s.contents(ctx, store, id)
	})
}

func (s *Server) contents(ctx context.Context, store router.PoisonStore, id string) (PoisonContents, error) {
	poisoned, err := store.Get(ctx, id)
	if err != nil {
		return PoisonContents{}, err
	}
	msg := poisoned.Message.Copy()
	msg.SetContext(ctx)
	contents := PoisonContents{Metadata: shownMetadata(msg)}
	err = s.look(ctx, msg, &contents)
	return contents, err
}

// shownMetadata returns the metadata of a message as it is shown.
func shownMetadata(msg *message.Message) map[string]string {
	shown := maps.Clone(map[string]string(msg.Metadata))
	if shown[router.KeyPoisonReason] != "" {
		poisoned, _ := router.ParsePoisoned(msg)
		shown[router.KeyPoisonReason] = poisoned.Reason
	}
	delete(shown, gateway.KeyPayloadReference) // it may be an address
	return shown
}

// look finds out what is in the payload of a message.
func (s *Server) look(ctx context.Context, msg *message.Message, contents *PoisonContents) error {
	read := farm.ReadConfig{MaxBytes: maxPreview, MaxTime: listTimeout, Payloads: s.source.Payloads()}
	if devices := s.source.Devices(); devices != nil {
		read.Devices = devices.ReadOnly()
	}
	inspector, err := farm.NewInspector(read)
	if err != nil {
		return err
	}
	summary, err := inspector.Summarize(msg)
	if errors.Is(err, farm.ErrUnreadable) {
		data, more, failure := s.head(ctx, msg)
		if failure != nil {
			return failure
		}
		preview := newPreview(data, more)
		contents.Line, contents.Preview = redact(err), &preview
		return nil
	}
	if err != nil {
		return err
	}
	var picture strings.Builder
	if err := summary.WriteSVG(&picture); err != nil {
		return err
	}
	contents.Line, contents.Summary, contents.SVG = summary.Line(), summary, picture.String()
	return nil
}

func (s *Server) replayPoisoned(w http.ResponseWriter, r *http.Request) {
	s.changeQueue(w, r, "replay", "admin: poisoned messages replayed", s.replay)
}

func (s *Server) dropPoisoned(w http.ResponseWriter, r *http.Request) {
	s.changeQueue(w, r, "drop", "admin: poisoned messages dropped", s.drop)
}

// changeQueue does something to messages of the queue, and logs who asked for it, what was asked
// for, and what became of it.
func (s *Server) changeQueue(w http.ResponseWriter, r *http.Request, what, done string, change func(context.Context, []string) ReplayResponse) {
	if !s.authorized(w, r, what) {
		return
	}
	ids, status, err := replayIDs(r)
	if err != nil {
		writeProblem(w, status, err.Error())
		return
	}
	store := s.source.PoisonStore()
	if store == nil {
		writeProblem(w, http.StatusNotFound, noQueue)
		return
	}
	select {
	case s.replaying <- struct{}{}:
		defer func() { <-s.replaying }()
	default:
		writeProblem(w, http.StatusConflict, "another replay or drop is in progress")
		return
	}
	// The response may take as long as the replay. A writer without deadlines has none to
	// extend.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.config.ReplayTimeout + writeTimeout))
	ctx, interrupt := context.WithCancelCause(r.Context())
	defer interrupt(nil)
	defer context.AfterFunc(s.background, func() { interrupt(errStopping) })()
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.ReplayTimeout,
		fmt.Errorf("not finished within %s", s.config.ReplayTimeout))
	defer cancel()
	response := change(ctx, ids)
	outcomes := make(map[ReplayOutcome]int)
	for _, result := range response.Results {
		outcomes[result.Outcome]++
	}
	log := s.log
	if user := s.access.user(r); user != "" {
		log = log.With("user", capText(user, 256))
	}
	log.Info(done, "remote", r.RemoteAddr, "forwarded_for", capText(r.Header.Get("X-Forwarded-For"), 256), "ids", capText(strings.Join(ids, " "), 4096),
		"asked", len(ids), "tried", len(response.Results), "outcomes", fmt.Sprint(outcomes), "error", response.Error)
	writeJSON(w, http.StatusOK, response)
}

// capText bounds what somebody else wrote before it is logged.
func capText(text string, longest int) string {
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// drop deletes messages for good, until one cannot be.
func (s *Server) drop(ctx context.Context, ids []string) ReplayResponse {
	response := ReplayResponse{Results: []ReplayResult{}}
	store := s.source.PoisonStore()
	if store == nil {
		response.Error = "the poison queue is no longer there"
		return response
	}
	err := DropEach(ctx, store, ids, func(result ReplayResult) { response.Results = append(response.Results, result) })
	response.Error = redact(err)
	return response
}

// DropEach deletes messages one after the other, and reports each that is gone. The error is why the rest are still there; it is the
// cause of ctx once that has ended.
func DropEach(ctx context.Context, store router.PoisonStore, ids []string, report func(ReplayResult)) error {
	for _, id := range ids {
		result := ReplayResult{ID: id, Outcome: ReplayDropped}
		switch err := store.Delete(ctx, id); {
		case errors.Is(err, router.ErrNotInQueue):
			result.Outcome = ReplayGone
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		report(result)
	}
	return nil
}

// replayIDs reads the body. The error is suitable for the client.
func replayIDs(r *http.Request) (ids []string, status int, err error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("the body must be application/json")
	}
	var request ReplayRequest
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body exceeds %d bytes", tooLarge.Limit)
		}
		return nil, http.StatusBadRequest, errors.New(`the body must look like {"ids": ["1", "2"]}`)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, http.StatusBadRequest, errors.New("the body must be a single JSON object")
	}
	seen := make(map[string]bool)
	for _, id := range request.IDs {
		if id == "" || seen[id] {
			return nil, http.StatusBadRequest, errors.New("the IDs must be unique and not empty")
		}
		seen[id] = true
	}
	if len(request.IDs) == 0 || len(request.IDs) > maxReplayIDs {
		return nil, http.StatusBadRequest, fmt.Errorf("between 1 and %d IDs are required", maxReplayIDs)
	}
	return request.IDs, http.StatusOK, nil
}

func (s *Server) replay(ctx context.Context, ids []string) ReplayResponse {
	response := ReplayResponse{Results: []ReplayResult{}}
	err := ReplayEach(ctx, s.source, ids, func(result ReplayResult) { response.Results = append(response.Results, result) })
	response.Error = redact(err)
	return response
}

// ReplayEach replays messages one by one, so that each has its own outcome, and passes the
// outcomes to report. It stops at the first error that would affect further messages, too,
// and returns it; that message and those after it stay in the queue. If ctx has ended, the
// error is its cause.
func ReplayEach(ctx context.Context, replayer Replayer, ids []string, report func(ReplayResult)) error {
	for _, id := range ids {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		replayed, err := replayer.Replay(ctx, []string{id})
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
