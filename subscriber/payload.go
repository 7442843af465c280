package subscriber

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/enum"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/validate"
)

// PayloadMode is how payloads are handled that are not embedded in their event.
type PayloadMode int

const (
	// PayloadInline downloads the payload into the message, so that embedded and
	// remote payloads look the same to a handler. It is the default.
	PayloadInline PayloadMode = iota
	// PayloadClaimCheck streams payloads of at least PayloadConfig.ClaimCheckFrom
	// bytes into PayloadConfig.ClaimCheck. The message then has an empty payload,
	// and its metadata holds reference, size and SHA-256. Smaller payloads, and
	// embedded ones, are in the message.
	PayloadClaimCheck
	// PayloadLazy downloads nothing: the handler opens the payload with
	// [OpenPayload]. A payload that is not embedded is available for at most 15
	// minutes after its event arrived.
	PayloadLazy
)

var payloadModes = []string{"inline", "claim_check", "lazy"}

// String returns inline, claim_check or lazy.
func (m PayloadMode) String() string { return enum.Text(m, payloadModes) }

// UnmarshalText parses the output of String.
func (m *PayloadMode) UnmarshalText(text []byte) error { return enum.Parse(m, text, payloadModes) }

// PayloadConfig configures how remote payloads, those not embedded in their event, are fetched.
type PayloadConfig struct {
	// Mode is where payloads go that are not embedded: into the message, the claim check if large, or nowhere until
	// opened. Default [PayloadInline].
	Mode PayloadMode `yaml:"payload" enum:"inline,claim_check,lazy"`
	// MaxInline is the largest payload, in bytes, that is downloaded into a message. Larger
	// ones stay unconfirmed and are reported. Default 256 MiB, the maximum of the service;
	// Config.MaxInFlightBytes still bounds the sum.
	MaxInline int64 `yaml:"-"`
	// ClaimCheck stores large payloads; required by [PayloadClaimCheck].
	ClaimCheck gateway.ClaimCheck `yaml:"-"`
	// ClaimCheckFrom is the size in bytes from which a payload goes to the claim
	// check. Default 1 MiB. Payloads of unknown size go there too.
	ClaimCheckFrom int64 `yaml:"-"`
	// MaxDownloads is how many payloads are downloaded at the same time. Half as many that
	// failed before, and those that are slow, do not count. While others wait, one tenant
	// and one payload host get half of them. Default 8.
	MaxDownloads int `yaml:"max_downloads"`
	// Retry is the backoff between attempts to download a payload. Default
	// 250 ms, doubling up to 4 s.
	Retry Backoff `yaml:"-"`
	// RefreshEvery is how often at most the stream is reconnected for further fresh URIs of
	// expired payloads. For the first one of a payload that is at once, and up to five times as
	// often, and every 4 seconds while fresh URIs help. A message is set aside when its third
	// fresh URI is refused, or the first one for 30 seconds. Default 5 minutes.
	RefreshEvery time.Duration `yaml:"-"`
}

func (c *PayloadConfig) setDefaults() {
	setDefault(&c.MaxInline, 256<<20)
	setDefault(&c.ClaimCheckFrom, 1<<20)
	setDefault(&c.MaxDownloads, 8)
	setDefault(&c.Retry.Initial, 250*time.Millisecond)
	setDefault(&c.Retry.Max, max(4*time.Second, c.Retry.Initial))
	setDefault(&c.RefreshEvery, 5*time.Minute)
}

func (c PayloadConfig) validate() error {
	var e validate.Errors
	e.Check(c.Mode >= PayloadInline && c.Mode <= PayloadLazy, "Mode", "must be one of the named constants")
	e.Check(c.Mode != PayloadClaimCheck || c.ClaimCheck != nil, "ClaimCheck", "is required by the mode claim_check")
	validate.NotNegative(&e, "MaxInline", c.MaxInline)
	validate.NotNegative(&e, "ClaimCheckFrom", c.ClaimCheckFrom)
	validate.NotNegative(&e, "MaxDownloads", c.MaxDownloads)
	validate.NotNegative(&e, "RefreshEvery", c.RefreshEvery)
	e.Join("Retry", c.Retry.validate())
	return e.Err(ErrConfig)
}

