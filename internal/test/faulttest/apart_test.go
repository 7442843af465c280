//go:build faults

package faulttest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// apartEnv is set in a process that runs one row: the test binary once more. Whoever sets it
// runs the rows in this process, one after the other, as a debugger wants them.
const apartEnv = "AGRIMILL_FAULTTEST_APART"

// apart runs a row in a process of its own, beside others (-parallel): its goroutines, its heap
// and its log are then nobody else's, and while it waits, another one works.
func apart(t *testing.T, row func(t *testing.T)) {
	t.Helper()
	if os.Getenv(apartEnv) != "" {
		row(t)
		return
	}
	t.Parallel()
	args := []string{"-test.v", "-test.run", "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"}
	if deadline, ok := t.Deadline(); ok { // it ends a little earlier, and says where it hangs
		args = append(args, "-test.timeout", (time.Until(deadline) - 10*time.Second).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), apartEnv+"=1")
	out := testkit.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	testkit.NoError(t, cmd.Start())
	ran := false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		ran = ran || strings.Contains(lines.Text(), "--- PASS: "+t.Name()+" (")
		_, _ = fmt.Fprintln(t.Output(), "|", lines.Text())
	}
	if err := cmd.Wait(); err != nil || lines.Err() != nil {
		t.Errorf("the process of this row: %v, %v", err, lines.Err())
	} else if !ran {
		t.Error("the process of this row did not run it")
	}
}
