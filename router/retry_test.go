package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func newRetry(t *testing.T, config router.RetryConfig) *router.Retry {
	t.Helper()
	retry, err := router.NewRetry(config, nil)
	require.NoError(t, err)
	return retry
}

var down = sinks.NewError("s", "t", sinks.ErrUnavailable, nil)

func TestRetryCountsHandlerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		h := newRetry(t, router.RetryConfig{MaxAttempts: 4, InitialInterval: time.Second, MaxInterval: 2 * time.Second}).
			Middleware(func(*message.Message) ([]*message.Message, error) {
				times = append(times, time.Now())
				return nil, errHandler
			})
		_, err := h(message.NewMessage("1", nil))
		var failure *router.RetryError
		require.ErrorAs(t, err, &failure)
		require.ErrorIs(t, err, errHandler)
		assert.Equal(t, router.ClassHandler, router.Classify(err))
		assert.Equal(t, 4, failure.Attempts)
		assert.Equal(t, times[0], failure.First)
		assert.Equal(t, times[3], failure.Last)
		require.Len(t, times, 4)
		for i, limit := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			wait := times[i+1].Sub(times[i])
			assert.GreaterOrEqual(t, wait, limit/2, "wait %d", i)
			assert.LessOrEqual(t, wait, limit, "wait %d", i)
		}
	})
}

func TestRetryDoesNotRepeat(t *testing.T) {
	for _, class := range []router.Class{router.ClassPermanent, router.ClassRedeliver} {
		t.Run(class.String(), func(t *testing.T) {
			calls := 0
			h := newRetry(t, router.RetryConfig{}).Middleware(func(*message.Message) ([]*message.Message, error) {
				calls++
				return nil, router.WithClass(errHandler, class)
			})
			_, err := h(message.NewMessage("1", nil))
			assert.Equal(t, class, router.Classify(err))
			assert.Equal(t, 1, calls)
		})
	}
}

func TestRetryOutageHasNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		h := newRetry(t, router.RetryConfig{MaxAttempts: 1}).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			if time.Since(start) < 10*time.Minute {
				return nil, down
			}
			return nil, nil
		})
		_, err := h(message.NewMessage("1", nil))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 10*time.Minute+router.DefaultRetryMaxInterval)
		assert.Less(t, calls, 60)
	})
}

// During an outage one message at a time probes; at its end all go on.
func TestRetryOutageIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		start := time.Now()
		var calls, began, ended atomic.Int64
		retry := newRetry(t, router.RetryConfig{
			InitialInterval: 100 * time.Millisecond, MaxInterval: 10 * time.Second,
			Observer: router.ObserverFunc(func(e router.Event) {
				switch e.Kind {
				case router.EventOutageBegan:
					began.Add(1)
				case router.EventOutageEnded:
					ended.Add(1)
				default:
				}
			}),
		})
		h := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
			calls.Add(1)
			if time.Since(start) < 5*time.Minute {
				time.Sleep(time.Millisecond) // synctest: the sink takes a moment to fail
				return nil, down
			}
			return nil, nil
		})
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				_, err := h(message.NewMessage(fmt.Sprint(i), nil))
				assert.NoError(t, err)
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		inMinute := calls.Load()
		assert.Less(t, inMinute, int64(n+30), "each message once, then probes")
		assert.Equal(t, n, retry.Waiting())
		since, out := retry.OutageSince()
		assert.True(t, out)
		assert.WithinDuration(t, start, since, time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Less(t, calls.Load()-inMinute, int64(20), "one probe per interval")
		group.Wait()
		assert.Less(t, time.Since(start), 5*time.Minute+11*time.Second)
		assert.Zero(t, retry.Waiting())
		assert.Equal(t, int64(1), began.Load())
		assert.Equal(t, int64(1), ended.Load())
	})
}

// A message that fails by "outage" while others pass does not stop them.
func TestRetryOddMessageDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRetry(t, router.RetryConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "odd" {
				return nil, down
			}
			return nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		odd := message.NewMessageWithContext(ctx, "odd", nil)
		result := make(chan error, 1)
		go func() { _, err := h(odd); result <- err }()
		for i := range 1000 {
			began := time.Now()
			_, err := h(message.NewMessage(fmt.Sprint(i), nil))
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), router.DefaultRetryMaxInterval)
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		assert.Equal(t, router.ClassShutdown, router.Classify(<-result))
	})
}

func TestRetryEndsWithContextOrStop(t *testing.T) {
	for _, failure := range []error{errHandler, down, context.Canceled, router.ErrReserved} {
		for _, how := range []string{"context", "stop"} {
			t.Run(failure.Error()+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stop := make(chan struct{})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					h := newRetry(t, router.RetryConfig{Stop: stop, InitialInterval: time.Hour}).
						Middleware(func(*message.Message) ([]*message.Message, error) { return nil, failure })
					results := make(chan error, 3)
					for range cap(results) {
						go func() { _, err := h(message.NewMessageWithContext(ctx, "1", nil)); results <- err }()
					}
					time.Sleep(time.Minute)
					assert.Empty(t, results)
					if how == "stop" {
						close(stop)
					} else {
						cancel()
					}
					for range cap(results) {
						err := <-results
						assert.Equal(t, router.ClassShutdown, router.Classify(err), "%v", err)
					}
					if how == "stop" {
						_, err := h(message.NewMessage("new", nil))
						assert.Equal(t, router.ClassShutdown, router.Classify(err))
					}
				})
			})
		}
	}
}

// A handler that answers an interruption with an error of its own is not at fault.
func TestRetryHandlerErrorAfterContextEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newRetry(t, router.RetryConfig{MaxAttempts: 1}).Middleware(func(*message.Message) ([]*message.Message, error) {
		cancel()
		return nil, errors.New("interrupted")
	})
	_, err := h(message.NewMessageWithContext(ctx, "1", nil))
	assert.Equal(t, router.ClassShutdown, router.Classify(err))
}

// A panic between retry and recoverer does not take the turn of a probe along.
func TestRetryPanicWhileProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := newRetry(t, router.RetryConfig{MaxAttempts: 3}).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			switch calls {
			case 1:
				return nil, down
			case 2:
				panic("in between")
			}
			return nil, nil
		})
		_, err := h(message.NewMessage("1", nil))
		require.NoError(t, err)
		assert.Equal(t, 3, calls)
	})
}

func TestRetryRestoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := newRetry(t, router.RetryConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			if err := msg.Context().Err(); err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(msg.Context())
			msg.SetContext(ctx)
			cancel()
			if calls == 1 {
				return nil, errHandler
			}
			return nil, nil
		})
		_, err := h(message.NewMessage("1", nil))
		require.NoError(t, err)
		assert.Equal(t, 2, calls)
	})
}

func TestRetryConfigValidate(t *testing.T) {
	for name, config := range map[string]router.RetryConfig{
		"attempts": {MaxAttempts: -1},
		"initial":  {InitialInterval: -1},
		"max":      {InitialInterval: time.Minute, MaxInterval: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := router.NewRetry(config, nil)
			assert.ErrorIs(t, err, router.ErrConfig)
		})
	}
	_, err := router.NewRetry(router.RetryConfig{InitialInterval: time.Hour}, nil)
	assert.NoError(t, err)
}
