//go:build unix

package testkit

import (
	"errors"
	"os"
	"syscall"
)

// reservePort binds a socket to a port of the system's choice. The system gives that port to no other
// socket that asks for any port, as each end of a connection does. A listener that names the port gets
// it, because both have SO_REUSEADDR, which Go and the JVM set on listeners.
func reservePort() (port int, release func(), err error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = func() { _ = syscall.Close(socket) }
	syscall.CloseOnExec(socket)
	err = errors.Join(
		syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err == nil {
		var name syscall.Sockaddr
		if name, err = syscall.Getsockname(socket); err == nil {
			return name.(*syscall.SockaddrInet4).Port, release, nil
		}
	}
	release()
	return 0, nil, err
}
