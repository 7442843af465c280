package payloadref

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strconv"

	"github.com/agrimill/agrimill/gateway"
)

// Put stores what r yields in a claim check, and returns the metadata of a message whose payload it is, and its size.
func Put(ctx context.Context, store gateway.ClaimCheck, key string, r io.Reader) (metadata map[string]string, size int64, err error) {
	digest := sha256.New()
	var read counter
	reference, err := store.Put(ctx, key, io.TeeReader(r, io.MultiWriter(digest, &read)))
	if err != nil {
		return nil, 0, err
	}
	return map[string]string{
		gateway.KeyPayloadMode:      gateway.PayloadModeClaimCheck,
		gateway.KeyPayloadReference: reference,
		gateway.KeyPayloadSHA256:    hex.EncodeToString(digest.Sum(nil)),
		gateway.KeyPayloadSize:      strconv.FormatInt(int64(read), 10),
	}, int64(read), nil
}

// counter is how many bytes were written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}
