// Package claimcheck keeps large payloads out of messages: a payload is stored
// as an object in a bucket, and the message carries the reference.
//
// A [Store] is a [gateway.ClaimCheck], which subscriber, router, publisher and
// sinks/blob take. Where its bucket is, gocloud.dev/blob
// decides; the program imports the drivers that it needs:
//
//	_ "gocloud.dev/blob/fileblob"  // file:///var/lib/agrimill/payloads?create_dir=true
//	_ "gocloud.dev/blob/s3blob"    // s3://bucket?region=eu-central-1
//	_ "gocloud.dev/blob/gcsblob"   // gs://bucket
//	_ "gocloud.dev/blob/azureblob" // azblob://container
//	_ "gocloud.dev/blob/memblob"   // mem://, for tests
//
// A payload passes in constant memory, two parts of 8 MiB with the drivers for
// clouds. A Store never deletes by itself: who knows when a payload is no longer
// needed calls [Store.Delete], or the bucket has a lifecycle rule that is longer
// than the longest time a message may wait.
//
// # References
//
// A reference is the key of its payload. Keys, and so references, consist of
// letters, digits and - _ . = + /, at most 400 bytes and 200 between slashes, and
// are held against that on every call, because references come out of message
// metadata: none leaves the prefix of the Store.
//
// # Errors
//
// Errors match the sentinels of package gateway, by which the gateway's client
// and the router decide: ErrInvalid for a reference that no Put has made,
// ErrNotFound when there is no such payload, ErrClosed after Close, and
// ErrUnavailable for everything that a bucket may fail with, which is worth
// another try. Errors of a payload's own reader, and of contexts, pass through.
// The addresses in error texts have no credentials and no queries.
package claimcheck
