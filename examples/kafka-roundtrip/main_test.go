package main

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/kafkatest"
)

// The broker is a stand-in in the process; CI runs the program against a real one.
func TestRoundtrip(t *testing.T) {
	cluster := kafkatest.Start(t)
	var stdout strings.Builder
	if status := command(t.Context(), []string{"-brokers", cluster.Addr()}, &stdout, t.Output()); status != 0 {
		t.Fatalf("status %d: %s", status, stdout.String())
	}
	if want := "OK 100 task files in Kafka once, 100 reports back at the terminal, everything confirmed\n"; stdout.String() != want {
		t.Errorf("got %q, want %q", stdout.String(), want)
	}
}

func TestNothingToTalkTo(t *testing.T) {
	var stdout strings.Builder
	if status := command(t.Context(), []string{"-brokers", "127.0.0.1:1"}, &stdout, t.Output()); status != 1 || !strings.HasPrefix(stdout.String(), "FAILED ") {
		t.Errorf("status %d: %q", status, stdout.String())
	}
	if status := command(t.Context(), []string{"-nonsense"}, &stdout, t.Output()); status != 2 {
		t.Errorf("status %d", status)
	}
}

func TestChecksFindWhatIsWrong(t *testing.T) {
	sums := map[string]string{"a": "1", "b": "2"}
	for name, reports := range map[string][]report{
		"other bytes": {{Context: "a", SHA256: "2"}},
		"unknown":     {{Context: "c"}},
		"twice":       {{Context: "a", SHA256: "1"}, {Context: "a", SHA256: "1"}},
	} {
		if checkReports(reports, sums) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := checkReports([]report{{Context: "a", SHA256: "1"}, {Context: "b", SHA256: "2"}}, sums); err != nil {
		t.Error(err)
	}
}
