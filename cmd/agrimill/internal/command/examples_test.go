package command

import (
	"path/filepath"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Every example of a configuration becomes a pipeline.
func TestExamplesBecomePipelines(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.env["AGRIMILL_DATA"], f.env["AGRIMILL_ADMIN_TOKEN"], f.env["OTLP_KEY"] = filepath.ToSlash(t.TempDir()), "long-enough-this-one", "key"
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		f.want(statusOK, "validate", file)
		cfg := testkit.Must(config.Load(file, config.Options{Env: func(name string) string { return f.env[name] }}))(t)
		p, err := pipeline.New(t.Context(), cfg, pipeline.Options{})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
