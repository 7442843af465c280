package farm

import (
	"context"
	"errors"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// Reading ends with the context, however short each of many logs is.
func TestBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	short := func(yield func(*farmdata.Record, error) bool) { yield(&farmdata.Record{}, nil) }
	for _, want := range []error{nil, context.Canceled} {
		for record, err := range bounded(ctx, short, func(*farmdata.Record) {}) {
			if !errors.Is(err, want) || (record == nil) != (want != nil) {
				t.Errorf("got %v, %v, want %v", record, err, want)
			}
		}
		cancel()
	}
}
