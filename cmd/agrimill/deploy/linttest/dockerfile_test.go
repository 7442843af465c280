package linttest

import (
	"bytes"
	"encoding/json"
	goversion "go/version"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stages reads the Dockerfile as BuildKit does. Its warnings fail the test.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	result := must(parser.Parse(bytes.NewReader(read(t, deploy, "Dockerfile"))))(t)
	for _, warning := range result.Warnings {
		t.Errorf("Dockerfile: %s %s", warning.Short, warning.URL)
	}
	lint := linter.New(&linter.Config{
		Warn: func(rule, _, _, message string, location []parser.Range) {
			t.Errorf("Dockerfile: %s: %s %v", rule, message, location)
		},
	})
	list, _, err := instructions.Parse(result.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// find returns the instructions of a kind.
func find[T instructions.Command](stage instructions.Stage) (list []T) {
	for _, command := range stage.Commands {
		if c, ok := command.(T); ok {
			list = append(list, c)
		}
	}
	return list
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	list := stages(t)
	if len(list) != 2 || list[1].BaseName != "scratch" {
		t.Fatalf("want two stages, the last one from scratch; got %d", len(list))
	}
	image := list[1]
	if users := find[*instructions.UserCommand](image); len(users) != 1 || !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(users[0].User) {
		t.Errorf("USER %+v: the program is to run under a number, and not that of root", users)
	}
	if runs := find[*instructions.RunCommand](image); len(runs) > 0 {
		t.Error("there is no shell to RUN something")
	}
	entrypoints := find[*instructions.EntrypointCommand](image)
	if len(entrypoints) != 1 || entrypoints[0].PrependShell || len(entrypoints[0].CmdLine) != 1 {
		t.Errorf("ENTRYPOINT %+v: want the program, without a shell", entrypoints)
	}
	for _, command := range find[*instructions.CmdCommand](image) {
		if command.PrependShell {
			t.Error("CMD: there is no shell")
		}
	}
	var certificates bool
	for _, command := range find[*instructions.CopyCommand](image) {
		certificates = certificates || command.DestPath == "/etc/ssl/certs/ca-certificates.crt"
		if command.From != list[0].Name {
			t.Errorf("COPY --from=%s", command.From)
		}
	}
	if !certificates {
		t.Error("without certificates there is no https")
	}
}

// The toolchain of the image is new enough for go.mod, and pinned.
func TestDockerfileToolchain(t *testing.T) {
	t.Parallel()
	base := stages(t)[0].BaseName
	version := regexp.MustCompile(`^golang:(1\.\d+\.\d+)-\w+$`).FindStringSubmatch(base)
	if version == nil {
		t.Fatalf("base %q is not a pinned version of golang", base)
	}
	needed := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(read(t, top, "go.mod"))
	if needed == nil {
		t.Fatal("go.mod says no version")
	}
	if goversion.Compare("go"+version[1], "go"+string(needed[1])) < 0 {
		t.Errorf("the image has Go %s, go.mod wants %s", version[1], needed[1])
	}
}

// The go build line of the Dockerfile builds a program that runs, static, out of
// nothing but what .dockerignore lets through.
func TestDockerfileBuilds(t *testing.T) {
	t.Parallel()
	var line string
	for _, run := range find[*instructions.RunCommand](stages(t)[0]) {
		if command := strings.Join(run.CmdLine, " "); strings.Contains(command, "go build") {
			line = command
		}
	}
	if !strings.Contains(line, "CGO_ENABLED=0") || !strings.Contains(line, "-o /out/agrimill") {
		t.Fatalf("RUN %q: not the build that was expected", line)
	}
	source := context(t)
	binary := filepath.Join(t.TempDir(), "agrimill")
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", strings.Replace(line, "/out/agrimill", binary, 1))
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "VERSION=v1.2.3", "REVISION=0123abc", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	out := must(exec.CommandContext(t.Context(), binary, "version", "--json").Output())(t)
	var version struct {
		Version  string `json:"version"`
		Revision string `json:"revision"`
	}
	if err := json.Unmarshal(out, &version); err != nil || version.Version != "v1.2.3" || version.Revision != "0123abc" {
		t.Errorf("agrimill version says %s, %v; want VERSION and REVISION of the build", out, err)
	}
	settings, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output()
	if err != nil || !bytes.Contains(settings, []byte("CGO_ENABLED=0")) {
		t.Errorf("not a static binary, %v:\n%s", err, settings)
	}
}

// context copies what Docker would send to the build.
func context(t *testing.T) string {
	t.Helper()
	patterns := must(ignorefile.ReadAll(bytes.NewReader(read(t, deploy, "Dockerfile.dockerignore"))))(t)
	ignored := must(patternmatcher.New(patterns))(t)
	dir := t.TempDir()
	var copied []string
	ends(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if entry.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if skip, err := ignored.MatchesOrParentMatches(name); skip || err != nil {
			return err
		}
		copied = append(copied, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	}))
	for _, name := range copied {
		if program := filepath.Ext(name) == ".go"; strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "docs/") ||
			!program && (strings.Contains(name, "secret") || !strings.Contains(name, "/") && !strings.HasPrefix(name, "go.")) {
			t.Errorf("%s goes to the build for nothing", name)
		}
	}
	if !slices.Contains(copied, "go.sum") {
		t.Error("go.sum does not go to the build")
	}
	return dir
}
