package testkit

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/certificate"
)

// Certificate is a certificate for localhost and 127.0.0.1 that serves servers and
// clients for an hour, signed by a CA of its own. All of it is PEM, the key PKCS #8.
type Certificate struct{ certificate.PEM }

// NewCertificate makes a certificate.
func NewCertificate(t testing.TB) Certificate {
	t.Helper()
	return Certificate{Must(certificate.New("testkit", time.Hour, nil))(t)}
}

// Server returns the configuration of a server that shows the certificate.
func (c Certificate) Server(t testing.TB) *tls.Config {
	t.Helper()
	pair := Must(tls.X509KeyPair(c.Cert, c.Key))(t)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
}

// Client returns the configuration of a client that trusts the CA alone.
func (c Certificate) Client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

// Write writes ca.pem, cert.pem and key.pem into a folder.
func (c Certificate) Write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range map[string][]byte{"ca.pem": c.CA, "cert.pem": c.Cert, "key.pem": c.Key} {
		NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}
