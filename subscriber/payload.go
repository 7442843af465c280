package subscriber

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/payloadref"
)

// PayloadMode says what happens to payloads that are not embedded in their event.
type PayloadMode int

const (
	// PayloadInline downloads the payload into the message, so that embedded and
	// remote payloads look the same to a handler. It is the default.
	PayloadInline PayloadMode = iota
	// PayloadClaimCheck streams payloads of at least PayloadConfig.ClaimCheckFrom
	// bytes into PayloadConfig.ClaimCheck. The message then has an empty payload
	// and tells reference, size and SHA-256 in its metadata. Smaller ones, and
	// embedded ones, are in the message.
	PayloadClaimCheck
	// PayloadLazy downloads nothing: the handler opens the payload with
	// [OpenPayload]. A payload that is not embedded can be had for at most 15
	// minutes after its event arrived.
	PayloadLazy
)

// ClaimCheck stores payloads outside the messages. Implementations are safe for
// concurrent use. Package sinks/claimcheck has one for blob storage.
type ClaimCheck interface {
	// Put stores everything that r yields under key and returns the reference
	// by which Open finds it. It returns nil only when everything is durably
	// stored; nothing may be visible under the reference otherwise. A second Put
	// with the same key replaces the first. An error of r is returned wrapped.
	Put(ctx context.Context, key string, r io.Reader) (reference string, err error)
	// Open returns the payload and its size in bytes.
	Open(ctx context.Context, reference string) (payload io.ReadCloser, size int64, err error)
}

// PayloadConfig configures how payloads that are not embedded are fetched.
type PayloadConfig struct {
	// Mode is [PayloadInline] by default.
	Mode PayloadMode
	// MaxInline is the largest remote payload, in bytes, that is downloaded into
	// a message. A larger one is reported and stays unconfirmed. Default 256 MiB,
	// the most the service carries; Config.MaxInFlightBytes still bounds the sum.
	MaxInline int64
	// ClaimCheck stores large payloads; required by [PayloadClaimCheck].
	ClaimCheck ClaimCheck
	// ClaimCheckFrom is the size in bytes from which a payload goes to the claim
	// check. Default 1 MiB. A payload of unknown size goes there too.
	ClaimCheckFrom int64
	// MaxDownloads is how many payloads are downloaded at a time. Default 4.
	MaxDownloads int
	// Retry bounds the backoff between attempts to download a payload. Default
	// 250 ms doubling up to 15 s.
	Retry Backoff
}

func (c *PayloadConfig) setDefaults() {
	setDefault(&c.MaxInline, 256<<20)
	setDefault(&c.ClaimCheckFrom, 1<<20)
	setDefault(&c.MaxDownloads, 4)
	setDefault(&c.Retry.Min, 250*time.Millisecond)
	setDefault(&c.Retry.Max, 15*time.Second)
}

func (c PayloadConfig) validate() []error {
	var errs []error
	if c.Mode < PayloadInline || c.Mode > PayloadLazy {
		errs = append(errs, fmt.Errorf("Payload.Mode: unknown value %d", c.Mode))
	}
	if c.Mode == PayloadClaimCheck && c.ClaimCheck == nil {
		errs = append(errs, errors.New("Payload.ClaimCheck is required by PayloadClaimCheck"))
	}
	if c.MaxInline < 0 || c.ClaimCheckFrom < 0 || c.MaxDownloads < 0 {
		errs = append(errs, errors.New("Payload: MaxInline, ClaimCheckFrom and MaxDownloads must not be negative"))
	}
	if c.Retry.Min < 0 || c.Retry.Max < c.Retry.Min {
		errs = append(errs, errors.New("Payload.Retry: Min must be positive and not above Max"))
	}
	return errs
}

// payload is a payload that is not embedded. What is not atomic is
// written before ready is closed and only read afterwards.
type payload struct {
	uri      atomic.Pointer[string] // replaced when the event comes again with a fresh one
	ready    chan struct{}
	data     []byte
	size     int64
	metadata map[string]string
	err      error
	ctx      context.Context // ends when the delivery is closed
	cancel   context.CancelFunc
	// expired: a handler found that the payload can no longer be downloaded.
	expired atomic.Bool
}

func newPayload(uri string, size int64) *payload {
	p := &payload{size: size, ready: make(chan struct{})}
	p.uri.Store(&uri)
	return p
}

// release ends a download that nobody waits for any more.
func (p *payload) release() {
	if p.cancel != nil {
		p.cancel()
	}
}

