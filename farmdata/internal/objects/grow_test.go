package objects

import (
	"context"
	"slices"
	"testing"
)

// counted is a context that ends at its end-th question.
type counted struct {
	context.Context
	asked, end int
}

func (c *counted) Err() error {
	if c.asked++; c.asked == c.end {
		return context.Canceled
	}
	return nil
}

// A long list is moved whole, with a question to the context for each part, and stays as it is if that has ended.
func TestGrow(t *testing.T) {
	list := make(values[int], 3*long)
	for i := range list {
		list[i] = i
	}
	before := slices.Clone(list)
	if ended := (&counted{t.Context(), 0, 2}); list.Grow(ended) || len(list) != cap(list) {
		t.Errorf("grown to %d after the context ended", cap(list))
	}
	ctx := &counted{t.Context(), 0, 0}
	if !list.Grow(ctx) || ctx.asked != 3 {
		t.Errorf("the context was asked %d times, want 3", ctx.asked)
	}
	added := -1
	list.Add(&added)
	if !slices.Equal(list, append(before, added)) {
		t.Errorf("%d objects, or others, after a list of %d got one more", len(list), len(before))
	}
}
