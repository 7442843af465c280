package router_test

import (
	"reflect"
	"testing"

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
