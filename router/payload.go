package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/sinks"
)

// maxInlinePayload is the largest payload in bytes that is fetched into a message that does not have it yet.
const maxInlinePayload = 1 << 20

// Errors of payloads. Their class is [ClassPermanent].
var (
	// ErrNoClaimCheck: the payload is too large to be in the message, and no
	// claim check is configured.
	ErrNoClaimCheck = Permanent(errors.New("no claim check is configured"))
	// ErrPayloadElsewhere: the payload is still with the service, and the
	// message was not delivered by a subscriber of this process, so there is
	// nothing to fetch it with.
	ErrPayloadElsewhere = Permanent(errors.New("the payload is with the service (" + gateway.KeyPayloadMode + ": " + gateway.PayloadModeLazy +
		") and the message does not come from a subscriber of this process: put payloads into the messages or into a claim check where they are received"))
	// ErrPayloadChanged: a stored payload is not the one that was stored.
	ErrPayloadChanged = Permanent(errors.New("the SHA-256 of the stored payload differs from that in the message"))
)

// describeFrom is the size in bytes from which a payload is held against the
// limit of the sink before it is published. It saves small ones the question; a
// sink with a lower limit says ErrTooLarge by itself.
const describeFrom = 64 << 10

// payloads moves payloads between messages, the service and the claim check.
type payloads struct {
	store gateway.ClaimCheck // nil: none
}

// located is where the payload of a message is now.
type located struct {
	data     []byte // in the message
	metadata message.Metadata
}

func (l *located) apply(m *message.Message) {
	m.Payload = l.data
	forgetReference(m.Metadata)
	for key, value := range l.metadata {
		m.Metadata[key] = value
	}
}

// forgetReference removes what tells that the payload is elsewhere.
func forgetReference(metadata message.Metadata) {
	delete(metadata, gateway.KeyPayloadMode)
	delete(metadata, gateway.KeyPayloadReference)
	delete(metadata, gateway.KeyPayloadSHA256)
}

// place makes sure that the message carries its payload or says where everybody finds it: one that is still with the
// service is fetched, into the message up to maxInlinePayload and the sink's limit (0: none), else into the claim check. d, which
// may be nil, remembers the result over attempts.
func (p payloads) place(ctx context.Context, d *delivery, m *message.Message, limit int64) error {
	mode := m.Metadata[gateway.KeyPayloadMode]
	switch {
	case mode == "":
		return nil
	case len(m.Payload) > 0:
		// A handler has given it a payload of its own.
		forgetReference(m.Metadata)
		m.Metadata[gateway.KeyPayloadSize] = strconv.Itoa(len(m.Payload))
		return nil
	case mode != gateway.PayloadModeLazy:
		return nil
	}
	fetched, err := remember(d, lazyPayload{}, func() (*located, error) {
		open := msgctx.PayloadOpener(ctx)
		if open == nil {
			return nil, ErrPayloadElsewhere
		}
		return p.fetch(ctx, open, "lazy/"+lazyKey(m), limit)
	})
	if err == nil {
		fetched.apply(m)
	}
	return err
}

// What a delivery remembers of payloads: that which was with the service, and those in the claim check, by their keys.
type (
	lazyPayload   struct{}
	storedPayload string
)

func (p payloads) fetch(ctx context.Context, open msgctx.Opener, key string, limit int64) (_ *located, err error) {
	payload, size, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening the payload: %w", sinkError(err))
	}
	defer func() { _ = payload.Close() }() // reading tells every error that matters
	inline := int64(maxInlinePayload)
	if limit > 0 {
		inline = min(inline, limit)
	}
	if size > inline || size < 0 && p.store != nil {
		if p.store == nil {
			return nil, tooLargeInline(size, inline)
		}
		return p.put(ctx, key, payload)
	}
	data, err := io.ReadAll(io.LimitReader(payload, inline+1))
	if err != nil {
		return nil, fmt.Errorf("reading the payload: %w", sinkError(err))
	}
	if int64(len(data)) > inline {
		return nil, tooLargeInline(-1, inline)
	}
	return &located{data: data, metadata: message.Metadata{gateway.KeyPayloadSize: strconv.Itoa(len(data))}}, nil
}

func tooLargeInline(size, limit int64) error {
	what := "the payload is"
	if size >= 0 {
		what = fmt.Sprintf("the payload of %d bytes is", size)
	}
	return fmt.Errorf("%s still with the service and above the %d bytes that are put into a message (the largest inline payload, or the limit of the sink): %w",
		what, limit, ErrNoClaimCheck)
}

func (p payloads) put(ctx context.Context, key string, r io.Reader) (*located, error) {
	metadata, _, err := payloadref.Put(ctx, p.store, key, r)
	if err != nil {
		return nil, fmt.Errorf("claim check: %w", sinkError(err))
	}
	return &located{metadata: metadata}, nil
}

// checkIn moves the payload of a message into the claim check. The key is made
// of the message's dedup ID and the payload, so that another attempt replaces
// what the first one stored, and nothing else. d remembers the result; it may be
// nil.
func (p payloads) checkIn(ctx context.Context, d *delivery, m *message.Message) error {
	sum := sha256.Sum256(m.Payload)
	key := "sha256/" + hex.EncodeToString(sum[:])
	if id := m.Metadata[gateway.KeyDedupID]; id != "" {
		key = "dedup/" + KeyOf(id).String() + "-" + hex.EncodeToString(sum[:8])
	}
	stored, err := remember(d, storedPayload(key), func() (*located, error) { return p.put(ctx, key, bytes.NewReader(m.Payload)) })
	if err == nil {
		stored.apply(m)
	}
	return err
}

// checkOut puts a payload from the claim check back into the message.
func (p payloads) checkOut(ctx context.Context, m *message.Message) error {
	if p.store == nil {
		return ErrNoClaimCheck
	}
	payload, _, err := p.store.Open(ctx, m.Metadata[gateway.KeyPayloadReference])
	if err != nil {
		return fmt.Errorf("claim check: %w", err)
	}
	if digest, ok := payloadref.ParseDigest(m.Metadata[gateway.KeyPayloadSHA256]); ok {
		payload = payloadref.Verify(payload, digest, ErrPayloadChanged)
	}
	defer func() { _ = payload.Close() }() // reading tells every error that matters
	data, err := io.ReadAll(payload)
	if err != nil {
		return fmt.Errorf("claim check: %w", err)
	}
	m.Payload = data
	forgetReference(m.Metadata)
	return nil
}

// lazyKey names a payload that was not read yet: by the messages that it
// consists of, as the service promises that these do not change.
func lazyKey(m *message.Message) string {
	ids := messageIDs(m.Metadata)
	if id := m.Metadata[gateway.KeyMessageID]; id != "" && ids == nil {
		ids = []string{id}
	} else if ids == nil {
		ids = []string{"uuid", m.UUID}
	}
	return KeyOf(append(ids, m.Metadata[gateway.KeyReceivingEndpointID])...).String()
}

// exceeds reports whether the payload alone is above the limit of a sink, 0 =
// none known.
func exceeds(p message.Publisher, m *message.Message) bool {
	if len(m.Payload) < describeFrom {
		return false
	}
	limit := sizeLimit(p)
	return limit > 0 && int64(len(m.Payload)) > limit
}

// sizeLimit returns what a publisher tells about its limit, 0 when it does not.
func sizeLimit(p message.Publisher) int64 {
	if sink, ok := p.(sinks.Sink); ok {
		return sink.Describe().MaxMessageSize
	}
	return 0
}
