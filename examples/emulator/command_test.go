package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/emulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The first line is one JSON object with exactly the documented keys, and the
// credentials in it work.
func TestFirstLine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var logs bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- command(ctx, []string{"-listen", "127.0.0.1:0", "-service", "mill", "-chunk-size", "1000", "-inline-limit", "0"}, in, &logs)
		_ = in.Close()
	}()
	stdout := bufio.NewReader(out)
	line, err := stdout.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	for _, key := range []string{"base_url", "token_url", "client_id", "client_secret", "application_id", "software_version_id", "tenant_id", "service"} {
		if got[key] == "" {
			t.Errorf("%s is missing", key)
		}
	}
	if len(got) != 8 || got["service"] != "mill" {
		t.Errorf("%s", line)
	}

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, got["token_url"], strings.NewReader("grant_type=client_credentials"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(got["client_id"], got["client_secret"])
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("token: %d", res.StatusCode)
	}

	cancel()
	if rest, err := io.ReadAll(stdout); err != nil || len(rest) > 0 {
		t.Errorf("more on stdout: %q, %v", rest, err)
	}
	if got := <-status; got != 0 {
		t.Errorf("exit status %d", got)
	}
	if strings.Contains(logs.String(), got["client_secret"]) {
		t.Error("the secret is in the log")
	}
	if !strings.Contains(logs.String(), "operation=token") || !strings.Contains(logs.String(), got["base_url"]+emulator.ControlPrefix) {
		t.Errorf("log: %s", logs.String())
	}
}

func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		says   string
	}{
		{"-help", 0, "-inline-limit"},
		{"-nonsense", 2, "nonsense"},
		{"argument", 2, `unexpected argument "argument"`},
		{"-chunk-size 0", 2, "-chunk-size"},
		{"-inline-limit -1", 2, "-inline-limit"},
		{"-service a/b", 2, "ServiceName"},
		{"-listen nonsense", 2, "Listen"},
		{"-listen 127.0.0.1:99999", 1, "99999"},
	} {
		var stdout, stderr bytes.Buffer
		status := command(t.Context(), strings.Fields(test.args), &stdout, &stderr)
		if status != test.status || stdout.Len() > 0 || !strings.Contains(stderr.String(), test.says) {
			t.Errorf("%s: status %d, stdout %q, stderr %q", test.args, status, stdout.String(), stderr.String())
		}
	}
}
