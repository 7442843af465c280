package pipeline

import (
	"os"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

func TestOwner(t *testing.T) {
	host := testkit.Must(os.Hostname())(t)
	for _, c := range []struct{ instance, address, want string }{
		{"mill", "127.0.0.1:8080", "mill"},
		{"", "127.0.0.1:8080", host + " 127.0.0.1:8080"},
		{"", "127.0.0.1:0", ""},
		{"", config.AdminOff, ""},
		{config.NoInstance, "127.0.0.1:8080", ""},
	} {
		var cfg config.Config
		cfg.Dedup.Owner.Instance, cfg.Admin.Address = c.instance, c.address
		got := newOwner(&cfg)
		if got.Instance != c.want || got.Session == "" || got.Session == newOwner(&cfg).Session {
			t.Errorf("%+v for instance %q and address %q, want instance %q and a session of its own", got, c.instance, c.address, c.want)
		}
	}
	// A replay runs beside the process that has the name.
	var cfg config.Config
	cfg.Dedup.Owner = router.Owner{Instance: "mill"}
	if got := newOwner(forReplay(&cfg, nil)); got.Instance != "" {
		t.Errorf("a replay is instance %q", got.Instance)
	}
}
