package faultproxy_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
)

// What is sent arrives whole and in order on both ways, and each way takes the delay.
func TestLate(t *testing.T) {
	t.Parallel()
	server := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = server.Close() }()
	go func() { // ends with the connection
		if c, err := server.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	const delay = 2 * time.Millisecond
	conn := testkit.Must(net.Dial("tcp", faultproxy.Late(t, server.Addr().String(), delay).Addr()))(t)
	defer func() { _ = conn.Close() }()
	for i := range 20 {
		sent := bytes.Repeat([]byte{byte(i)}, 1+i*5000)
		start := time.Now()
		testkit.Must(conn.Write(sent))(t)
		got := make([]byte, len(sent))
		testkit.Must(io.ReadFull(conn, got))(t)
		if took := time.Since(start); took < 2*delay || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back after %v, the same: %v", len(sent), took, bytes.Equal(got, sent))
		}
	}
}
