package pipeline_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"github.com/agrimill/agrimill/internal/testkit"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// authority returns the certificate of a new authority, and its key.
func authority(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))(t)
	secret := testkit.Must(x509.MarshalPKCS8PrivateKey(private))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

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
			write := func() {
				certificate, key := authority(t)
				for file, text := range map[string][]byte{"cert.pem": certificate, "key.pem": key} {
					must(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
				}
			}
			write()
			text := test.config(w, w.head()+w.natsSink()+allRoute, dir)
			b := w.start(text)
			b.logs.contains("agrimill is running")
			if report := b.reload(text); len(report.Changed)+len(report.Restart) > 0 {
				t.Errorf("nothing has changed, and got %+v", report)
			}
			write()
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
