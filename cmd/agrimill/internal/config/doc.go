// Package config loads agrimill's configuration: one YAML file, decoded into the Config structs of the packages that it configures, with
// every default filled in. Load reports every mistake at once; what a value may be is decided by the packages' Validate.
//
// The JSON Schema (schema.json) and docs/reference.md are generated from the types and their comments:
//
//	go generate ./cmd/agrimill/internal/config
package config
