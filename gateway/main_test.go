package gateway

import (
	"testing"

	"go.uber.org/goleak"
)

// A server of package http keeps a connection half a second that it has refused to read on, which is more
// than goleak waits.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
