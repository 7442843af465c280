// Package claimcheck keeps large payloads out of messages: a payload is an object in a
// bucket, and the message carries its reference.
//
//	import _ "gocloud.dev/blob/fileblob" // others: s3blob, gcsblob, azureblob, memblob
//	…
//	store, err := claimcheck.New(ctx, claimcheck.Config{URL: "file:///var/lib/agrimill/payloads?create_dir=true"})
//
// A [Store] is a [gateway.ClaimCheck], which subscriber, router, publisher and sinks/blob
// take. [Store.OpenMessage] opens the payload of a message. A payload passes in constant
// memory, two parts of 8 MiB with the drivers for clouds. A Store never deletes by itself: the
// bucket needs a lifecycle rule, longer than a message may wait, or someone calls
// [Store.Delete].
//
// References come out of message metadata, so each call checks them: letters, digits and
// - _ . = + /, at most 400 bytes and 200 between slashes. None leaves the prefix of the Store.
//
// Errors match the sentinels of package gateway: ErrInvalid for a reference that no Put has
// made, ErrNotFound, ErrClosed after Close, and ErrUnavailable for what is worth another try.
// Errors of a payload's own reader, and of contexts, pass through. Addresses in error texts
// have no credentials and no queries.
package claimcheck