// payload is a payload that is not embedded. Fields that are not atomic are written before the message is handed out,
// and only read after that.
type payload struct {
	uri      atomic.Pointer[string] // replaced when the event is redelivered with a fresh one
	embedded atomic.Pointer[[]byte] // takes its place once the event was redelivered with the payload itself
	data     []byte
	size     int64
	metadata map[string]string
	ctx      context.Context // ends when the delivery is closed
	cancel   context.CancelFunc
	// expired is set when a handler finds that the payload can no longer be downloaded.
	expired atomic.Bool
	// opened is one more than the size that a handler found; zero if none opened it.
	opened atomic.Int64
	// download is its place in the queue of downloads; nil if it is not downloaded. Guarded
	// by Subscriber.mu.
	download *download
}

func newPayload(uri string, size int64) *payload {
	p := &payload{size: size}
	p.uri.Store(&uri)
	return p
}

// queueDownload has the payload of d fetched, unless whoever handles it does that. s.mu is held.
func (s *Subscriber) queueDownload(d *delivery) {
	p := d.payload
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	if s.cfg.Payload.Mode == PayloadLazy {
		p.metadata = map[string]string{gateway.KeyPayloadMode: gateway.PayloadModeLazy}
		return
	}
	host := "" // if there is none
	if u, err := url.Parse(*p.uri.Load()); err == nil {
		host = u.Host
	}
	p.download = s.payloads.downloads.add(time.Now(), d, host, s.payloads.gone.known.Contains(d.identity()))
	s.pumpDownloads()
}

// forgetPayload is called when d is closed. It aborts what is still being downloaded. s.mu is held.
func (s *Subscriber) forgetPayload(d *delivery) {
	if d.payload.cancel != nil {
		d.payload.cancel()
	}
	delete(s.payloads.stale, d)
	if d.payload.download != nil {
		s.payloads.downloads.remove(d.payload.download)
		s.pumpDownloads()
	}
}

// pumpDownloads starts the downloads that are due. s.mu is held.
func (s *Subscriber) pumpDownloads() {
	if s.ctx.Err() != nil {
		return
	}
	now := time.Now()
	for {
		j := s.payloads.downloads.next(now)
		if j == nil {
			break
		}
		ctx, cancel := context.WithCancel(j.d.payload.ctx)
		j.abandon = cancel
		// Ends with the attempt, or with the delivery.
		s.wg.Go(func() {
			defer cancel()
			s.fetch(ctx, j)
		})
	}
	s.wakeAt(s.payloads.downloads.wake(now))
}

// fetch makes one attempt to download a payload. If there is no other, the message is handed out, or left.
func (s *Subscriber) fetch(ctx context.Context, j *download) {
	d := j.d
	err := s.download(ctx, j)
	if err == nil {
		s.progress(ProgressFetched, j.event, j.bytes.Load()) // before anybody gets it
	}
	result, err := s.classifyDownload(ctx, j, err)
	first, step := s.fetched(j, result, err)
	refused := result == downloadOver && d.payload.ctx.Err() == nil
	switch step {
	case stepRetry:
		if first {
			s.logger.Info("payload download failed; retrying", eventFields(j.event).Add(watermill.LogFields{"error": err}))
		}
		return
	case stepRefresh:
		s.expired(j.event)
		return
	case stepGone:
		s.gone(d, j)
	case stepUnserved:
		s.unserved(j.event)
	default:
		if refused {
			s.stats.setAside.Add(1)
			s.undeliverable(j.event, err)
		}
	}
	s.mu.Lock()
	defer s.unlock()
	if result == downloadOK {
		s.core.Fetched(s.now(), &d.Message)
	} else {
		d.Aside = d.Aside || refused || step == stepGone
		s.core.Lost(s.now(), &d.Message)
	}
}

// classifyDownload says what the outcome of an attempt means.
func (s *Subscriber) classifyDownload(ctx context.Context, j *download, err error) (downloadResult, error) {
	switch p := j.d.payload; {
	case err == nil:
		return downloadOK, nil
	case p.ctx.Err() != nil:
		return downloadOver, p.ctx.Err()
	case ctx.Err() != nil: // abandoned
		return downloadFailed, errSlowDownload
	case refusesURI(err):
		return downloadExpired, err
	case errors.Is(err, gateway.ErrPayloadSize), errors.Is(err, gateway.ErrPayloadTruncated), errors.Is(err, gateway.ErrBadResponse):
		return downloadBad, err
	case errors.Is(err, ErrPayloadTooLarge), errors.Is(err, gateway.ErrTooLarge), errors.Is(err, gateway.ErrInvalid): // it always will be
		return downloadOver, err
	}
	return downloadFailed, err
}