// queueFetch prepares the download of d's payload and reports whether a
// download has to be started. s.mu is held.
func (s *Subscriber) queueFetch(d *delivery) bool {
	p := d.payload
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	if s.cfg.Payload.Mode == PayloadLazy {
		p.metadata = map[string]string{gateway.KeyPayloadMode: gateway.PayloadModeLazy}
		close(p.ready)
		return false
	}
	s.fetchQueue = append(s.fetchQueue, d)
	if s.fetchers >= s.cfg.Payload.MaxDownloads {
		return false
	}
	s.fetchers++
	return true
}

// startFetch starts one download loop. It ends when nothing is queued.
//
// Downloads start in the order of arrival, and one that waits for room keeps
// its place, so the oldest open payload always has a place; and as the oldest
// may exceed the byte cap, the loops cannot wait for each other for ever.
func (s *Subscriber) startFetch() {
	s.wg.Go(func() {
		for {
			s.mu.Lock()
			if len(s.fetchQueue) == 0 {
				s.fetchers--
				s.mu.Unlock()
				return
			}
			d := s.fetchQueue[0]
			s.fetchQueue[0] = nil
			s.fetchQueue = s.fetchQueue[1:]
			s.mu.Unlock()
			s.fetch(d)
		}
	})
}

// maxBadDownloads is how often a payload host may answer with the wrong bytes
// before the URI is given up.
const maxBadDownloads = 8

// fetch downloads d's payload until that has succeeded, the URI has expired, or
// the delivery is closed, and tells those who wait.
func (s *Subscriber) fetch(d *delivery) {
	p := d.payload
	policy := backoff.Policy{Min: s.cfg.Payload.Retry.Min, Max: s.cfg.Payload.Retry.Max}
	bad := 0
	for attempt := 0; ; attempt++ {
		err := s.download(d)
		if err == nil {
			break
		}
		if p.ctx.Err() != nil {
			p.err = p.ctx.Err()
			break
		}
		if errors.Is(err, gateway.ErrPayloadSize) || errors.Is(err, gateway.ErrPayloadTruncated) {
			bad++
		}
		if errors.Is(err, gateway.ErrPayloadExpired) || bad >= maxBadDownloads {
			// The service still has the message and gives out a fresh URI.
			if !s.refresh(d, nil) {
				p.err = err
				break
			}
			attempt, bad = -1, 0
			continue
		}
		if refusesPayload(err) {
			s.undeliverable(d.event, err)
			p.err = err
			break
		}
		if attempt == 0 {
			s.logger.Info("A payload could not be downloaded; trying again", eventFields(d.event).Add(watermill.LogFields{"err": err}))
		}
		if err := policy.Wait(p.ctx, attempt); err != nil {
			p.err = err
			break
		}
	}
	close(p.ready)
}

// refusesPayload reports whether downloading again cannot help.
func refusesPayload(err error) bool {
	return errors.Is(err, ErrPayloadTooLarge) || errors.Is(err, gateway.ErrTooLarge) ||
		errors.Is(err, gateway.ErrInvalid) || errors.Is(err, gateway.ErrRedirect)
}

// download makes one attempt.
func (s *Subscriber) download(d *delivery) error {
	p := d.payload
	r, err := s.cfg.Client.OpenPayload(p.ctx, *p.uri.Load(), p.size)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // reading has told every error that matters
	size := r.Size()
	if s.cfg.Payload.Mode == PayloadClaimCheck && (size < 0 || size >= s.cfg.Payload.ClaimCheckFrom) {
		return s.checkIn(d, r)
	}
	if size > s.cfg.Payload.MaxInline {
		return fmt.Errorf("%w (%d bytes)", ErrPayloadTooLarge, size)
	}
	data, err := s.readInline(d, r, size)
	if err != nil {
		return err
	}
	p.data, p.size = data, int64(len(data))
	s.stats.receivedBytes.Add(p.size)
	return nil
}

// readInline reads the payload into memory, which is counted before it is used.
func (s *Subscriber) readInline(d *delivery, r io.Reader, size int64) (data []byte, err error) {
	var reserved int64
	defer func() {
		if err != nil {
			s.returnBytes(d, reserved)
		}
	}()
	const step = 1 << 20
	if size < 0 {
		// Not announced: grow as it comes.
		for int64(len(data)) <= s.cfg.Payload.MaxInline {
			if err := s.reserveBytes(d, step); err != nil {
				return nil, err
			}
			reserved += step
			start := len(data)
			data = append(data, make([]byte, step)...)
			n, err := io.ReadFull(r, data[start:])
			data = data[:start+n]
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return data, nil
			}
			if err != nil {
				return nil, err
			}
		}
		return nil, ErrPayloadTooLarge
	}
	if err := s.reserveBytes(d, size); err != nil {
		return nil, err
	}
	reserved = size
	data = make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = gateway.ErrPayloadTruncated
		}
		return nil, err
	}
	// The reader tells at the end whether the payload was whole.
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1)); err != nil {
		return nil, err
	} else if n > 0 {
		return nil, gateway.ErrPayloadSize
	}
	return data, nil
}

