package command

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/journal"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// A person asks for a file by a part of its name and sees its life; what is not known is said, with
// the status of a failure.
func TestTrace(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	f.put(taskData, "Field 7 \x1b[31mNorth.zip", mark)
	f.put(shapes, "other.zip", mark)
	t.Chdir(filepath.Dir(f.configure("sinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: \"127.0.0.1:0\"}\n")))
	ask := []string{"trace", "--config", "agrimill.yaml"}
	f.beside(t, append(ask, "field 7", "other.zip"))
	text := f.want(statusOK, append(ask, "field 7")...)
	for _, want := range []string{
		`(?m)^Field 7 \x{FFFD}\[31mNorth\.zip, iso:11783:-10:taskdata:zip, \d+ bytes, context [-0-9a-f]{36}, tenant \S+, endpoint [-0-9a-f]{36}, message [-0-9a-f]{36}$`,
		`(?m)^  \S+Z  received +- +$`, `(?m)^  \S+Z  started +farm-data`, `(?m)^  \S+Z  stored +task-data`, `(?m)^  \S+Z  delivered +farm-data`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, mark) || strings.Contains(text, "other.zip") {
		t.Error(text)
	}
	traces := decode[[]journal.Trace](f.world, f.want(statusOK, append(ask, "--json", "--limit", "1", "zip")...))
	if len(traces) != 1 || len(traces[0].Messages) != 1 || traces[0].More != 1 {
		t.Errorf("%+v", traces)
	}
	status, stdout, stderr := f.agrimill(append(ask, "nobody sent this", "other.zip")...)
	if status != statusFailed || !strings.Contains(stdout, "other.zip") || !strings.Contains(stderr, `nothing is known of "nobody sent this": the journal begins at 2`) {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
}

func TestTraceFails(t *testing.T) {
	w := &world{T: t, env: map[string]string{}}
	foreign := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("q") == "moved" {
			http.Redirect(rw, r, "http://192.0.2.1/", http.StatusFound)
			return
		}
		_, _ = rw.Write(bytes.Repeat([]byte("<html>"), 10))
	}))
	defer foreign.Close()
	address := strings.TrimPrefix(foreign.URL, "http://")
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{}, statusUsage, "expected an ID or a part of a filename"},
		{[]string{"x", "--admin", "http://127.0.0.1:9090"}, statusUsage, "must be host:port"},
		{[]string{"x", "--admin", "127.0.0.1:1"}, statusFailed, "no agrimill answers at 127.0.0.1:1"},
		{[]string{"x", "--admin", address}, statusFailed, "is no agrimill"},
		{[]string{"moved", "--admin", address}, statusFailed, "responded 302 Found"},
	} {
		status, stdout, stderr := w.agrimill(append([]string{"trace"}, c.args...)...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("trace %q: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}