// fetched takes in the outcome of an attempt. first reports whether it was the first one.
func (s *Subscriber) fetched(j *download, result downloadResult, err error) (first bool, step downloadStep) {
	now := time.Now()
	s.mu.Lock()
	defer s.unlock()
	if err != nil && result != downloadOver { // else it says nothing about the host
		j.host.err, j.host.notBefore = err, later(j.host.notBefore, now.Add(retryAfter(err)))
	}
	if result == downloadOK && j.d.payload.embedded.Load() != nil {
		result = downloadOver // its host has not served it
	}
	first = j.failures == 0
	step, helps := s.payloads.downloads.finished(now, j, result)
	if helps || step == stepRefresh && j.goneAt.IsZero() {
		s.loop.connection.wantFreshSoon(now, helps)
		s.pumpConnection(now)
	}
	if gone := s.payloads.gone.hosts; result == downloadOK {
		if _, refused := gone[j.host.name]; refused { // other payloads: they are worth another attempt
			delete(gone, j.host.name)
			s.core.Want(s.now())
		}
	}
	if step == stepRetry || step == stepRefresh {
		s.core.Unfetched(s.now(), &j.d.Message)
	} else {
		j.d.payload.download = nil
	}
	s.pumpDownloads()
	return first, step
}

// errSlowDownload means that a download was abandoned because it made no progress.
var errSlowDownload = errors.New("subscriber: the download was too slow")

// refusesURI reports whether the payload cannot be had from its URI, and perhaps from a fresh one.
func refusesURI(err error) bool {
	return errors.Is(err, gateway.ErrPayloadExpired) || errors.Is(err, gateway.ErrRedirect)
}

// download makes one attempt to download a payload. Retries are up to the queue.
func (s *Subscriber) download(ctx context.Context, j *download) error {
	d, p := j.d, j.d.payload
	if data := p.embedded.Load(); data != nil {
		p.data, p.size = *data, int64(len(*data))
		return nil
	}
	body, err := s.cfg.Client.OpenPayload(gateway.SingleAttempt(ctx), *j.tried, p.size)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // reading has returned every error that matters
	var r io.Reader = &progressReader{r: body, n: &j.bytes}
	size, enveloped := body.Size(), false
	if s.unpacks() {
		r, enveloped = peekEnvelope(r)
	}
	if !enveloped && s.cfg.Payload.Mode == PayloadClaimCheck && (size < 0 || size >= s.cfg.Payload.ClaimCheckFrom) {
		return s.checkIn(ctx, d, r)
	}
	if size > s.cfg.Payload.MaxInline {
		return fmt.Errorf("%w (%d bytes)", ErrPayloadTooLarge, size)
	}
	data, err := s.readInline(ctx, j, r, size)
	if err != nil {
		return err
	}
	p.data, p.size = data, int64(len(data))
	s.stats.receivedBytes.Add(p.size)
	return nil
}

// readInline reads the payload into memory, which it reserves first: all of it, or without a size as it comes.
func (s *Subscriber) readInline(ctx context.Context, j *download, r io.Reader, size int64) (data []byte, err error) {
	var reserved int64
	defer func() {
		if err != nil {
			s.mu.Lock()
			defer s.unlock()
			s.core.Grow(&j.d.Message, -reserved)
		}
	}()
	known, step := size >= 0, int64(1<<20)
	if known {
		step = size
	}
	data = []byte{}
	for int64(len(data)) <= s.cfg.Payload.MaxInline {
		if err := s.reserveBytes(ctx, j, step); err != nil {
			return nil, err
		}
		reserved += step
		start := len(data)
		data = append(data, make([]byte, step)...)
		n, err := io.ReadFull(r, data[start:])
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		switch {
		case ended && known:
			return nil, gateway.ErrPayloadTruncated
		case ended:
			return data[:start+n], nil
		case err != nil:
			return nil, err
		case known:
			return data, readEnd(r)
		}
	}
	return nil, ErrPayloadTooLarge
}

// readEnd reads the end, at which the reader reports whether the payload was complete.
func readEnd(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, 1))
	if n > 0 {
		err = gateway.ErrPayloadSize
	}
	return err
}

