package config

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"go.yaml.in/yaml/v4"
)

// TestDocumentedConfigurations: each block of YAML in the documentation is a configuration, or is one together with what
// minimal.yaml has for the sections that the block does not have.
func TestDocumentedConfigurations(t *testing.T) {
	t.Parallel()
	pages := testkit.Must(filepath.Glob("../../../../docs/*.md"))(t)
	block := regexp.MustCompile("(?ms)^[ \t]*```yaml\n(.*?)^[ \t]*```")
	found := 0
	for _, page := range pages {
		text := testkit.Must(os.ReadFile(page))(t)
		for _, at := range block.FindAllSubmatchIndex(text, -1) {
			found++
			if err := loadDocumented(t, text[at[2]:at[3]]); err != nil {
				t.Errorf("%s:%d: %v", filepath.Base(page), 1+strings.Count(string(text[:at[2]]), "\n"), err)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d blocks found", found)
	}
}

func loadDocumented(t *testing.T, text []byte) error {
	t.Helper()
	var shown map[string]any
	if err := yaml.Unmarshal(text, &shown); err != nil {
		return err
	}
	if _, whole := shown["gateway"]; !whole || shown["routes"] == nil {
		minimal := testkit.Must(os.ReadFile("../../examples/minimal.yaml"))(t)
		var base map[string]any
		testkit.NoError(t, yaml.Unmarshal(minimal, &base))
		maps.Copy(base, shown)
		text = testkit.Must(yaml.Marshal(base))(t)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	testkit.NoError(t, os.WriteFile(secret, []byte("a-secret-of-good-length"), 0o600))
	text = regexp.MustCompile(`(_file: )(/run/|/etc/|\$\{)\S+`).ReplaceAll(text, []byte("${1}"+secret))
	_, err := Parse("documented.yaml", text, Options{Env: func(name string) string {
		switch {
		case name == "NATS_URL":
			return "nats://service.example"
		case strings.HasSuffix(name, "_URL"):
			return "https://service.example"
		}
		return "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01" // fits IDs and secrets
	}})
	return err
}
