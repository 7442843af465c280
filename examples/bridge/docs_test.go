package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/sinks/nats"
)

// TestDocumentedCommands runs every command line of the documentation against a
// queue with the messages 17, 18 and 19.
func TestDocumentedCommands(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(files, "../../README.md") {
		for i, line := range documented(t, file) {
			found++
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(file), i), func(t *testing.T) {
				w := newWorld(t, 16, taskData, shapes, taskData)
				w.newSink(nats.Config{Stream: "AGRIMILL_POISON", SubjectPrefix: "agrimill-poison"})
				t.Chdir(t.TempDir()) // commands may write files
				command, _, _ := strings.Cut(line, " | ")
				w.want(statusOK, words(t, command)[1:]...)
			})
		}
	}
	if found < 15 {
		t.Errorf("only %d command lines found", found)
	}
}

// documented returns the lines of a Markdown file that call the bridge, those in
// blocks and those in the text.
func documented(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, match := range regexp.MustCompile("(?m)^(\\./bridge .*)$|`(\\./bridge [^`]+)`").FindAllSubmatch(text, -1) {
		lines = append(lines, string(match[1])+string(match[2]))
	}
	return lines
}

// words splits a command line as a shell does. Single quotes are all there is.
func words(t *testing.T, line string) []string {
	t.Helper()
	var list []string
	for i, part := range strings.Split(line, "'") {
		switch {
		case i%2 == 1 && strings.HasSuffix(line[:strings.Index(line, "'"+part+"'")], " "):
			list = append(list, part)
		case i%2 == 1 || strings.ContainsAny(part, "\"$\\<>&;*?|`"):
			t.Fatalf("this test does not read shell like %q", line)
		default:
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}
