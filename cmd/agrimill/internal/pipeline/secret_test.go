package pipeline_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A client secret that is rotated in its file counts without anything else, also when
// it comes later than the refusal of the old one.
func TestSecretFileIsRotated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "secret")
	write := func(secret string) {
		t.Helper()
		testkit.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	}
	write(w.gate.Application().ClientSecret)
	head := strings.Replace(w.head(), "client_secret: ${SECRET}", "client_secret_file: "+file, 1)
	b := w.start(head + w.natsSink() + allRoute)
	w.send(taskData, 5)
	w.waitConfirmed()

	rotated := w.gate.RotateClientSecret(w.gate.Application())
	w.gate.ExpireTokens()
	w.gate.CutStreams()
	b.logs.contains("event stream ended", "invalid_client")
	if err := os.Remove(file); err != nil { // as it may be while it is replaced
		t.Fatal(err)
	}
	b.logs.contains("level=WARN", "the client secret file cannot be read")
	write(rotated)
	w.send(taskData, 5)
	w.waitConfirmed()
	b.logs.contains("level=INFO", "the client secret changed")
	b.logs.lacks(rotated)
	b.mustStop()
	w.checkStored()
}

// One that is in the configuration is taken over by a reload, and with it only.
func TestSecretIsReloaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := func(secret string) string {
		return strings.Replace(w.head(), "${SECRET}", secret, 1) + w.natsSink() + allRoute
	}
	b := w.start(text(w.gate.Application().ClientSecret))
	w.send(taskData, 5)
	w.waitConfirmed()

	rotated := w.gate.RotateClientSecret(w.gate.Application())
	want := []string{"gateway.client_secret changed"}
	if report := b.reload(text(rotated)); !slices.Equal(report.Changed, want) || len(report.Restart) > 0 {
		t.Errorf("report %+v", report)
	}
	if report := b.reload(text(rotated)); len(report.Changed)+len(report.Restart) > 0 {
		t.Errorf("the same again: %+v", report)
	}
	w.gate.ExpireTokens()
	w.gate.CutStreams()
	w.send(taskData, 5)
	w.waitConfirmed()

	// Beside something else.
	rotated = w.gate.RotateClientSecret(w.gate.Application())
	report := b.reload(strings.Replace(text(rotated), "to: {sink: farm}", "to: {sink: farm, topic: other}", 1))
	if !slices.Contains(report.Changed, want[0]) || !slices.Contains(report.Changed, `route "farm-data" changed`) {
		t.Errorf("report %+v", report)
	}
	w.gate.ExpireTokens()
	w.gate.CutStreams()
	w.send(taskData, 5)
	w.waitConfirmed()
	b.logs.lacks(rotated)
	b.mustStop()
	w.checkStored()
}

// A password that is in a file of its own is read again with every reload; a sink with
// another one is another sink.
func TestPasswordFileIsReadAgain(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		testkit.NoError(t, os.WriteFile(file, []byte(password), 0o600))
	}
	write("first")
	text := w.head() + strings.Replace(w.natsSink(), "{nats: {", "{nats: {user: agrimill, password_file: "+file+", ", 1) + allRoute
	b := w.start(text)
	w.send(taskData, 5)
	w.waitConfirmed()
	if report := b.reload(text); len(report.Changed) > 0 {
		t.Errorf("the same password: %+v", report)
	}
	write("second")
	if report := b.reload(text); !slices.Equal(report.Changed, []string{`sink "farm" changed`}) {
		t.Errorf("another password: %+v", report)
	}
	w.send(taskData, 5)
	b.finish()
}
