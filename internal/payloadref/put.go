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
	counter := &counter{r: io.TeeReader(r, digest)}
	reference, err := store.Put(ctx, key, counter)
	if err != nil {
		return nil, 0, err
	}
	return map[string]string{
		gateway.KeyPayloadMode:      gateway.PayloadModeClaimCheck,
		gateway.KeyPayloadReference: reference,
		gateway.KeyPayloadSHA256:    hex.EncodeToString(digest.Sum(nil)),
		gateway.KeyPayloadSize:      strconv.FormatInt(counter.n, 10),
	}, counter.n, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}
