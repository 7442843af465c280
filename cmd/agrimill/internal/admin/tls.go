package admin

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/agrimill/agrimill/internal/validate"
)

// Load reads the files, if there are any, and adds what is wrong with them under TLS.
func (t TLS) Load(e *validate.Errors) (pairs []tls.Certificate) {
	switch {
	case !t.Enabled():
	case t.KeyFile == "":
		e.Add("TLS.CertFile", "needs %s", validate.Field("TLS.KeyFile"))
	case t.CertFile == "":
		e.Add("TLS.KeyFile", "needs %s", validate.Field("TLS.CertFile"))
	default:
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err == nil {
			return []tls.Certificate{pair}
		}
		path := "TLS.CertFile"
		if file, ok := errors.AsType[*os.PathError](err); ok && file.Path == t.KeyFile {
			path = "TLS.KeyFile"
		}
		e.AddCause(err, path, "%s", err)
	}
	return nil
}

type certificates struct {
	files TLS
	log   *slog.Logger

	current atomic.Pointer[tls.Certificate]

	// mu is held by the one handshake that looks at the files; the others take what is current.
	mu        sync.Mutex
	cert, key []byte // of the last attempt, also of one that failed
}

func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.renew()
			return c.current.Load(), nil
		},
	}
}

func (c *certificates) renew() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if err := c.load(); err != nil {
		c.log.Error("admin: the new certificate cannot be used; the one from before stays in use", "cert_file", c.files.CertFile, "error", err.Error())
	}
}

// load reads the files and, if they are not what they were, takes them over. A failure is told once for
// each content: between the writing of one file and of the other they do not match.
func (c *certificates) load() error {
	cert, err1 := os.ReadFile(c.files.CertFile)
	key, err2 := os.ReadFile(c.files.KeyFile)
	unchanged := c.cert != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key)
	c.cert, c.key = append([]byte{}, cert...), append([]byte{}, key...) // never nil
	if unchanged {
		return nil
	}
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if c.current.Swap(&pair) != nil {
		c.log.Info("admin: the certificate is renewed", "cert_file", c.files.CertFile, "expires", pair.Leaf.NotAfter)
	}
	return nil
}
