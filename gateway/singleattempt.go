package gateway

import "context"

type singleAttemptKey struct{}

// SingleAttempt returns a context with which a call makes one attempt, whatever
// [Config.Retry] says: for a caller that has other work to do until it is worth trying
// again. The repetition after a 401 with a fresh token, and the wait for the rate limit,
// are part of the attempt.
func SingleAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, singleAttemptKey{}, true)
}

func singleAttempt(ctx context.Context) bool { return ctx.Value(singleAttemptKey{}) != nil }
