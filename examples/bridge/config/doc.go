// Package config is the configuration of the bridge: one YAML file, read into
// plain Go values with every default filled in.
//
// Load reports every mistake at once, each with its line, its path and, where
// there is one, a suggestion. What a value may be is decided by the packages
// that it is for: the configuration is turned into theirs, and their Validate is
// asked.
//
// The JSON Schema (schema.json) and docs/bridge-configuration.md are made of the
// types and their comments:
//
//	go generate ./examples/bridge/config
package config
