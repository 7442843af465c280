// Package config loads agrimill's configuration: one YAML file, decoded into plain Go
// values with every default filled in.
//
// Load reports every mistake at once, each with its line, its path and, if possible, a
// suggestion. What a value may be is decided by the package that it configures: the
// configuration embeds the packages' own Config structs, and Load calls their Validate.
//
// The JSON Schema (schema.json) and docs/reference.md are generated from the types and
// their comments:
//
//	go generate ./cmd/agrimill/internal/config
package config
