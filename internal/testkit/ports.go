package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
)

// Ports that FreePorts gives away: below those that systems give to connections and to listeners
// on port 0, and a block for each of the processes that test at the same time.
const (
	firstPort  = 20_000
	portBlocks = 100
	blockPorts = 100
)

// givenPorts are the ports of tests that still run.
var givenPorts = struct {
	sync.Mutex
	used map[int]bool
}{used: map[int]bool{}}

// FreePorts returns n different TCP ports on loopback that nobody listens on, for servers whose
// ports others have to know before they start, or that leave their ports and come back. Nothing
// takes one by chance until the test ends.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	block := firstPort + os.Getpid()%portBlocks*blockPorts
	givenPorts.Lock()
	defer givenPorts.Unlock()
	ports := make([]int, 0, n)
	tb.Cleanup(func() {
		givenPorts.Lock()
		defer givenPorts.Unlock()
		for _, port := range ports {
			delete(givenPorts.used, port)
		}
	})
	for _, offset := range rand.Perm(blockPorts) {
		if len(ports) == n {
			break
		}
		port := block + offset
		if givenPorts.used[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // somebody else's
		}
		_ = listener.Close()
		givenPorts.used[port] = true
		ports = append(ports, port)
	}
	if len(ports) < n {
		tb.Fatalf("no %d free ports", n)
	}
	return ports
}
