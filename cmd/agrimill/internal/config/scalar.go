package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go/jetstream"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/sinks"
)

// parsers parse values of types that cannot unmarshal themselves; their tags say which there are.
var parsers = map[reflect.Type]func(text string) any{
	reflect.TypeFor[jetstream.StorageType](): func(text string) any {
		return map[string]jetstream.StorageType{"file": jetstream.FileStorage, "memory": jetstream.MemoryStorage}[text]
	},
	reflect.TypeFor[jetstream.RetentionPolicy](): func(text string) any {
		return map[string]jetstream.RetentionPolicy{"limits": jetstream.LimitsPolicy, "workqueue": jetstream.WorkQueuePolicy}[text]
	},
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// isScalar reports whether a type is written as a single value although its kind suggests
// otherwise.
func isScalar(t reflect.Type) bool {
	return parsers[t] != nil || reflect.PointerTo(t).Implements(textUnmarshaler)
}

// value is one that is being decoded: the text of a node for a place in a Config.
type value struct {
	node *yaml.Node
	path string
	tag  reflect.StructTag
	text string
	// fromEnvironment is set if part of the text may be a misplaced secret.
	fromEnvironment bool
}

// scalar decodes one value. 0 for a count, a size or a duration keeps the default: where 0 means
// something else, it is the default. An empty value is a mistake, unless it is that of ${NAME:-}.
func (d *decoder) scalar(node *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	if node.Kind != yaml.ScalarNode {
		d.wrong(node, path, fmt.Sprintf("must be %s, not %s", typeName(v.Type(), tag), kindName(node)), "")
		return
	}
	_, secret := v.Interface().(Secret)
	text, whole, ok := d.substitute(node, path, secret)
	if !ok {
		return
	}
	if strings.Contains(node.Value, "${") {
		d.environment[path] = true
	}
	switch {
	case text != "" || tag.Get("empty") == "true":
	case d.environment[path] && tag.Get("required") != "true": // ${NAME:-}: as without the key
		delete(d.keys, path)
		return
	default:
		d.wrong(node, path, "is empty", "write a value, or remove it")
		return
	}
	read := value{node, path, tag, text, whole}
	suggestion, ok := read.oneOf()
	if ok {
		suggestion, ok = d.set(read, v)
	}
	if ok {
		return
	}
	shown := strconv.Quote(text)
	if whole {
		shown = "the value from the environment"
	}
	d.wrong(node, path, fmt.Sprintf("must be %s, not %s", typeName(v.Type(), tag), shown), suggestion)
}

// oneOf reports whether the value is allowed where only some are.
func (r value) oneOf() (suggestion string, ok bool) {
	allowed := strings.Split(r.tag.Get("enum"), ",")
	if allowed[0] == "" || slices.Contains(allowed, r.text) {
		return "", true
	}
	if near := nearest(r.text, allowed); near != "" {
		return "did you mean " + near + "?", false
	}
	return "", false
}

// set sets v by its type, or else by its kind. false means that the value is not one of those; the suggestion is for that.
func (d *decoder) set(r value, v reflect.Value) (suggestion string, ok bool) {
	switch target := v.Addr().Interface().(type) {
	case *Secret:
		*target = Secret(strings.TrimRight(r.text, "\r\n")) // as in a file
		if !r.fromEnvironment {
			d.add(SeverityWarning, place{r.node.Line, r.node.Column}, r.path, "is a secret in plain text",
				"take it from the environment with ${NAME}, or from a file with "+lastKey(r.path)+"_file")
		}
		return "", true
	case *URL:
		*target = URL(r.text)
		d.passwordIn(r.text, r.fromEnvironment, r.node, r.path)
		return "", true
	case *time.Duration:
		return r.duration(target)
	case encoding.TextUnmarshaler:
		return "", target.UnmarshalText([]byte(r.text)) == nil
	}
	if parse := parsers[v.Type()]; parse != nil {
		v.Set(reflect.ValueOf(parse(r.text)))
		return "", true
	}
	switch v.Kind() {
	case reflect.String:
		return d.setString(r, v)
	case reflect.Bool:
		return r.boolean(v)
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		return r.number(v)
	case reflect.Float64:
		n, err := strconv.ParseFloat(r.text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return "", false
		}
		v.SetFloat(n)
	default:
		// A key that was added without support for its type: no input leads here.
		d.wrong(r.node, r.path, "cannot be decoded: this version does not support values of type "+v.Type().String(), "remove the key")
	}
	return "", true
}

func (r value) duration(target *time.Duration) (suggestion string, ok bool) {
	if r.tag.Get("off") == "true" && r.text == "off" {
		*target = -1
		return "", true
	}
	n, suggestion, ok := parseDuration(r.text)
	if ok && n != 0 { // 0 is the default
		*target = n
	}
	return suggestion, ok
}

func (d *decoder) setString(r value, v reflect.Value) (suggestion string, ok bool) {
	if !r.fromEnvironment && r.node.ShortTag() == "!!bool" && r.node.Style == 0 && r.tag.Get("enum") == "" {
		return "quote it if a string is intended", false
	}
	if r.tag.Get("address") == "true" {
		d.passwordIn(r.text, r.fromEnvironment, r.node, r.path)
	}
	if r.tag.Get("file") == "true" && !filepath.IsAbs(r.text) {
		r.text = filepath.Join(d.dir, r.text)
	}
	v.SetString(r.text)
	return "", true
}

func (r value) boolean(v reflect.Value) (suggestion string, ok bool) {
	switch r.text {
	case "true", "false":
		v.SetBool(r.text == "true")
		return "", true
	case "yes", "on", "Yes", "On", "True", "TRUE", "1":
		return "write true", false
	}
	return "write true or false", false
}

func (r value) number(v reflect.Value) (suggestion string, ok bool) {
	n, err := strconv.ParseInt(r.text, 10, 64)
	if r.tag.Get("unit") == "bytes" {
		size, wrong := humanize.ParseBytes(r.text)
		if wrong != nil || size > math.MaxInt64 || strings.Contains(r.text, ",") { // ParseBytes reads 1,5GiB as 15GiB
			return "write a number of bytes, or one with KiB, MiB or GiB", false
		}
		n, err = int64(size), nil
	}
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return "", false
	case err != nil || v.OverflowInt(n):
		return fmt.Sprintf("at most %d", uint64(1)<<(v.Type().Bits()-1)-1), false
	case n != 0: // 0 is the default
		v.SetInt(n)
	}
	return "", true
}

