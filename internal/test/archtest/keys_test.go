package archtest

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// documentedKey is a key of agrimill's configuration at the beginning of a piece
// of code in a text, e.g. `dedup.bbolt.path` or `subscriber.order: none`.
var documentedKey = regexp.MustCompile("`([a-z_]+(?:\\.[a-z_]+)+)(?:: [^`]*)?`")

// schema is the part of JSON Schema that agrimill's is made of.
type schema struct {
	Ref        string            `json:"$ref"`
	Defs       map[string]schema `json:"$defs"`
	Properties map[string]schema `json:"properties"`
	Additional json.RawMessage   `json:"additionalProperties"`
	Items      *schema           `json:"items"`
	AnyOf      []schema          `json:"anyOf"`
	OneOf      []schema          `json:"oneOf"`
}

// TestDocumentedKeysExist checks that the keys of agrimill's configuration that the
// documentation names are there.
func TestDocumentedKeysExist(t *testing.T) {
	t.Parallel()
	var root schema
	testkit.NoError(t, json.Unmarshal([]byte(readFile(t, "cmd/agrimill/internal/config/schema.json")), &root))
	found := 0
	for _, file := range markdownFiles(t) {
		if file == "internal/test/bench/results.md" { // names functions of Go, such as subscriber.intake
			continue
		}
		for _, match := range documentedKey.FindAllStringSubmatch(readFile(t, file), -1) {
			path := strings.Split(match[1], ".")
			if _, section := root.Properties[path[0]]; !section {
				continue
			}
			found++
			if !root.has(root, path) {
				t.Errorf("%s: the configuration of agrimill has no %s", file, match[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d keys found", found)
	}
}

// has reports whether there is something under path. In a map and in a list, any
// name and no name stand for the elements.
func (root schema) has(s schema, path []string) bool {
	if s.Ref != "" {
		return root.has(root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")], path)
	}
	if len(path) == 0 {
		return true
	}
	if next, ok := s.Properties[path[0]]; ok {
		return root.has(next, path[1:])
	}
	for _, choice := range append(s.AnyOf, s.OneOf...) {
		if root.has(choice, path) {
			return true
		}
	}
	if s.Items != nil && root.has(*s.Items, path) {
		return true
	}
	var values schema
	if len(s.Additional) > 0 && json.Unmarshal(s.Additional, &values) == nil && (values.Ref != "" || values.Properties != nil) {
		return root.has(values, path[1:])
	}
	return false
}
