package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate is a certificate for localhost and 127.0.0.1 that serves servers and
// clients for an hour, signed by a CA of its own. All of it is PEM, the key PKCS #8.
type Certificate struct {
	CA, Cert, Key []byte
}

// NewCertificate makes a certificate.
func NewCertificate(t testing.TB) Certificate {
	t.Helper()
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testkit CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "testkit"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	caKey, key := newKey(t), newKey(t)
	secret := Must(x509.MarshalPKCS8PrivateKey(key))(t)
	return Certificate{
		CA:   sign(t, ca, ca, caKey, caKey),
		Cert: sign(t, leaf, ca, key, caKey),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key := Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return key
}

func sign(t testing.TB, certificate, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der := Must(x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, parentKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
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
