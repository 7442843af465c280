package main

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"os"
	"strings"
	"testing"
)

const changelog = "# Changelog\n\n## [0.2.0] - Unreleased\n\n### Added\n\n- `router.Added`\n\n### Changed\n\n" +
	"- `router.Config` and `sinks/nats.Sink.Close`,\n  also `kafka.New(…)`.\n- `sinks/old` is gone.\n" +
	"- `publisher`, `sinks/blob`: `Old` is New,\n  `Config.Dir` is Folder.\n- `Alone`\n\n" +
	"## [0.1.0]\n\n### Changed\n\n- `router.Released`\n"

func TestRun(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, change string
		status       int
		want         string
	}{
		{"type", "- ./router.Config: removed", 0, "listed     ./router.Config: removed"},
		{"field of a listed type", "- ./router.Config.Name: changed from string to int", 0, "listed     ./router"},
		{"method", "- ./sinks/nats.(*Sink).Close: removed", 0, "listed     ./sinks"},
		{"another method", "- ./sinks/nats.(*Sink).Open: removed", 1, "NOT LISTED ./sinks"},
		{"end of the path", "- ./sinks/kafka.New: changed from func() to func(int)", 0, "listed"},
		{"name that begins alike", "- ./sinks/kafka.NewAdmin: removed", 1, "NOT LISTED"},
		{"value", "- ./sinks/nats.Max, value changed from 1 to 2", 1, "NOT LISTED"},
		{"package", "- package github.com/agrimill/agrimill/sinks/old: removed", 0, "listed"},
		{"another package", "- package github.com/agrimill/agrimill/sinks/new: removed", 1, "NOT LISTED"},
		{"entry about a package", "- ./publisher.Old: removed", 0, "listed"},
		{"second line about two packages", "- ./sinks/blob.Config.Dir: removed", 0, "listed"},
		{"entry about another package", "- ./router.Old: removed", 1, "NOT LISTED"},
		{"entry without a package", "- ./publisher.Alone: removed", 1, "NOT LISTED"},
		{"only added", "- ./router.Added: removed", 1, "NOT LISTED"},
		{"listed for an earlier version", "- ./router.Released: removed", 1, "NOT LISTED"},
		{"unknown form", "- something: else", 1, "NOT LISTED"},
		{"program", "- ./cmd/agrimill/internal/config.Load: removed", 0, "0 incompatible changes"},
		{"no change", "Ignoring internal package github.com/agrimill/agrimill/internal/sse", 0, "0 incompatible changes"},
		{"nothing", "", 0, "0 incompatible changes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			status := run(strings.NewReader(tt.change+"\n"), changelog, &out)
			if got := out.String(); status != tt.status || !strings.Contains(got, tt.want) {
				t.Errorf("got status %d and %q, want status %d and %q", status, got, tt.status, tt.want)
			}
		})
	}
}

// Entries are found in the changelog as it is, whose parts have the expected titles. What is
// unreleased is short: it says what is there, not how it came to be.
func TestEntriesOfChangelog(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("../../../CHANGELOG.md"))(t)
	for _, title := range []string{" - Unreleased\n", "\n### Changed\n"} {
		if !strings.Contains(string(text), title) {
			t.Errorf("CHANGELOG.md has no %q", strings.TrimSpace(title))
		}
	}
	lines, part := 0, ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") {
			part = line
		}
		if part == "" || strings.Contains(part, "Unreleased") {
			lines++
		}
	}
	if lines > 150 {
		t.Errorf("CHANGELOG.md: %d lines are unreleased, want at most 150", lines)
	}
}
