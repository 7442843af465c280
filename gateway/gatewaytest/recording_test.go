package gatewaytest

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"io"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// Whatever is in a file, it is read in full and can be played, or refused.
func FuzzRecording(f *testing.F) {
	const head = `{"gateway_recording":1}` + "\n"
	const first = head + `{"request":1,"method":"GET","path":"/events"}` + "\n"
	const digest = `"sha256":"` + "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff" + `"`
	for _, lines := range []string{
		"", "{}", `{"gateway_recording":2}`, head, first, head + `{"request":1}`, first + `{"request":1,"status":200}` + "\n" + `{"request":1,"end":"complete"}`,
		first + `{"request":1,"status":200,"body":[{"text":"data: "},{"size":3,` + digest + `,"as":"base64"},{"payload_uri":7},{"bytes":"//8="}],"end":"cut"}`,
		first + `{"request":1,"status":200}` + "\n" + `{"request":1,"body":[{"text":"data: "},{"size":3,` + digest + `,"as":"base64"},{"payload_uri":7},{"bytes":"//8="}],"end":"cut"}`,
		first + `{"request":1,"status":200,"header":{"Set-Cookie":"x"}}`, first + `{"request":1,"at":-1,"end":"cut"}`, first + `{"request":1,"end":"sometimes"}`,
		first + `{"request":1,"status":200}` + "\n" + `{"request":1,"body":[{"size":99999999999,` + digest + `,"as":"raw"}]}`,
		first + `{"request":1,"status":200}` + "\n" + `{"request":1,"body":[{"size":999999999,` + digest + `,"as":"base64"}]}`,
	} {
		f.Add(lines)
	}
	f.Fuzz(func(t *testing.T, text string) {
		recorded, err := decodeRecording(strings.NewReader(text))
		if err != nil {
			return
		}
		for key, requests := range recorded {
			for _, request := range requests {
				if key != request.key || len(request.lines) == 0 || request.status() != 0 && (request.status() < 200 || request.status() > 599) {
					t.Errorf("%q: %+v", key, request)
				}
				for _, line := range request.lines {
					for _, part := range line.Body {
						if part.Size > 1<<20 {
							continue
						}
						if err := part.write(io.Discard, "http://localhost"); err != nil {
							t.Errorf("%+v: %v", part, err)
						}
					}
				}
			}
		}
	})
}

// Whatever a gateway sends, and in whatever pieces, the program gets the same bytes, without payload_uri, and what is
// recorded is a recording.
func FuzzRecorder(f *testing.F) {
	const secret = "c2VjcmV0IGZhcm0gZGF0YQ=="
	for _, stream := range []string{
		"", ":\n\n", "event: A\ndata: {\"payload\":\"" + secret + "\"}\n\n", "data:{\"a\":[1,{\"payload\":\"" + secret + "\"}]}\r\rdata: {\"payload\":\"" + secret,
		"data: {\"payload\":null,\"payload_uri\":\"https://example.com/x?y\"}\n\n", "data: \"\\ud800\xff\nid: \xff\n", "data: {}}\n" + secret + "\n",
	} {
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		var to strings.Builder
		recorder := testkit.Must(NewRecorder(RecorderConfig{BaseURL: "http://localhost", TokenURL: "http://localhost", To: &to}))(t)
		x := &exchange{recorder: recorder, request: httptest.NewRequestWithContext(t.Context(), "GET", "/events", nil), number: 1}
		x.line(recordedLine{Method: "GET", Path: "/events"})
		x.line(recordedLine{Status: 200})
		for _, source := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream))} {
			body := &eventBody{source: io.NopCloser(source), x: x, input: make([]byte, 512)}
			passed, err := io.ReadAll(body)
			if err != nil || len(recorder.uris) == 0 && string(passed) != stream {
				t.Errorf("passed on %q for %q, %v", passed, stream, err)
			}
			text := to.String()
			if recorded, err := decodeRecording(strings.NewReader(text)); err != nil || len(recorded) != 1 {
				t.Errorf("%q: %v\n%s", stream, err, text)
			}
			x.number++
			x.line(recordedLine{Method: "GET", Path: "/events"})
			x.line(recordedLine{Status: 200})
		}
	})
}

