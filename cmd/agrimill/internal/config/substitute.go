package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// substitute returns the text of a scalar with ${NAME} replaced. fromEnv says that part of
// it came from the environment.
func (d *decoder) substitute(node *yaml.Node, path string, secret bool) (text string, fromEnv, ok bool) {
	var b strings.Builder
	rest, ok := node.Value, true
	for {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String(), fromEnv, ok
		}
		if strings.HasSuffix(before, "$") { // $${ is ${
			b.WriteString(before[:len(before)-1] + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		expression, after, found := strings.Cut(after, "}")
		if !found {
			d.wrong(node, path, "has ${ without }", "write $${ for a literal ${")
			return "", false, false
		}
		rest = after
		name, fallback, hasFallback := strings.Cut(expression, ":-")
		if !validName(name) {
			d.wrong(node, path, fmt.Sprintf("has ${%s}, which is not the name of an environment variable", expression), "write ${NAME} or ${NAME:-default}, or $${ for a literal ${")
			ok = false
			continue
		}
		switch value := d.options.Env(name); {
		case value != "":
			b.WriteString(value)
			fromEnv = true
		case hasFallback:
			b.WriteString(fallback)
		default:
			suggestion := "set it, or write ${" + name + ":-default}"
			if secret {
				suggestion = "set it"
			}
			d.missing(place{node.Line, node.Column}, path, path, "needs the environment variable "+name+", which is unset or empty", suggestion)
			ok = false
		}
	}
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
