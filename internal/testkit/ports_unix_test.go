//go:build unix

package testkit_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A port is given once, and the test may listen on it, leave it and come back, while many others get
// ports from the system.
func TestFreePortsStayTaken(t *testing.T) {
	t.Parallel()
	used := map[int]bool{}
	for _, port := range testkit.FreePorts(t, 200) {
		if used[port] {
			t.Errorf("%d is given twice", port)
		}
		used[port] = true
	}
	// Were they not held, four of these would be among them, of the 28,000 that Linux gives away.
	for range 300 {
		listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer listener.Close()
		client := testkit.Must(net.Dial("tcp", listener.Addr().String()))(t)
		defer client.Close()
		for _, address := range []net.Addr{listener.Addr(), client.LocalAddr()} {
			if port := address.(*net.TCPAddr).Port; used[port] {
				t.Errorf("somebody else got %d", port)
			}
		}
	}
	for port := range used {
		for _, host := range []string{"127.0.0.1", ""} {
			listener := testkit.Must(net.Listen("tcp", fmt.Sprintf("%s:%d", host, port)))(t)
			if err := listener.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
