package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePorts returns n different TCP ports on loopback that nobody listens on, for servers whose
// ports others have to know before they start. They are below those that systems give to
// connections and to listeners on port 0, so nothing takes one by chance meanwhile.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports := make([]int, 0, n)
	for range 1000 {
		port := 20_000 + rand.IntN(10_000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // until all are found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports
		}
	}
	tb.Fatalf("no %d free ports", n)
	return nil
}