func (d *decoder) passwordIn(text string, whole bool, node *yaml.Node, path string) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.User == nil || whole {
		return
	}
	if _, secret := parsed.User.Password(); secret && !strings.Contains(node.Value, "${") {
		d.add(SeverityWarning, place{node.Line, node.Column}, path, "contains a password in plain text", "take it from the environment with ${NAME}")
	}
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// maxDays fits into a time.Duration.
const maxDays = 100_000

func parseDuration(text string) (d time.Duration, suggestion string, ok bool) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 32)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, "write whole days, e.g. 7d", false
		case err != nil || n > maxDays:
			return 0, fmt.Sprintf("at most %dd", maxDays), false
		}
		return time.Duration(n) * 24 * time.Hour, "", true
	}
	d, err := time.ParseDuration(text)
	if err == nil && d >= 0 {
		return d, "", true
	}
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		return 0, "add a unit: " + text + "s", false
	}
	return 0, "write a number with ms, s, m, h or d, e.g. 30s or 1h30m", false
}

func kindName(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a section with keys"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func typeName(t reflect.Type, tag reflect.StructTag) string {
	if allowed := tag.Get("enum"); allowed != "" {
		return oneOf(strings.Split(allowed, ","))
	}
	switch {
	case t == reflect.TypeFor[time.Duration]() && tag.Get("off") == "true":
		return "a duration or off"
	case t == reflect.TypeFor[time.Duration]():
		return "a duration"
	case tag.Get("unit") == "bytes":
		return "a size"
	case t == reflect.TypeFor[URL](), tag.Get("address") == "true":
		return "an address"
	case t == reflect.TypeFor[sinks.Synced]():
		return "always, replicas, or the interval as a duration"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a string"
}

func oneOf(values []string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

var (
	// variable is the name of an environment variable, reference where one is named.
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	reference = regexp.MustCompile(`\$\$\{|\$\{[^}]*\}?`)
	// shell is how a shell names one; in a subject of NATS, $ begins a token.
	shell = regexp.MustCompile(`^\$[A-Z][A-Z0-9_]*$`)
)

// substitute returns the text of a scalar with ${NAME} replaced. fromEnv says that part of
// it came from the environment.
func (d *decoder) substitute(node *yaml.Node, path string, secret bool) (text string, fromEnv, ok bool) {
	ok = true
	if shell.MatchString(node.Value) && !secret { // of those, any text in the file is a warning
		d.add(SeverityWarning, place{node.Line, node.Column}, path, "is taken as it is: "+node.Value, "write ${"+node.Value[1:]+"} for the environment variable")
	}
	text = reference.ReplaceAllStringFunc(node.Value, func(found string) (value string) {
		if found == "$${" {
			return "${"
		}
		expression, closed := strings.CutSuffix(found[2:], "}")
		name, fallback, hasFallback := strings.Cut(expression, ":-")
		switch value = d.options.Env(name); {
		case !closed:
			d.wrong(node, path, "has ${ without }", "write $${ for a literal ${")
		case !variable.MatchString(name) || strings.Contains(fallback, "${"): // the first } ends it: ${A:-${B}} would be A}
			d.wrong(node, path, fmt.Sprintf("has ${%s}, which is not the name of an environment variable", expression), "write ${NAME} or ${NAME:-default}, or $${ for a literal ${")
		case value != "":
			fromEnv = true
			return value
		case hasFallback:
			return fallback
		default:
			suggestion := "set it, or write ${" + name + ":-default}"
			if secret {
				suggestion = "set it"
			}
			d.missing(place{node.Line, node.Column}, path, path, "needs the environment variable "+name+", which is unset or empty", suggestion)
		}
		ok = false
		return ""
	})
	return text, fromEnv, ok
}