// checkIn streams the payload into the claim check.
func (s *Subscriber) checkIn(d *delivery, r io.Reader) error {
	p := d.payload
	hash := sha256.New()
	counter := &countingReader{r: io.TeeReader(r, hash)}
	reference, err := s.cfg.Payload.ClaimCheck.Put(p.ctx, claimCheckKey(d), counter)
	if err != nil {
		return err
	}
	p.size = counter.n
	s.stats.receivedBytes.Add(p.size)
	p.metadata = map[string]string{
		gateway.KeyPayloadMode:      gateway.PayloadModeClaimCheck,
		gateway.KeyPayloadReference: reference,
		gateway.KeyPayloadSHA256:    hex.EncodeToString(hash.Sum(nil)),
	}
	return nil
}

// claimCheckKey is the same whenever the message comes, so that a repeated
// download replaces its predecessor. It has nothing in it that a sender chose.
func claimCheckKey(d *delivery) string {
	switch {
	case d.file != (fileKey{}):
		return hex.EncodeToString(d.file[:])
	case len(d.keys) > 0:
		return hex.EncodeToString(d.keys[0][:])
	}
	return uuid.NewString() // a file without messages: nothing tells it from another
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// reserveBytes counts n more bytes for d, after waiting for room. The oldest
// open delivery never waits: all others wait, in the end, for it.
func (s *Subscriber) reserveBytes(d *delivery, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.first != d && s.bytes+n > s.cfg.MaxInFlightBytes {
		if err := d.payload.ctx.Err(); err != nil {
			return err
		}
		freed := s.waitRoom()
		s.mu.Unlock()
		select {
		case <-freed:
		case <-d.payload.ctx.Done():
		}
		s.mu.Lock()
	}
	if err := d.payload.ctx.Err(); err != nil {
		return err
	}
	s.bytes += n
	d.bytes += n
	return nil
}

func (s *Subscriber) returnBytes(d *delivery, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.prev == nil && d.next == nil && s.first != d {
		return // closed meanwhile; its bytes went with it
	}
	s.bytes -= n
	d.bytes -= n
	s.wakeRoom()
}

// opener returns how the payload of d is opened when it is not in the message.
func (s *Subscriber) opener(d *delivery) payloadref.Opener {
	p := d.payload
	if p == nil || p.metadata == nil {
		return nil
	}
	if reference, ok := p.metadata[gateway.KeyPayloadReference]; ok {
		return func(ctx context.Context) (io.ReadCloser, int64, error) {
			return s.cfg.Payload.ClaimCheck.Open(ctx, reference)
		}
	}
	return func(ctx context.Context) (io.ReadCloser, int64, error) {
		r, err := s.cfg.Client.OpenPayload(ctx, *p.uri.Load(), p.size)
		if errors.Is(err, gateway.ErrPayloadExpired) {
			p.expired.Store(true)
		}
		if err != nil {
			return nil, 0, err
		}
		return r, r.Size(), nil
	}
}

// ErrNoPayload: the message names a payload elsewhere, but it was not
// delivered by a subscriber of this process, so there is nothing to open it with.
var ErrNoPayload = errors.New("subscriber: the payload is not in the message, and the message does not come from a subscriber here")

// OpenPayload opens the payload of a delivered message, wherever it is: in the
// message, in the claim check, or with the service ([PayloadLazy]). size is -1
// when it is not known. Reading ends with the message's context; the caller
// closes the reader. gateway.ErrPayloadExpired says that it is too late: nack
// the message, and it comes again.
func OpenPayload(msg *message.Message) (payload io.ReadCloser, size int64, err error) {
	ctx := msg.Context()
	if open := payloadref.FromContext(ctx); open != nil {
		return open(ctx)
	}
	if msg.Metadata.Get(gateway.KeyPayloadMode) != "" {
		return nil, 0, ErrNoPayload
	}
	return io.NopCloser(bytes.NewReader(msg.Payload)), int64(len(msg.Payload)), nil
}
