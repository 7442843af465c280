package pipeline_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + "devices: {wait: 1s}\n" + w.natsSink() + allRoute)
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	testkit.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
# HELP agrimill_build_info Always 1; labeled with the version and source revision of the program and the Go version that built it.
# TYPE agrimill_build_info gauge
agrimill_build_info{goversion="`+runtime.Version()+`",revision="abc",version="v0"} 1
# HELP agrimill_sink_up 1 if the sink responded to the last check, else 0.
# TYPE agrimill_sink_up gauge
agrimill_sink_up{kind="nats",sink="farm"} 1
# HELP agrimill_dedup_up 1 if the dedup store passed the last check, else 0.
# TYPE agrimill_dedup_up gauge
agrimill_dedup_up{store="memory"} 1
# HELP agrimill_devices_redescribed_total Device descriptions that say something else than an earlier one of their teamset.
# TYPE agrimill_devices_redescribed_total counter
agrimill_devices_redescribed_total 0
# HELP agrimill_devices_teamsets_waiting Teamsets whose time logs wait for a device description, or were decoded without one lately.
# TYPE agrimill_devices_teamsets_waiting gauge
agrimill_devices_teamsets_waiting 0
`), "agrimill_devices_redescribed_total", "agrimill_devices_teamsets_waiting", "agrimill_build_info", "agrimill_sink_up", "agrimill_dedup_up"))
	b.mustStop()
	problems, err := testutil.GatherAndLint(b.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	testkit.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
# HELP agrimill_config_last_reload_successful 1 if the latest configuration was applied, 0 if it was rejected.
# TYPE agrimill_config_last_reload_successful gauge
agrimill_config_last_reload_successful 1
# HELP agrimill_subscriber_confirmations_total Confirmations that the service accepted.
# TYPE agrimill_subscriber_confirmations_total counter
agrimill_subscriber_confirmations_total 5
`), "agrimill_config_last_reload_successful", "agrimill_subscriber_confirmations_total"))
	// Two pipelines do not fit into one registry, which is reported.
	if _, err := pipeline.New(t.Context(), w.parse(w.head()+w.natsSink()+allRoute), pipeline.Options{Registry: b.registry}); err == nil {
		t.Error("a second pipeline in the same registry")
	}
}
