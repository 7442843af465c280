package sse

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"github.com/agrimill/agrimill/internal/testkit"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/iotest"
	"time"
)

// vectorDir holds the vectors of web-platform-tests, of the standard and of
// other libraries. They are not part of this repository.
const vectorDir = "../../../shared/data/sse"

type vector struct {
	Name   string   `json:"name"`
	Input  string   `json:"input_base64"`
	Chunks []string `json:"chunks_base64"`
	Events []struct {
		Type string `json:"type"`
		Data string `json:"data"`
	} `json:"expected_events"`
	RetryMS *int64 `json:"expected_retry_ms"`
}

func loadVectors(t *testing.T, file string) []vector {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(vectorDir, file))
	if errors.Is(err, fs.ErrNotExist) {
		if os.Getenv("CI") != "" {
			t.Fatalf("THE SSE VECTORS ARE ABSENT: %v", err)
		}
		t.Skipf("THE SSE VECTORS ARE ABSENT, THE READER IS NOT TESTED AGAINST THEM: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Vectors []vector `json:"vectors"`
	}
	testkit.NoError(t, json.Unmarshal(raw, &doc))
	if len(doc.Vectors) == 0 {
		t.Fatalf("%s holds no vectors", file)
	}
	return doc.Vectors
}

func (v vector) want() result {
	var res result
	for _, e := range v.Events {
		res.events = append(res.events, record{name: e.Type, data: e.Data})
	}
	if v.RetryMS != nil {
		res.retry, res.hasRe = time.Duration(*v.RetryMS)*time.Millisecond, true
	}
	return res
}

// withDefault fills in the name that the standard gives an event without one,
// which the reader leaves to its caller.
func withDefault(res result) result {
	for i := range res.events {
		if res.events[i].name == "" {
			res.events[i].name = "message"
		}
	}
	return res
}

func TestVectors(t *testing.T) {
	for _, file := range []string{"wpt-parser.json", "spec-and-libraries.json"} {
		for _, v := range loadVectors(t, file) {
			t.Run(v.Name, func(t *testing.T) {
				input := testkit.Must(base64.StdEncoding.DecodeString(v.Input))(t)
				want := v.want()
				if got := withDefault(reference(input, noLimit)); !reflect.DeepEqual(got, want) {
					t.Fatalf("the reference itself is wrong:\n got %+v\nwant %+v", got, want)
				}
				if got := withDefault(readAll(t, bytes.NewReader(input), noLimit)); !reflect.DeepEqual(got, want) {
					t.Errorf("whole:\n got %+v\nwant %+v", got, want)
				}
				if got := withDefault(readAll(t, iotest.OneByteReader(bytes.NewReader(input)), noLimit)); !reflect.DeepEqual(got, want) {
					t.Errorf("byte by byte:\n got %+v\nwant %+v", got, want)
				}
				if len(v.Chunks) > 0 {
					testChunks(t, v, want)
				}
				for cut := range len(input) + 1 {
					testCut(t, input, cut, want)
				}
			})
		}
	}
}

// testChunks gives the vector in the writes it prescribes.
func testChunks(t *testing.T, v vector, want result) {
	t.Helper()
	var src chunks
	for _, c := range v.Chunks {
		b := testkit.Must(base64.StdEncoding.DecodeString(c))(t)
		src = append(src, b)
	}
	if got := withDefault(readAll(t, &src, noLimit)); !reflect.DeepEqual(got, want) {
		t.Errorf("in its chunks:\n got %+v\nwant %+v", got, want)
	}
}

// testCut splits the input in two reads at cut, which changes nothing, and ends
// it there, which yields a prefix of the events.
func testCut(t *testing.T, input []byte, cut int, want result) {
	t.Helper()
	two := chunks{input[:cut], input[cut:]}
	if got := withDefault(readAll(t, &two, noLimit)); !reflect.DeepEqual(got, want) {
		t.Errorf("two reads, cut at %d:\n got %+v\nwant %+v", cut, got, want)
	}
	got := withDefault(readAll(t, bytes.NewReader(input[:cut]), noLimit)).events
	if len(got) > len(want.events) || (len(got) > 0 && !reflect.DeepEqual(got, want.events[:len(got)])) {
		t.Errorf("ended at %d: got %+v, not a prefix of %+v", cut, got, want.events)
	}
}

// chunks gives one chunk per read.
type chunks [][]byte

func (c *chunks) Read(p []byte) (int, error) {
	for len(*c) > 0 && len((*c)[0]) == 0 {
		*c = (*c)[1:]
	}
	if len(*c) == 0 {
		return bytes.NewReader(nil).Read(p)
	}
	n := copy(p, (*c)[0])
	(*c)[0] = (*c)[0][n:]
	return n, nil
}
