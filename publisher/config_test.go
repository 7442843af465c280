package publisher

import (
	"testing"
	"time"
)

func TestConfigDefaults(t *testing.T) {
	var cfg Config
	cfg = cfg.WithDefaults()
	if cfg.MaxRequests != 16 || cfg.CloseTimeout != 30*time.Second || cfg.PartialDelivery != PartialDeliveryIsError {
		t.Errorf("defaults are %+v", cfg)
	}
}
