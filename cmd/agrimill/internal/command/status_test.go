package command

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// agrimill status says the sentence of a running agrimill, with the figures of the gateway, and its exit status follows.
func TestStatus(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "field 7.zip", mark)
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n")))
	ask := []string{"status", "--config", "agrimill.yaml"}
	f.beside(t, append([]string{"trace", "--config", "agrimill.yaml"}, "field 7"))
	testkit.Eventually(t, "everything is confirmed", func() bool {
		return strings.Contains(f.want(statusOK, ask...), "received 1, stored 1, confirmed 1, unconfirmed 0")
	})
	if text := f.want(statusOK, ask...); !strings.HasPrefix(text, "All is right: messages are received, stored and confirmed.\n") {
		t.Error(text)
	}
	if text := f.want(statusOK, "status", "agrimill.yaml"); !strings.HasPrefix(text, "All is right") { // as validate, check and run take it
		t.Error(text)
	}
	f.want(statusOK, "tenants", "agrimill.yaml")
	f.want(statusOK, "why", "agrimill.yaml", "--type", taskData)
	var got statusJSON
	if err := json.Unmarshal([]byte(f.want(statusOK, append(ask, "--json")...)), &got); err != nil || !got.Ready || got.Figures.Confirmed != 1 {
		t.Errorf("%v: %+v", err, got)
	}
	f.want(statusFailed, "status", "--admin", "127.0.0.1:1")
}

// One that listens on all addresses is asked on this machine, by a name that it accepts.
func TestAsksThisMachine(t *testing.T) {
	cfg := &config.Config{}
	cfg.Admin.Address = ":9090"
	if _, err := new(adminAt).of(&config.Config{Admin: admin.Config{Address: "127.0.0.1:0"}}); err == nil || !strings.Contains(err.Error(), "--admin") {
		t.Errorf("a port that only the log knows: %v", err)
	}
	for at, cfg := range map[adminAt]*config.Config{{}: cfg, {address: ":9090"}: nil, {address: "https://:9090/"}: nil} {
		if r := testkit.Must(at.of(cfg))(t); r.url.Host != "localhost:9090" {
			t.Errorf("%+v: asks %s", at, r.url.Host)
		}
	}
}

// One with TLS is an agrimill, too: what is missing is the s of https, or trust in its certificate.
func TestStatusOfOneWithTLS(t *testing.T) {
	page := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	page.Config.ErrorLog = log.New(io.Discard, "", 0)
	at := strings.TrimPrefix(page.URL, "https://")
	w := &world{T: t}
	for address, want := range map[string]string{at: at + " has TLS: --admin " + page.URL, page.URL: at + " has a certificate that is not trusted: "} {
		if status, _, stderr := w.agrimill("status", "--admin", address); status != statusFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %s", address, status, stderr)
		}
	}
}

// The exit status is about what counts.
func TestStatusExits(t *testing.T) {
	problem := func(stage admin.Stage) []admin.Problem {
		return []admin.Problem{{Kind: admin.ProblemSink, Stage: stage, Text: "It is down."}}
	}
	for want, v := range map[int]admin.Verdict{
		statusOK: {Ready: true, Problems: problem(admin.StageRecent)}, 4: {Ready: true, Problems: problem(admin.StageLasting)},
		5: {Problems: problem(admin.StageRecovering)},
	} {
		p := program{stdout: &strings.Builder{}}
		err := ended(p.writeVerdict(&admin.Status{Snapshot: admin.Snapshot{Verdict: v}}), v.ExitStatus())
		if status, is := err.(*statusError); want != statusOK && (!is || status.status != want) || want == statusOK && err != nil {
			t.Errorf("got %v, want status %d", err, want)
		}
	}
}
