// Command apicheck reads the output of `apidiff -m -incompatible` and fails if a
// breaking change has no entry in CHANGELOG.md: one below Changed or Removed of a part
// titled Unreleased that names it in backquotes, `router.Config.Name`, `sinks/nats.New`
// or, for a whole package, `sinks/nats`. An entry that begins with
// "- `router`:" may call it `Config.Name`. An entry for a type also
// covers its fields and methods. Programs (cmd, examples) promise nothing to
// importers and are ignored.
//
//	apidiff -m -incompatible OLD NEW | go run ./internal/tool/apicheck CHANGELOG.md
//
// Exit status: 0 every change is listed, 1 one is not, 2 the input cannot be read.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: apicheck CHANGELOG.md <changes")
		os.Exit(2)
	}
	changelog, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "apicheck:", err)
		os.Exit(2)
	}
	os.Exit(run(os.Stdin, string(changelog), os.Stdout))
}

// run prints the changes in r, marking those without an entry, and returns the exit
// status.
func run(r io.Reader, changelog string, w io.Writer) int {
	listed := entries(changelog)
	changes, missing := 0, 0
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		pkg, name, ok := changed(lines.Text())
		if !ok {
			continue
		}
		changes++
		mark := "listed    "
		if !covered(listed, pkg, name) {
			mark = "NOT LISTED"
			missing++
		}
		fmt.Fprintf(w, "%s %s\n", mark, strings.TrimPrefix(lines.Text(), "- "))
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(w, "apicheck:", err)
		return 2
	}
	fmt.Fprintf(w, "%d incompatible changes, %d not in CHANGELOG.md below Changed or Removed of what is unreleased\n", changes, missing)
	if missing > 0 {
		return 1
	}
	return 0
}

const module = "github.com/agrimill/agrimill/"

var (
	// - package github.com/agrimill/agrimill/sinks/nats: removed
	packageChange = regexp.MustCompile(`^- package ` + regexp.QuoteMeta(module) + `(\S+): `)
	// - ./sinks/nats.(*Sink).Close: changed from …; of one constant: ./router.Off, value: …
	nameChange = regexp.MustCompile(`^- \./([\w/]+)\.([^:,\s]+)[:,]`)
)

// changed returns the subject of a line of apidiff; an empty name is the package. ok is
// false for a line that is not a change, or is one of a program.
func changed(line string) (pkg, name string, ok bool) {
	match := packageChange.FindStringSubmatch(line)
	if match == nil {
		match = nameChange.FindStringSubmatch(line)
	}
	if match == nil {
		// A line in another form is still a change, and no entry covers it.
		return "", line, strings.HasPrefix(line, "- ")
	}
	if len(match) > 2 {
		name = strings.NewReplacer("(*", "", ")", "").Replace(match[2])
	}
	top, _, _ := strings.Cut(match[1], "/")
	return match[1], name, top != "cmd" && top != "examples"
}

var (
	code = regexp.MustCompile("`([\\w/.]+)")
	// - `router`, `sinks/nats`: an entry about these packages.
	about = regexp.MustCompile("^- ((?:`[\\w/]+`(?:, )?)+):")
)

// entries returns the names in backquotes below Changed and Removed of a changelog's parts titled Unreleased, up to the first
// character that is not part of a name. In an entry about packages, they may omit the package.
func entries(changelog string) map[string]bool {
	names := map[string]bool{}
	part, section := "", ""
	var packages [][]string // of the current entry
	for line := range strings.Lines(changelog) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			part, section = title, ""
		}
		if title, ok := strings.CutPrefix(line, "### "); ok {
			section = title
		}
		if !strings.Contains(part, "Unreleased") || section != "Changed" && section != "Removed" {
			continue
		}
		if strings.HasPrefix(line, "- ") {
			packages = code.FindAllStringSubmatch(about.FindString(line), -1)
		}
		for _, match := range code.FindAllStringSubmatch(line, -1) {
			name := strings.TrimSuffix(match[1], ".")
			names[name] = true
			for _, pkg := range packages {
				names[pkg[1]+"."+name] = true
			}
		}
	}
	return names
}

// covered reports whether the entries name the change or what it is part of. A
// package may be named by the end of its path; that alone covers only its removal.
func covered(listed map[string]bool, pkg, name string) bool {
	if name == "" {
		return listed[pkg]
	}
	for ; name != "."; name = strings.TrimSuffix(name, path.Ext(name)) {
		if listed[pkg+"."+name] || listed[path.Base(pkg)+"."+name] {
			return true
		}
		if !strings.Contains(name, ".") {
			break
		}
	}
	return false
}
