package kafka

import "context"

// SetMaxSpan sets how many records one may hold back.
func (s *Subscriber) SetMaxSpan(n int) { s.maxSpan = n }

// AskCoordinator asks a coordinator that stays the same.
func AskCoordinator(ctx context.Context, question func() error) error {
	return askCoordinator(ctx, nil, "", question)
}
