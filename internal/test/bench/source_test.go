package bench

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The source is a gateway reduced to what costs next to nothing: it streams
// prepared events as fast as they are read and takes confirmations without
// looking at them. It runs in a process of its own, so that the processor time
// it takes does not count for what is measured.

const sourceEnv = "AGRIMILL_BENCH_SOURCE"

func TestMain(m *testing.M) {
	if os.Getenv(sourceEnv) != "" {
		if err := serveSource(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// event is one MESSAGE_RECEIVED event as bytes, and where the last 12 digits of
// its message ID and of its context ID stand.
type event struct {
	data   []byte
	digits [2]int
}

// newEvent renders an event with a payload of size bytes. Endpoints from 0 to
// 4095 are receiving endpoints of their own.
func newEvent(size, endpoint int) event {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i*7 + i>>8)
	}
	const (
		id      = "6f0e3a0c-3a5e-4a6c-9b57-000000000000"
		context = "0d4c1e2f-93a1-4f6e-8a44-000000000000"
	)
	data := fmt.Appendf(nil, "event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":\"%s\","+
		"\"app_message_id\":\"%s\",\"message_type\":\"iso:11783:-10:taskdata:zip\","+
		"\"sent_at\":\"2026-05-04T03:02:01.123Z\",\"received_at\":\"2026-05-04T03:02:01.456Z\",\"payload\":\"%s\","+
		"\"receiving_endpoint_id\":\"b1a7c9de-5f1b-4b7e-9c53-3f2e1d0c9%03x\",\"filename\":\"TASKDATA.ZIP\","+
		"\"tenant_id\":\"7a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d\",\"teamset_context_id\":\"team 1\"}\n\n",
		id, context, base64.StdEncoding.EncodeToString(payload), endpoint)
	end := func(s string) int { return strings.Index(string(data), s) + len(s) - 12 }
	return event{data, [2]int{end(id), end(context)}}
}

// appendEvents appends n events with consecutive IDs from first on.
func appendEvents(buf []byte, events []event, first, n int) []byte {
	for i := first; i < first+n; i++ {
		e := events[i%len(events)]
		start := len(buf)
		buf = append(buf, e.data...)
		for _, at := range e.digits {
			d := buf[start+at : start+at+12]
			for j, v := 11, i; v > 0; j, v = j-1, v/10 {
				d[j] = byte('0' + v%10)
			}
		}
	}
	return buf
}

// serveSource serves until standard input ends.
func serveSource() error {
	var count, size, keys atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"t","token_type":"Bearer","expires_in":3600}`)
	})
	mux.HandleFunc("POST /prepare", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.FormValue("count"), 10, 64)
		s, _ := strconv.ParseInt(r.FormValue("size"), 10, 64)
		k, _ := strconv.ParseInt(r.FormValue("keys"), 10, 64)
		count.Store(n)
		size.Store(s)
		keys.Store(k)
	})
	mux.HandleFunc("POST /confirmations", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /messages", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})
	serveSlow(mux)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		events := make([]event, keys.Load())
		for i := range events {
			events[i] = newEvent(int(size.Load()), i)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		batch := max(1, 256<<10/len(events[0].data))
		var buf []byte
		for i, n := 0, int(count.Load()); i < n; i += batch {
			buf = appendEvents(buf[:0], events, i, min(batch, n-i))
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("http://" + listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveSlow serves a gateway that answers a message after 20 ms, and counts those that are not
// the next one of their key, which payloads begin with, with their number.
func serveSlow(mux *http.ServeMux) {
	var mu sync.Mutex
	next, disorder := map[string]int{}, 0
	mux.HandleFunc("POST /slow/reset", func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		clear(next)
		disorder = 0
	})
	mux.HandleFunc("POST /slow/disorder", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintln(w, disorder)
	})
	mux.HandleFunc("POST /slow/messages", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fields := bytes.SplitN(body, []byte(" "), 3)
		if len(fields) == 3 {
			number, _ := strconv.Atoi(string(fields[1]))
			mu.Lock()
			if number != next[string(fields[0])] {
				disorder++
			}
			next[string(fields[0])] = number + 1
			mu.Unlock()
		}
		<-time.After(20 * time.Millisecond)
	})
}

// startSource starts the source process and returns its address.
func startSource(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), sourceEnv+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	stdin := testkit.Must(cmd.StdinPipe())(b)
	stdout := testkit.Must(cmd.StdoutPipe())(b)
	testkit.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	line := testkit.Must(bufio.NewReader(stdout).ReadString('\n'))(b)
	return strings.TrimSpace(line)
}

// prepare tells the source what the next connection gets: count events with
// payloads of size bytes for so many receiving endpoints in turn.
func prepare(b *testing.B, base string, count, size, endpoints int) {
	b.Helper()
	url := fmt.Sprintf("%s/prepare?count=%d&size=%d&keys=%d", base, count, size, endpoints)
	call(b, url)
}

func newClient(b *testing.B, base string) *gateway.Client {
	b.Helper()
	client := testkit.Must(gateway.New(gateway.Config{BaseURL: base, TokenURL: base + "/token", ClientID: "id", ClientSecret: "secret"}))(b)
	b.Cleanup(func() { _ = client.Close() })
	return client
}
