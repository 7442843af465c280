package pipeline_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/agrimill/agrimill/examples/bridge/pipeline"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	if err := testutil.GatherAndCompare(b.registry, strings.NewReader(`
# HELP agrimill_bridge_sink_up 1 when the sink answered when it was last asked, else 0.
# TYPE agrimill_bridge_sink_up gauge
agrimill_bridge_sink_up{kind="nats",sink="farm"} 1
`), "agrimill_bridge_sink_up"); err != nil {
		t.Error(err)
	}
	b.mustStop()
	problems, err := testutil.GatherAndLint(b.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	if err := testutil.GatherAndCompare(b.registry, strings.NewReader(`
# HELP agrimill_bridge_config_last_reload_successful 1 when the newest configuration was taken over, 0 when it was refused.
# TYPE agrimill_bridge_config_last_reload_successful gauge
agrimill_bridge_config_last_reload_successful 1
# HELP agrimill_subscriber_confirmations_total Confirmations that the service took.
# TYPE agrimill_subscriber_confirmations_total counter
agrimill_subscriber_confirmations_total 5
`), "agrimill_bridge_config_last_reload_successful", "agrimill_subscriber_confirmations_total"); err != nil {
		t.Error(err)
	}
	// Two pipelines do not fit into one registry, which is told.
	if _, err := pipeline.New(t.Context(), w.parse(w.head()+w.natsSink()+allRoute), pipeline.Options{Registry: b.registry}); err == nil {
		t.Error("a second pipeline in the same registry")
	}
}
