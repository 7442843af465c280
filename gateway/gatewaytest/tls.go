package gatewaytest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"

	"github.com/agrimill/agrimill/internal/certificate"
)

// authority is the server's own CA with one certificate for both listeners.
type authority struct {
	server *tls.Config
	pool   *x509.CertPool
	pem    []byte
}

func newAuthority(protocols []string, change func(*x509.Certificate), addrs ...string) (*authority, error) {
	const year = 366 * 24 * time.Hour
	made, err := certificate.New("gatewaytest", year, func(leaf *x509.Certificate) {
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		leaf.IPAddresses = append(leaf.IPAddresses, net.IPv6loopback)
		for _, addr := range addrs {
			host, _, _ := net.SplitHostPort(addr)
			if ip := net.ParseIP(host); ip != nil {
				leaf.IPAddresses = append(leaf.IPAddresses, ip)
			} else if host != "" {
				leaf.DNSNames = append(leaf.DNSNames, host)
			}
		}
		if change != nil {
			change(leaf)
		}
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(made.Cert, made.Key)
	if err != nil {
		return nil, err
	}
	a := &authority{
		pool: x509.NewCertPool(), pem: made.CA,
		server: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: protocols},
	}
	a.pool.AppendCertsFromPEM(a.pem)
	return a, nil
}

// ClientTLS returns a new TLS configuration that trusts the server; nil without Config.TLS.
func (s *Server) ClientTLS() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.tls.pool.Clone()}
}

// CACertPEM returns the certificate of the server's CA; nil without Config.TLS.
func (s *Server) CACertPEM() []byte {
	if s.tls == nil {
		return nil
	}
	return append([]byte(nil), s.tls.pem...)
}
