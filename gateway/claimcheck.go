package gateway

import (
	"context"
	"io"
)

// ClaimCheck stores payloads outside of the messages that refer to them with [KeyPayloadReference]. It must be safe
// for concurrent use. Package sinks/claimcheck implements it for blob storage.
type ClaimCheck interface {
	PayloadOpener
	// Put stores everything that r yields under key, in place of what is there, and returns the reference for Open. It
	// returns nil only if everything is durably stored; otherwise nothing may be visible under the reference. An error
	// of r is returned wrapped. Keys consist of letters, digits and - / .
	Put(ctx context.Context, key string, r io.Reader) (reference string, err error)
}

// PayloadOpener is the reading part of a [ClaimCheck].
type PayloadOpener interface {
	// Open returns the payload and its size in bytes, -1 if it is unknown, for each attempt to send. References come from
	// message metadata: reject those that Put cannot have returned. Reading must end when ctx does; the payload is closed,
	// possibly while it is being read. An error that matches [ErrUnavailable] is an outage, after which the caller retries;
	// one that matches [ErrNotFound] says that the payload was deleted: while its message is unconfirmed, the service has it.
	Open(ctx context.Context, reference string) (payload io.ReadCloser, size int64, err error)
}