// A file that is not what a recorder writes is refused, and the error says where.
func TestBadRecording(t *testing.T) {
	const first = `{"gateway_recording":1}` + "\n" + `{"request":1,"method":"GET","path":"/events"}` + "\n"
	for _, text := range []string{
		"", "{}", `{"gateway_recording":2}`, first + "{\n", first + `{"request":1,"status":200,"header":{"Set-Cookie":"x"}}`, first + `{"request":2,"end":"cut"}`,
		first + `{"request":1,"end":"cut"}` + "\n" + `{"request":1,"end":"cut"}`, first + `{"request":1,"body":[{"text":"x"}]}`, first + `{"request":1,"end":"complete"}`,
	} {
		if _, err := decodeRecording(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a file takes in memory is a small multiple of its size, whatever is in it.
func TestHostileRecording(t *testing.T) {
	const first = `{"gateway_recording":1}` + "\n" + `{"request":1,"method":"GET","path":"/events"}` + "\n" + `{"request":1,"status":200}` + "\n"
	const size = 1 << 20
	for name, c := range map[string]struct {
		before, again, after string
		good                 bool
	}{
		"empty parts":     {`{"request":1,"body":[`, `{},`, `{}]}`, false},
		"null parts":      {`{"request":1,"body":[`, `null,`, `{}]}`, false},
		"empty text":      {`{"request":1,"body":[`, `{"text":""},`, `{}]}`, false},
		"lists":           {`{"request":1,"body":[`, `[],`, `[]]}`, false},
		"short parts":     {`{"request":1,"body":[`, `{"text":"x"},`, `{"text":"x"}]}`, true},
		"nothing":         {``, `{"request":1}` + "\n", ``, false},
		"short lines":     {``, `{"request":1,"body":[{"text":"x"}]}` + "\n", ``, true},
		"headers":         {`{"request":2,"method":"GET","path":"/","header":{`, `"":"",`, `"":""}}`, false},
		"unknown members": {`{"request":1,"end":"cut",`, `"x":0,`, `"x":0}`, true},
	} {
		text := first + c.before + strings.Repeat(c.again, size/len(c.again)) + c.after
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		recorded, err := decodeRecording(strings.NewReader(text))
		took := func() int64 { runtime.ReadMemStats(&after); return int64(after.TotalAlloc - before.TotalAlloc) }
		limit := int64(8 * size)
		if c.good { // what was given away again does not count
			took = func() int64 {
				runtime.GC()
				runtime.ReadMemStats(&after)
				return int64(after.HeapAlloc) - int64(before.HeapAlloc)
			}
			limit = 20 * size
		}
		if took() > limit {
			t.Errorf("%s: %d bytes took %d in memory", name, len(text), took())
		}
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		runtime.KeepAlive(recorded)
	}
}

// A recorder that was killed while it wrote its last line has recorded what is before that.
func TestTornRecording(t *testing.T) {
	recorded, err := decodeRecording(strings.NewReader(`{"gateway_recording":1}
{"request":1,"method":"GET","path":"/events"}
{"request":1,"sta`))
	if err != nil || len(recorded["GET /events"]) != 1 {
		t.Errorf("%v, %v", recorded, err)
	}
}

// A replay keeps the rhythm of the recording, as many times as fast as it is told.
func TestReplayRhythm(t *testing.T) {
	const text = `{"gateway_recording":1}
{"at":5000000,"request":1,"method":"GET","path":"/events"}
{"at":6000000,"request":1,"status":200}
{"at":9000000,"request":1,"body":[{"text":"data: 1\n\n"}]}
{"at":65000000,"request":1,"body":[{"text":"data: 2\n\n"}],"end":"complete"}`
	recorded := testkit.Must(decodeRecording(strings.NewReader(text)))(t)
	for speed, want := range map[float64][]time.Duration{
		0: {0, 0, 0, 0}, 1: {0, time.Second, 4 * time.Second, time.Minute}, 60: {0, time.Second / 60, 4 * time.Second / 60, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{cfg: Config{ReplaySpeed: speed}}
			began, got := time.Now(), []time.Duration(nil)
			answer := httptest.NewRecorder()
			end := s.playLines(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/events", nil), recorded["GET /events"][0], func([]byte) {
				got = append(got, time.Since(began).Round(time.Microsecond))
			})
			for n := range want {
				want[n] = want[n].Round(time.Microsecond)
			}
			if !slices.Equal(got, want) || end != endComplete || answer.Body.String() != "data: 1\n\ndata: 2\n\n" {
				t.Errorf("speed %v: at %v, want %v; %s, %q", speed, got, want, end, answer.Body)
			}
		})
	}
}
