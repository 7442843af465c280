package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func events(t *testing.T, list ...event) string {
	t.Helper()
	var b strings.Builder
	for _, e := range list {
		line := testkit.Must(json.Marshal(e))(t)
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

// Every form in which a secret can be told is found, also in a test that passes,
// and is not told once more.
func TestPlantedLeaks(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	secret := s.Application().ClientSecret
	if !strings.HasPrefix(secret, gatewaytest.SecretPrefix) {
		t.Fatal("the server's secrets have another prefix")
	}
	basic := func(id string) string {
		r := testkit.Must(http.NewRequest(http.MethodPost, s.TokenURL(), nil))(t)
		r.SetBasicAuth(id, secret)
		return r.Header.Get("Authorization")
	}
	for name, text := range map[string]string{
		"secret": "cfg={" + secret + "}", "token": "Bearer " + gatewaytest.TokenPrefix + "00ff",
		"signature": "GET http://127.0.0.1/payloads/x?expires=1&signature=" + gatewaytest.SignaturePrefix + "00",
		"Basic":     basic("a"), "Basic, shifted": basic("ab"), "Basic, shifted again": basic("abc"),
		"URL encoding": base64.URLEncoding.EncodeToString([]byte(">>>?" + secret)),
	} {
		for _, part := range []int{0, len(text) / 2, len(text) - 5} { // test2json cuts long lines
			var out strings.Builder
			status := run(strings.NewReader(events(t,
				event{Action: "run", Package: "p", Test: "TestX"},
				event{Action: "output", Package: "p", Test: "TestX", Output: "    x_test.go:1: level=DEBUG " + text[:part]},
				event{Action: "output", Package: "p", Test: "TestY", Output: "in between\n"},
				event{Action: "output", Package: "p", Test: "TestX", Output: text[part:] + "\n"},
				event{Action: "pass", Package: "p", Test: "TestX"}, event{Action: "pass", Package: "p"},
			)), &out, "go test -race")
			if status != 1 || !strings.Contains(out.String(), "p TestX contains gatewaytest-") {
				t.Errorf("%s, cut at %d: status %d, output %q", name, part, status, out.String())
			}
			if strings.Contains(out.String(), secret) {
				t.Errorf("%s: the output contains it too", name)
			}
		}
	}
}

// Nothing is made of what is no secret, and the output is that of go test.
func TestOutput(t *testing.T) {
	var out strings.Builder
	status := run(strings.NewReader("go: downloading x\n"+events(t,
		event{Action: "start", Package: "p"},
		event{Action: "output", Package: "p", Test: "TestX", Output: "=== RUN   TestX\n"},
		event{Action: "output", Package: "p", Test: "TestX", Output: "noise\n"},
		event{Action: "output", Package: "p", Test: "TestX", Output: "--- PASS: TestX (0.00s)\n"},
		event{Action: "pass", Package: "p", Test: "TestX"},
		event{Action: "output", Package: "p", Output: "PASS\n"},
		event{Action: "output", Package: "p", Output: "ok  \tp\t0.1s\n"},
		event{Action: "pass", Package: "p"},
	)), &out, "go test -race")
	if want := "go: downloading x\nok  \tp\t0.1s\n"; status != 0 || out.String() != want {
		t.Errorf("status %d, output %q, want %q", status, out.String(), want)
	}
	out.Reset()
	status = run(strings.NewReader(events(t,
		event{Action: "output", Package: "p", Test: "TestX", Output: "=== RUN   TestX\n"},
		event{Action: "output", Package: "p", Test: "TestX", Output: "    x_test.go:1: wrong\n"},
		event{Action: "output", Package: "p", Test: "TestX", Output: "--- FAIL: TestX (0.00s)\n"},
		event{Action: "fail", Package: "p", Test: "TestX"},
		event{Action: "output", Package: "p", Test: "TestHangs", Output: "panic: test timed out\n"},
		event{Action: "output", Package: "p", Output: "FAIL\tp\t0.1s\n"},
		event{Action: "fail", Package: "p"},
	)), &out, "go test -race")
	if want := "go test -race -run '^TestX$' p\n    x_test.go:1: wrong\n--- FAIL: TestX (0.00s)\npanic: test timed out\nFAIL\tp\t0.1s\n"; status != 1 || out.String() != want {
		t.Errorf("status %d, output %q, want %q", status, out.String(), want)
	}
	if status := run(strings.NewReader("ok p\n"), &out, "go test"); status != 2 {
		t.Errorf("status %d for what is no JSON", status)
	}
}

// module is a folder with these files and a module.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module leak\n\ngo 1.26\n"
	for name, text := range files {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// outputOf is what a command prints in a folder.
func outputOf(dir string, words ...string) (string, error) {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	text, err := cmd.Output()
	return string(text), err
}

// The first line of a failure is the command that repeats it, and nothing else.
func TestRepeat(t *testing.T) {
	t.Parallel()
	const wrong = "{ t.Error(\"wrong\") }"
	for name, test := range map[string]struct{ text, want string }{
		"test":       {"func TestX(t *testing.T) " + wrong, "go test -run '^TestX$' leak"},
		"part":       {"func TestX(t *testing.T) { t.Run(\"a part\", func(t *testing.T) { t.Run(\"it's (1)\", func(t *testing.T) " + wrong + ") }) }", `go test -run '^TestX$/^a_part$/^it'\''s_\(1\)$' leak`},
		"name":       {"func TestX(t *testing.T) { t.Run(\"a/b\", func(t *testing.T) " + wrong + ") }", "go test -run '^TestX$/^a$/^b$' leak"},
		"fuzz":       {"func FuzzX(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, n int) " + wrong + ") }", "go test -run '^FuzzX$/^seed#0$' leak"},
		"example":    {"func ExampleX() { println() }\nfunc Example() {\n\tprintln()\n\t// Output: x\n}\n", "go test -run '^Example$' leak"},
		"panic":      {"func TestX(t *testing.T) { panic(1) }", "go test -run '^TestX$' leak"},
		"goroutine":  {"func TestX(t *testing.T) { go panic(1); select {} }", "go test -run '^TestX$' leak"},
		"exit":       {"func TestX(t *testing.T) { os.Exit(3) }", "go test leak"},
		"main":       {"func TestX(t *testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); println(\"left over\"); os.Exit(1) }", "go test leak"},
		"no build":   {"func TestX(t *testing.T) { t.NoSuchMethod() }", "go test leak"},
		"no package": {"func TestX(t *testing.T) }", "go test leak"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := module(t, map[string]string{"leak_test.go": "package leak_test\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\nfunc TestFine(t *testing.T) {}\n\n" + test.text + "\n"})
			text, _ := outputOf(dir, "go", "test", "-vet=off", "-json", "./...") // it fails, and says so
			var out strings.Builder
			if status := run(strings.NewReader(text), &out, "go test"); status != 1 {
				t.Errorf("status %d", status)
			}
			got, rest, _ := strings.Cut(out.String(), "\n")
			if got != test.want || strings.Contains(rest, "go test ") {
				t.Fatalf("got %q, want %q once:\n%s", got, test.want, out.String())
			}
			if !strings.Contains(got, "-run") {
				return
			}
			if again, err := outputOf(dir, "sh", "-c", strings.Replace(got, "go test", "go test -vet=off -v", 1)); err == nil || strings.Contains(again, "TestFine") {
				t.Errorf("the command ends with %v:\n%s", err, again)
			}
		})
	}
}

// A leak in a real test is found through go test itself.
func TestRealLeak(t *testing.T) {
	dir := module(t, map[string]string{
		"leak_test.go": "package leak\n\nimport \"testing\"\n\nfunc TestLeak(t *testing.T) { t.Log(\"" +
			strings.Repeat("long ", 5000) + gatewaytest.TokenPrefix + "17\") }\n",
	})
	text, err := outputOf(dir, "go", "test", "-json", "./...")
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var out strings.Builder
	if status := run(strings.NewReader(text), &out, "go test"); status != 1 || !strings.Contains(out.String(), "leak TestLeak contains "+gatewaytest.TokenPrefix) {
		t.Errorf("status %d, output %q", status, out.String())
	}
}
