package config

import _ "embed"

//go:generate env UPDATE=1 go test . -run Generated

//go:embed schema.json
var schemaText string

// Schema returns the JSON Schema of the configuration, for editors.
func Schema() string { return schemaText }
