package config

import (
	_ "embed"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
)

//go:embed former.yaml
var formerText []byte

// former has what became of keys that are gone, by the ends of their paths.
var former = sync.OnceValues(func() (keys map[string]string, err error) {
	err = yaml.Load(formerText, &keys)
	return keys, err
})

var index = regexp.MustCompile(`\[[^\]]*\]`)

func formerKey(path string) string {
	keys, _ := former() // a test reads it
	path = index.ReplaceAllString(path, "")
	for more := true; more; _, path, more = strings.Cut(path, ".") {
		if text, ok := keys[path]; ok {
			return text
		}
	}
	return ""
}