// checkIn streams the payload into the claim check. Its key is the same on every delivery, so that a repeated download
// replaces the previous one, and contains nothing that a sender chose.
func (s *Subscriber) checkIn(ctx context.Context, d *delivery, r io.Reader) error {
	id := d.identity()
	key := id[:]
	if d.File != nil {
		key = id[:16]
	}
	metadata, size, err := payloadref.Put(ctx, s.cfg.Payload.ClaimCheck, hex.EncodeToString(key), r)
	if err != nil {
		return err
	}
	d.payload.metadata, d.payload.size = metadata, size
	s.stats.receivedBytes.Add(size)
	return nil
}

// progressReader counts what is read while somebody else looks.
type progressReader struct {
	r io.Reader
	n *atomic.Int64
}

func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// reserveBytes waits for room and then reserves n more bytes for the delivery of j.
func (s *Subscriber) reserveBytes(ctx context.Context, j *download, n int64) error {
	d := j.d
	s.mu.Lock()
	defer func() { s.unlock() }()
	defer j.blocked.Store(false)
	for !s.core.Fits(s.now(), &d.Message, n) {
		if err := ctx.Err(); err != nil {
			return err
		}
		j.blocked.Store(true)
		freed := s.freed.Next()
		s.pumpDownloads() // it needs no slot meanwhile
		s.unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		j.blocked.Store(false)
		j.started = time.Now() // of what is judged by its speed
		j.bytes.Store(0)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.core.Grow(&d.Message, n)
	return nil
}

// opener returns a function that opens the payload of d if it is not in the message.
func (s *Subscriber) opener(d *delivery) msgctx.Opener {
	p := d.payload
	if p == nil || p.metadata == nil {
		return nil
	}
	reference, stored := p.metadata[gateway.KeyPayloadReference]
	return func(ctx context.Context) (io.ReadCloser, int64, error) {
		if stored {
			r, size, err := s.cfg.Payload.ClaimCheck.Open(ctx, reference)
			if !errors.Is(err, gateway.ErrNotFound) {
				return r, size, err
			}
			// It was deleted there, and the service still has it: the message is not confirmed.
		}
		uri := p.uri.Load()
		if data := p.embedded.Load(); data != nil {
			return io.NopCloser(bytes.NewReader(*data)), int64(len(*data)), nil
		}
		r, err := s.cfg.Client.OpenPayload(ctx, *uri, p.size)
		if refusesURI(err) {
			s.mu.Lock() // as refreshed, which may have replaced it meanwhile
			p.expired.Store(p.uri.Load() == uri)
			s.mu.Unlock()
		}
		if err != nil {
			return nil, 0, err
		}
		p.opened.Store(r.Size() + 1)
		if !s.unpacks() {
			return r, r.Size(), nil
		}
		payload, enveloped := peekEnvelope(r)
		if enveloped {
			_ = r.Close() // nobody reads it
			return nil, 0, errEnvelopeElsewhere
		}
		return struct {
			io.Reader
			io.Closer
		}{payload, r}, r.Size(), nil
	}
}

// ErrNoPayload: the message refers to a payload stored elsewhere, but it was not
// delivered by a subscriber in this process, so there is nothing to open it with.
// A copy has it if it was made by message.Message.CopyWithContext.
var ErrNoPayload = errors.New("subscriber: the payload is not in the message, and the message was not delivered by a subscriber in this process, or is a copy without its context")

// OpenPayload opens the payload of a delivered message, wherever it is: in the
// message, in the claim check, or at the service ([PayloadLazy]). size is -1
// if it is unknown. Reading ends with the message's context; the caller must
// close the reader. gateway.ErrPayloadExpired means that it is too late: nack
// the message, and it is redelivered.
func OpenPayload(msg *message.Message) (payload io.ReadCloser, size int64, err error) {
	ctx := msg.Context()
	if open := msgctx.PayloadOpener(ctx); open != nil && len(msg.Payload) == 0 { // else a handler has given it one of its own
		return open(ctx)
	}
	if msg.Metadata.Get(gateway.KeyPayloadMode) != "" && len(msg.Payload) == 0 {
		return nil, 0, ErrNoPayload
	}
	return io.NopCloser(bytes.NewReader(msg.Payload)), int64(len(msg.Payload)), nil
}
