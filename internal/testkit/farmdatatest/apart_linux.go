package farmdatatest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What an input of up to MostInput bytes may cost: processor time, and all memory that Go has from the system.
const (
	MostInput  = 2 << 20
	MostTime   = 10 * time.Second
	MostMemory = 256 << 20
)

const (
	apartFile = "FARMDATA_APART_FILE"
	apartHow  = "FARMDATA_APART_HOW"
)

// IsApart calls measure with the file, and how it was asked to, and prints what it returns, in a process that Apart started; in
// others it returns false.
func IsApart[T any](measure func(file, how string) T) bool {
	file := os.Getenv(apartFile)
	if file == "" {
		return false
	}
	b, err := json.Marshal(measure(file, os.Getenv(apartHow)))
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(os.Stdout, "MEASURED %s\n", b)
	return true
}

// Apart runs the test again, up to IsApart, in a process of its own with a file of a content, and returns what that measured.
func Apart[T any](t *testing.T, content []byte, how string) (measured T) {
	t.Helper()
	if len(content) > MostInput {
		t.Fatalf("%d bytes, want at most %d", len(content), MostInput)
	}
	file := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), apartFile+"="+file, apartHow+"="+how)
	out, err := cmd.CombinedOutput()
	_, line, ok := strings.Cut(string(out), "MEASURED ")
	if err == nil && ok {
		err = json.NewDecoder(strings.NewReader(line)).Decode(&measured)
	}
	if err != nil || !ok {
		t.Fatalf("%v\n%s", err, out)
	}
	return measured
}

// Processor returns the processor time of the process or of the thread: syscall.RUSAGE_SELF or syscall.RUSAGE_THREAD.
func Processor(who int) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(who, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
