//go:build !unix

package testkit

import "net"

// reservePort returns a port that was free. Nothing holds it here.
func reservePort() (port int, release func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	return listener.Addr().(*net.TCPAddr).Port, func() {}, listener.Close()
}
