package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A reload compares what is in the files that the configuration names, not only their names.
func TestReloadComparesFiles(t *testing.T) {
	for name, test := range map[string]struct {
		config           func(w *world, text, dir string) string
		changed, restart []string
	}{
		"the gateway's authority": {
			config: func(_ *world, text, dir string) string {
				return strings.Replace(text, "gateway:\n", fmt.Sprintf("gateway:\n  tls: {ca_file: %s/cert.pem}\n", dir), 1)
			},
			restart: []string{"gateway"},
		},
		"a sink's certificate and key": {
			config: func(_ *world, text, dir string) string {
				return strings.Replace(text, "farm: {nats: {", fmt.Sprintf("farm: {nats: {tls: {cert_file: %s/cert.pem, key_file: %s/key.pem}, ", dir, dir), 1)
			},
			changed: []string{`sink "farm" changed`},
		},
		"a source's authority": {
			config: func(w *world, text, dir string) string {
				text += fmt.Sprintf("  - {name: back, from: {nats: {url: %q, subject: \"out.>\", tls: {ca_file: %s/cert.pem}}}, to: {gateway: {tenant: %s, endpoint: %s, type: %q}}}\n",
					w.server.URL(), dir, w.gate.Tenant(), w.sender.ID, taskData)
				return text
			},
			changed: []string{`route "back" changed`},
		},
		"the store of devices": {
			config: func(w *world, text, dir string) string {
				return text + fmt.Sprintf("devices: {nats_kv: {url: %q, tls: {ca_file: %s/cert.pem}}}\n", w.server.URL(), dir)
			},
			restart: []string{"devices"},
		},
		"a file that nothing names": {
			config: func(_ *world, text, _ string) string { return text },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorld(t), t.TempDir()
			testkit.NewCertificate(t).Write(t, dir)
			text := test.config(w, w.head()+w.natsSink()+allRoute, dir)
			b := w.start(text)
			b.logs.contains("agrimill is running")
			if report := b.reload(text); len(report.Changed)+len(report.Restart) > 0 {
				t.Errorf("nothing has changed, and got %+v", report)
			}
			testkit.NewCertificate(t).Write(t, dir)
			for range 2 { // what needs a restart is said each time
				report := b.reload(text)
				if !slices.Equal(report.Changed, test.changed) || !slices.Equal(report.Restart, test.restart) {
					t.Errorf("got %q, restart %q; want %q, %q", report.Changed, report.Restart, test.changed, test.restart)
				}
				test.changed = nil
			}
			_ = b.stop() // what cannot connect may be left open
		})
	}
}
