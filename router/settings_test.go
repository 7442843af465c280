package router_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// What a Router sets for each route is not offered by its Config.
func TestConfigHasNothingThatTheRouterSets(t *testing.T) {
	for _, settings := range []any{router.Config{}.Retry, router.Config{}.Dedup} {
		own := reflect.TypeOf(settings)
		for _, alone := range []any{router.RetryConfig{}, router.DedupConfig{}} {
			config := reflect.TypeOf(alone)
			for i := range config.NumField() {
				f := config.Field(i)
				if _, ok := own.FieldByName(f.Name); ok && !f.Anonymous {
					t.Errorf("%v has %s, which is for %v", own, f.Name, config)
				}
			}
		}
	}
}

func TestInvalidConfigs(t *testing.T) {
	retry := func(settings router.RetrySettings) error {
		return errorOf(router.NewRetry(router.RetryConfig{RetrySettings: settings}, nil))
	}
	dedup := func(settings router.DedupSettings) error {
		return errorOf(router.NewDedup(router.DedupConfig{DedupSettings: settings}, nil))
	}
	to := newSink(nil)
	for name, err := range map[string]error{
		"attempts":         retry(router.RetrySettings{MaxAttempts: -1}),
		"initial backoff":  retry(router.RetrySettings{InitialBackoff: -1}),
		"max backoff":      retry(router.RetrySettings{InitialBackoff: time.Minute, MaxBackoff: time.Second}),
		"ttl":              dedup(router.DedupSettings{TTL: -1}),
		"lease":            dedup(router.DedupSettings{Lease: -1}),
		"entries":          errorOf(router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: -1})),
		"poison publisher": errorOf(router.NewPoisonQueue(router.PoisonConfig{}, nil)),
		"poison failing":   errorOf(router.NewPoisonQueue(router.PoisonConfig{Publisher: to, FailingAfter: -1}, nil)),
		"router poison":    errorOf(router.New(router.Config{}, nil)),
		"router timeout":   errorOf(router.New(router.Config{Poison: to, CloseTimeout: -1}, nil)),
		"router retry":     errorOf(router.New(router.Config{Poison: to, Retry: router.RetrySettings{MaxAttempts: -1}}, nil)),
		"router dedup":     errorOf(router.New(router.Config{Poison: to, Dedup: router.DedupSettings{TTL: -1}}, nil)),
	} {
		if !errors.Is(err, router.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	testkit.NoError(t, retry(router.RetrySettings{InitialBackoff: time.Hour}))
}

func errorOf[T any](_ T, err error) error { return err }
