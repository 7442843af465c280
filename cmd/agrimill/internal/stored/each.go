package stored

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

// Each reads the copies of a message one after the other, for [admin.Source].
func Each(ctx context.Context, cfg *config.Config, m *journal.Message, options Options) iter.Seq2[admin.StoredCopy, error] {
	return func(yield func(admin.StoredCopy, error) bool) {
		copies := CopiesOf(cfg, m)
		if len(copies) == 0 {
			yield(admin.StoredCopy{Absent: true}, errors.New(WhyNot(m, 0)))
			return
		}
		reader := NewReader(cfg, m, options)
		defer func() { _ = reader.Close() }() // it was only read
		for _, c := range copies[:min(len(copies), MaxCopies)] {
			found, err := whole(ctx, reader, c)
			if !yield(found, err) {
				return
			}
		}
		if more := len(copies) - MaxCopies; more > 0 {
			yield(admin.StoredCopy{Absent: true}, fmt.Errorf("%d more places were not looked at", more))
		}
	}
}

func whole(ctx context.Context, reader *Reader, c *Copy) (found admin.StoredCopy, err error) {
	found.Place = c.String()
	if err := reader.Read(ctx, c); err != nil {
		found.Absent = Absent(err)
		return found, err
	}
	defer func() { err = errors.Join(err, c.Payload.Close()) }()
	found.Metadata, found.Payload = c.Message.Metadata, c.Payload.Data
	if found.Payload == nil {
		found.Payload, err = io.ReadAll(io.NewSectionReader(c.Payload.At, 0, c.Payload.Size))
	}
	return found, err
}
