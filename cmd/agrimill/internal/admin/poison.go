package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	defaultPageSize = 25
	maxPageSize     = 100
	// maxPreview is the largest payload that is looked into.
	maxPreview = 64 << 20
	// listTimeout bounds reading the queue, which takes a request per message. maxListings
	// bounds the number of concurrent readers.
	listTimeout = 10 * time.Second
	maxListings = 2
)

func (s *Server) poison(r *http.Request) (any, error) {
	query := r.URL.Query()
	offset, err1 := number(query.Get("offset"), 0, 0, 1<<31-1)
	limit, err2 := number(query.Get("limit"), defaultPageSize, 1, maxPageSize)
	if err1 != nil || err2 != nil {
		return nil, badRequest("offset must be a number from 0, limit a number from 1 to %d", maxPageSize)
	}
	return s.list(r, func(ctx context.Context, store router.PoisonStore, filter poisonFilter) (any, error) {
		return poisonPage(ctx, store, offset, limit, filter)
	})
}

// list returns what read finds in the queue, among what the parameters select.
func (s *Server) list(r *http.Request, read func(context.Context, router.PoisonStore, poisonFilter) (any, error)) (any, error) {
	store := s.source.PoisonStore()
	if store == nil {
		return nil, errNoQueue
	}
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	if s.listing.Acquire(ctx, 1) != nil {
		return nil, problem{status: http.StatusServiceUnavailable, Text: "the poison queue is being read by other requests; try again"}
	}
	defer s.listing.Release(1)
	query := r.URL.Query()
	filter := poisonFilter{group: query.Get("group"), text: query.Get("q"), tenant: query.Get("tenant"), endpoint: query.Get("endpoint")}
	found, err := read(ctx, store, filter)
	if errors.Is(err, router.ErrNotInQueue) {
		err = problem{status: http.StatusNotFound, Text: err.Error()}
	}
	return found, err
}

var errNoQueue = problem{status: http.StatusNotFound, Text: "there is no poison queue whose messages can be listed"}

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
	if received, ok := isotime.Parse([]byte(meta[subscriber.KeyQuarantineReceived])); ok { // the quarantine is in the queue, too
		record.First, record.Last = received, received
		record.MessageType = cmp.Or(record.MessageType, meta[subscriber.KeyQuarantineEventType])
		record.Tenant = cmp.Or(record.Tenant, meta[subscriber.KeyQuarantineTenantID])
		record.Endpoint = cmp.Or(record.Endpoint, meta[subscriber.KeyQuarantineEndpointID])
	}
	if record.PayloadMode != "" {
		record.Size = -1
		if size, err := strconv.ParseInt(meta[gateway.KeyPayloadSize], 10, 64); err == nil && size >= 0 {
			record.Size = size
		}
	}
	return record
}

func (s *Server) poisonContents(r *http.Request) (any, error) {
	id := r.URL.Query().Get("id")
	return s.list(r, func(ctx context.Context, store router.PoisonStore, _ poisonFilter) (any, error) {
		poisoned, err := store.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		msg := poisoned.Message.Copy()
		msg.SetContext(ctx)
		contents := PoisonContents{Metadata: shownMetadata(msg)}
		err = s.look(ctx, msg, &contents)
		return contents, err
	})
}

func shownMetadata(msg *message.Message) map[string]string {
	shown := maps.Clone(map[string]string(msg.Metadata))
	if shown[router.KeyPoisonReason] != "" {
		poisoned, _ := router.ParsePoisoned(msg)
		shown[router.KeyPoisonReason] = poisoned.Reason
	}
	delete(shown, gateway.KeyPayloadReference) // it may be an address
	return shown
}

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
		contents.Line, contents.Preview = redact(NotFarmData(err)), &preview
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
