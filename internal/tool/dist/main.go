// Command dist builds what a release has: for each target a binary with version and commit, and its SBOM (SPDX 2.3); the licenses
// of everything that is linked; manual pages; and checksums of these files. From one commit it makes the same bytes in any folder.
//
//	go run ./internal/tool/dist -o dist -sbom 'go run github.com/anchore/syft/cmd/syft@VERSION' linux/amd64 windows/arm64
//
// It runs in the root of a clone. The version is the commit's tag v…, or devel; a commit with changes has the suffix -dirty.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	module  = "github.com/agrimill/agrimill"
	program = "./cmd/agrimill"
)

func main() {
	dir := flag.String("o", "dist", "folder that is made anew")
	sbom := flag.String("sbom", "", "command line that runs syft")
	flag.Parse()
	if *sbom == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: dist -o DIR -sbom COMMAND OS/ARCH...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := write(ctx, *dir, strings.Fields(*sbom), flag.Args(), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// release identifies what is built.
type release struct {
	version, commit string
	time            time.Time // of the commit
}

// flags are those of a build whose bytes depend on the commit alone.
func (r release) flags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.release=" + r.version + " -X main.revision=" + r.commit}
}

// write makes dir anew, with everything for targets.
func write(ctx context.Context, dir string, sbom, targets []string, progress io.Writer) error {
	r, err := current(ctx)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	texts := licenses{}
	for _, target := range targets {
		system, processor, ok := strings.Cut(target, "/")
		if !ok {
			return fmt.Errorf("target %q is not OS/ARCH", target)
		}
		environment := []string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + processor}
		name := "agrimill-" + system + "-" + processor
		binary := filepath.Join(dir, name)
		if system == "windows" {
			binary += ".exe"
		}
		fmt.Fprintln(progress, binary)
		if _, err := output(ctx, "", environment, "go", slices.Concat([]string{"build"}, r.flags(), []string{"-o", binary, program})...); err != nil {
			return err
		}
		if err := writeSBOM(ctx, binary, filepath.Join(dir, name+".spdx.json"), sbom, r); err != nil {
			return err
		}
		listed, err := output(ctx, "", environment, "go", "list", "-deps", "-json=Dir,Standard,Module", program)
		if err != nil {
			return err
		}
		if err := texts.collect(listed); err != nil {
			return err
		}
	}
	dated := []string{"CGO_ENABLED=0", "SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.time.Unix(), 10)}
	if _, err := output(ctx, "", dated, "go", slices.Concat([]string{"run"}, r.flags(), []string{program, "man", filepath.Join(dir, "man1")})...); err != nil {
		return err
	}
	root, err := output(ctx, "", nil, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	if err := texts.add("Go", strings.TrimSpace(string(root)), strings.TrimSpace(string(root))); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSES.txt"), texts.text(), 0o644); err != nil {
		return err
	}
	return writeChecksums(dir)
}

// current returns what the clone in the working directory is at.
func current(ctx context.Context) (release, error) {
	var r release
	shown, err := output(ctx, "", nil, "git", "log", "-1", "--format=%H %cI")
	if err != nil {
		return r, err
	}
	commit, at, _ := strings.Cut(strings.TrimSpace(string(shown)), " ")
	if r.time, err = time.Parse(time.RFC3339, at); err != nil {
		return r, err
	}
	changed, err := output(ctx, "", nil, "git", "status", "--porcelain")
	if err != nil {
		return r, err
	}
	r.version, r.commit = "devel", commit
	if len(changed) > 0 {
		r.commit += "-dirty"
	}
	tags, err := output(ctx, "", nil, "git", "tag", "--points-at", "HEAD", "--list", "v*", "--sort=-version:refname")
	if err != nil {
		return r, err
	}
	if tag, _, _ := strings.Cut(string(tags), "\n"); tag != "" && len(changed) == 0 {
		r.version = tag
	}
	return r, nil
}

// writeSBOM has syft read the modules and their licenses from a binary. Its documents have a random name and the time of
// day: here they get the binary's digest and the time of the commit.
func writeSBOM(ctx context.Context, binary, file string, sbom []string, r release) error {
	digest, err := digestOf(binary)
	if err != nil {
		return err
	}
	args := append(slices.Clone(sbom[1:]), "scan", "file:"+binary, "-q", "-o", "spdx-json", "--select-catalogers", "go",
		"--source-name", filepath.Base(binary), "--source-version", r.version)
	made, err := output(ctx, "", []string{"SYFT_CHECK_FOR_APP_UPDATE=false", "SYFT_GOLANG_SEARCH_LOCAL_MOD_CACHE_LICENSES=true"}, sbom[0], args...)
	if err != nil {
		return err
	}
	document, err := reproducible(made, "https://"+module+"/spdx/"+filepath.Base(binary)+"-"+digest, r.time, path.Base(sbom[len(sbom)-1]))
	if err != nil {
		return fmt.Errorf("SBOM of %s: %w", binary, err)
	}
	return os.WriteFile(file, document, 0o644)
}

// reproducible replaces what differs between two runs in an SPDX document; tool is syft with its version.
func reproducible(made []byte, namespace string, at time.Time, tool string) ([]byte, error) {
	var document map[string]any
	if err := json.Unmarshal(made, &document); err != nil {
		return nil, err
	}
	created, ok := document["creationInfo"].(map[string]any)
	packages, _ := document["packages"].([]any)
	if version, _ := document["spdxVersion"].(string); !ok || !strings.HasPrefix(version, "SPDX-2.") || len(packages) < 2 {
		return nil, errors.New("is no SPDX 2 document with packages")
	}
	document["documentNamespace"] = namespace
	created["created"] = at.UTC().Format(time.RFC3339)
	created["creators"] = []string{"Tool: " + strings.ReplaceAll(tool, "@", "-")}
	text, err := json.MarshalIndent(document, "", " ")
	return append(text, '\n'), err
}

// writeChecksums writes SHA256SUMS of the files in dir, as sha256sum does.
func writeChecksums(dir string) error {
	var sums strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		digest, err := digestOf(filepath.Join(dir, name))
		fmt.Fprintf(&sums, "%s  %s\n", digest, name)
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

func digestOf(file string) (string, error) {
	data, err := os.ReadFile(file)
	return fmt.Sprintf("%x", sha256.Sum256(data)), err
}

// output runs a command and returns its stdout.
func output(ctx context.Context, dir string, environment []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}
