package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// pools are the connection pools of a client. When the process has no file descriptor left, their idle
// connections give theirs back: otherwise those of calls would keep the stream from being opened.
type pools struct{ transports []*http.Transport }

func (p *pools) closeIdle() {
	for _, t := range p.transports {
		t.CloseIdleConnections()
	}
}

// dial returns a function that dials, and once more after closeIdle if there is no file descriptor.
func (p *pools) dial(dialer *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil && outOfFiles(err) {
			p.closeIdle()
			conn, err = dialer.DialContext(ctx, network, address)
		}
		return conn, err
	}
}

// outOfFiles reports whether there is no file descriptor, of which the resolver tells by its text.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || strings.Contains(err.Error(), syscall.EMFILE.Error())
}

// transport returns the transport configured for one kind of traffic, or for all, or creates one.
func (p *pools) transport(cfg Config, kind http.RoundTripper, idle int) http.RoundTripper {
	switch {
	case kind != nil:
		return kind
	case cfg.Transport != nil:
		return cfg.Transport
	}
	return p.create(cfg, idle, nil)
}

// create adds a pool. It must not be called once one is in use.
func (p *pools) create(cfg Config, idle int, control func(network, address string, _ syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: control}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           p.dial(dialer),
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          0,
		MaxIdleConnsPerHost:   idle,
		// What is copied fits in together with the head, and leaves in one write.
		WriteBufferSize: maxCopied + 4<<10,
		// Decompression would buffer the stream, and change the size of payloads.
		DisableCompression: true,
	}
	if cfg.PingInterval > 0 {
		// With HTTP/1.1, an attempt that times out closes its connection.
		// With HTTP/2, it only ends one stream of a connection that lives on.
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: cfg.PingInterval, PingTimeout: cfg.PingInterval}
	}
	if cfg.TLS != nil {
		t.TLSClientConfig = cfg.TLS.Clone()
	}
	p.transports = append(p.transports, t)
	return t
}

// isPrivateAddress reports whether an address must not be the target of a redirect from outside, even if it is embedded in an
// IPv6 address.
func isPrivateAddress(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		b := a.As16()
		// NAT64 and 6to4 carry an IPv4 address.
		switch {
		case nat64.Contains(a):
			a = netip.AddrFrom4([4]byte(b[12:16]))
		case sixToFour.Contains(a):
			a = netip.AddrFrom4([4]byte(b[2:6]))
		}
	}
	if !a.IsValid() || !a.IsGlobalUnicast() || a.IsPrivate() {
		return true
	}
	return sharedSpace.Contains(a) || thisNetwork.Contains(a) || reserved.Contains(a)
}

var (
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour   = netip.MustParsePrefix("2002::/16")
	sharedSpace = netip.MustParsePrefix("100.64.0.0/10")
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	reserved    = netip.MustParsePrefix("240.0.0.0/4")
)

// refusePrivate is a dialer's control function: it receives the resolved address, which no host name hides.
func refusePrivate(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || isPrivateAddress(ap.Addr()) {
		return ErrRedirect
	}
	return nil
}

func isLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
