package gatewaytest

import "testing"

// The control API answers to these callers and under these names only.
func TestIsLoopback(t *testing.T) {
	for address, loopback := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:80": true, "[::1]:80": true, "::1": true, "localhost": true, "localhost:8081": true,
		"10.0.0.1:80": false, "0.0.0.0:80": false, "example.com": false, "localhost.example.com:80": false, "[fe80::1]:80": false, "": false,
	} {
		if got := isLoopback(address); got != loopback {
			t.Errorf("isLoopback(%q) = %v", address, got)
		}
	}
}
