package publisher_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/oauth2"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
)

// intoTheVoid returns a publisher whose gateway accepts everything and keeps nothing.
func intoTheVoid(t *testing.T) *publisher.Publisher {
	t.Helper()
	client := testkit.Must(gateway.New(gateway.Config{
		BaseURL: acceptAll(t), TokenSource: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"}),
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	pub := testkit.Must(publisher.New(publisher.Config{Client: client, TenantID: someID, EndpointID: someID}, nil))(t)
	t.Cleanup(func() { _ = pub.Close() })
	return pub
}

// A message that is sent at the first attempt costs at most 75 allocations, of which net/http
// makes about 41 of its own. The message is made before.
func TestAllocationsOfAMessage(t *testing.T) {
	pub := intoTheVoid(t)
	atMost := 75.0
	if raceDetector {
		atMost += 8 // net/http fills its pools again
	}
	for name, ctx := range map[string]context.Context{"no context": nil, "a context that may end": t.Context()} {
		for _, size := range []int{1 << 10, 12 << 10, 192 << 10} {
			t.Run(fmt.Sprintf("%s, %d KiB", name, size>>10), func(t *testing.T) {
				msg := message.NewMessage(someID, make([]byte, size))
				if ctx != nil {
					msg.SetContext(ctx)
				}
				if got := testing.AllocsPerRun(200, func() {
					if err := pub.Publish(typeJSON, msg); err != nil {
						t.Error(err)
					}
				}); got > atMost {
					t.Errorf("got %v allocations, want at most %v", got, atMost)
				} else {
					t.Logf("%v allocations", got)
				}
			})
		}
	}
}

// A hundred megabytes that can be read once are sent in constant memory, without a claim check.
func TestSendIsStreamed(t *testing.T) {
	pub := intoTheVoid(t)
	const size = 100 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	testkit.NoError(t, pub.Send(t.Context(), publisher.Message{Type: typeJSON, Body: io.LimitReader(zeros{}, size), Size: size}))
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(1<<20); got > most {
		t.Errorf("allocated %d bytes, want at most %d", got, most)
	}
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// acceptAll is a service that accepts every message, without allocations of its own.
func acceptAll(t *testing.T) (url string) {
	t.Helper()
	ln := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // closed
			}
			conns.Go(func() { acceptMessages(conn) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
	return "http://" + ln.Addr().String()
}

// acceptMessages answers the requests of one connection until its client closes it.
func acceptMessages(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	name, answer := []byte("Content-Length: "), []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	for length := 0; ; {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if digits, ok := bytes.CutPrefix(line, name); ok {
			length = 0
			for _, d := range bytes.TrimSpace(digits) {
				length = 10*length + int(d-'0')
			}
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := in.Discard(length); err != nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
