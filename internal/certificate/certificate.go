// Package certificate makes certificates for servers of tests and demos.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"time"
)

// PEM is a certificate with its key, PKCS #8, and the CA of its own that has signed it.
type PEM struct{ CA, Cert, Key []byte }

// New makes a certificate for localhost and 127.0.0.1 that serves servers and clients for a lifetime, after change, which may be
// nil, has changed it. name is its name, and part of that of the CA.
func New(name string, lifetime time.Duration, change func(*x509.Certificate)) (PEM, error) {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + " CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if change != nil {
		change(leaf)
	}
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return PEM{}, err
	}
	signed, err1 := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	cert, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	secret, err3 := x509.MarshalPKCS8PrivateKey(key)
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return PEM{block("CERTIFICATE", signed), block("CERTIFICATE", cert), block("PRIVATE KEY", secret)}, errors.Join(err1, err2, err3)
}
