package testkit

import (
	"fmt"
	"testing"
)

// FreePorts returns n different TCP ports on 127.0.0.1 that nobody listens on, for servers whose ports
// others have to know before they start, or that leave their ports and come back. Nobody gets one by
// chance until the test ends: a socket holds it that does not listen, beside which a server may.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports := make([]int, n)
	for i := range ports {
		port, release, err := reservePort()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(release)
		ports[i] = port
	}
	return ports
}

// FreeAddress is a port of [FreePorts] as an address.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	return fmt.Sprint("127.0.0.1:", FreePorts(tb, 1)[0])
}
