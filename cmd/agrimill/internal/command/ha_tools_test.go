//go:build ha

package command

import (
	"encoding/json"
	"github.com/agrimill/agrimill/internal/testkit"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// haClock is the environment variable that says by how many seconds the clock of a program is ahead
// that buildShifted has built.
const haClock = "CLOCK_AHEAD"

// buildShifted builds agrimill with a wall clock that can be ahead or behind: of the package time it
// changes one line, so that everything in the process, libraries included, sees it.
func (w *endToEnd) buildShifted() string {
	w.Helper()
	root := testkit.Must(exec.CommandContext(w.Context(), "go", "env", "GOROOT").Output())(w)
	pkg := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source := testkit.Must(os.ReadFile(filepath.Join(pkg, "time.go")))(w)
	const line = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	before, after, ok := strings.Cut(string(source), line)
	if !ok {
		w.Fatal("time.Now is another one in this version of Go: adapt buildShifted")
	}
	overlay := map[string]string{}
	for name, text := range map[string]string{
		"time.go": before + line + "\tsec += ahead\n" + after,
		"ahead.go": `package time

import "syscall"

var ahead = func() int64 {
	text, _ := syscall.Getenv("` + haClock + `")
	n, _ := atoi(text)
	return int64(n)
}()
`,
	} {
		path := filepath.Join(w.folder, name)
		must(w, os.WriteFile(path, []byte(text), 0o600))
		overlay[filepath.Join(pkg, name)] = path
	}
	text, _ := json.Marshal(map[string]any{"Replace": overlay}) // such values cannot fail
	file := filepath.Join(w.folder, "overlay.json")
	must(w, os.WriteFile(file, text, 0o600))
	return w.build("agrimill-shifted", "../..", "-overlay", file)
}

// clock is the time that the instance has written into its log.
func (i *haInstance) clock() time.Time {
	i.Helper()
	at, err := time.Parse(time.RFC3339, i.line(`time=(\S+)`))
	if err != nil {
		i.Error(err)
	}
	return at
}

// isStopped reports whether the process is stopped by a signal.
func (p *process) isStopped() bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "stat"))
	_, state, _ := strings.Cut(string(stat), ") ") // behind the name
	return err == nil && strings.HasPrefix(state, "T")
}
