package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/redact"
)

// hiddenValue stands for a value that may be a secret in the wrong place.
const hiddenValue = "[from the environment]"

// sources are where the values of a configuration come from, by their paths.
type sources struct {
	file string
	flag string // of the command line, for admin.address
	// keys and values have the position of each key and each value.
	keys, values map[string]place
	// environment has the values that have an environment variable in them.
	environment map[string]bool
	// secrets has the files that secrets were read from, contents digests of the other ones.
	secrets  map[string]string
	contents map[string][sha256.Size]byte
}

// line returns the line of the key at a path, or of the value if it has no key; 0 if there is none.
func (s *sources) line(path string) int {
	if at := s.keys[path]; at.line > 0 {
		return at.line
	}
	return s.values[path].line
}

// content returns a digest of the file that a path names, other than one with a secret; zero if it names none.
func (s *sources) content(path string) (digest [sha256.Size]byte) {
	if s == nil {
		return digest
	}
	return s.contents[path]
}

// Settings returns every value, defaults included and in the order of the documentation, with the line that set it. Sections
// that are absent are left out.
func (c *Config) Settings() []admin.Setting {
	list := listSettings(c)
	if c.inFile != nil {
		list.compare(listSettings(c.inFile))
	}
	return list.all
}

func listSettings(c *Config) *settings {
	list := &settings{config: c}
	list.add(reflect.ValueOf(c).Elem(), "", "")
	return list
}

// compare leaves as waiting for a restart only what the file has another value for, and adds what only the file has.
func (s *settings) compare(file *settings) {
	inFile := make(map[string]int, len(file.all))
	for i, set := range file.all {
		inFile[set.Path] = i
	}
	for i := range s.all {
		set := &s.all[i]
		at, has := inFile[set.Path]
		delete(inFile, set.Path)
		switch {
		case !set.Restart, !has:
			continue
		case set.Path == "gateway.client_secret": // it takes effect without
			set.Restart = false
			continue
		}
		from, _ := s.config.sourceOf(set.Path)
		read := !strings.HasPrefix(set.Path, "admin.") && from.content(set.Path) != file.config.source.content(set.Path) // the page rereads its own
		if set.Restart = read || !reflect.DeepEqual(s.raw[i], file.raw[at]); set.Restart {
			set.InFile = file.all[at].Value
		}
	}
	for i, set := range file.all {
		if _, only := inFile[set.Path]; !only {
			continue
		}
		if _, restart := s.config.sourceOf(set.Path); restart {
			s.all = append(s.all, admin.Setting{Path: set.Path, InFile: file.all[i].Value, Restart: true})
		}
	}
}

// SetAddress replaces admin.address by that of a flag of the command line.
func (c *Config) SetAddress(flag, address string) {
	c.Admin.Address, c.source.flag = address, flag
}

// KeepSource makes a section, whose values are those of from, have the lines of from, too, and what its files had: the new
// values, which file has, wait for a restart.
func (c *Config) KeepSource(from, file *Config, section string) {
	c.inFile = file
	kept := map[string]*sources{}
	maps.Copy(kept, c.kept) // Configs are copied
	kept[section] = cmp.Or(from.kept[section], from.source)
	c.kept = kept
}

// FilesAt returns a digest of the files that are named below a path, other than those with secrets, as they were when the
// configuration was loaded: certificates, keys, credentials. It is empty if there are none.
func (c *Config) FilesAt(path string) string {
	from, _ := c.sourceOf(path)
	if from == nil {
		return ""
	}
	digest := ""
	for _, at := range slices.Sorted(maps.Keys(from.contents)) {
		if below, ok := strings.CutPrefix(at, path+"."); ok {
			digest += fmt.Sprintf("%s %x\n", below, from.contents[at])
		}
	}
	return digest
}

// sourceOf returns the sources of a path, and whether its section waits for a restart.
func (c *Config) sourceOf(path string) (*sources, bool) {
	for section, from := range c.kept {
		if path == section || strings.HasPrefix(path, section+".") || strings.HasPrefix(path, section+"[") {
			return from, true
		}
	}
	return c.source, false
}

type settings struct {
	config *Config
	all    []admin.Setting
	raw    []any // their values
}

func (s *settings) add(v reflect.Value, path string, tag reflect.StructTag) {
	switch {
	case isScalar(v.Type()):
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			s.add(v.Elem(), path, tag)
		}
		return
	case v.Kind() == reflect.Struct:
		for _, f := range fields(v.Type()) {
			if f.base == "" {
				s.add(v.FieldByIndex(f.index), join(path, f.name), f.tag)
			}
		}
		return
	case v.Kind() == reflect.Map:
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			s.add(v.MapIndex(name), join(path, name.String()), "")
		}
		return
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.String:
		for i := range v.Len() {
			s.add(v.Index(i), fmt.Sprintf("%s[%d]", path, i), "")
		}
		return
	}
	s.all, s.raw = append(s.all, s.config.setting(v, path, tag)), append(s.raw, v.Interface())
}

// setting is a value that has no parts, or is a list of texts.
func (c *Config) setting(v reflect.Value, path string, tag reflect.StructTag) admin.Setting {
	from, restart := c.sourceOf(path)
	set := admin.Setting{Path: path, Value: shown(v, tag), Restart: restart}
	switch {
	case from == nil:
		return set
	case path == "admin.address" && from.flag != "":
		set.Source = from.flag
		return set
	}
	if line := from.line(path); line > 0 {
		set.Source = fmt.Sprintf("%s:%d", from.file, line)
	}
	set.Environment = from.environment[path]
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			set.Environment = set.Environment || from.environment[fmt.Sprintf("%s[%d]", path, i)]
		}
	}
	if _, secret := v.Interface().(Secret); !secret && set.Environment {
		set.Value = hiddenValue
	}
	if file := c.SecretFile(path); file != "" {
		set.File, set.Value = file, redacted
		if line := from.line(path + "_file"); line > 0 {
			set.Source = fmt.Sprintf("%s:%d", from.file, line)
		}
	}
	return set
}

// shown returns a value as the file has it, without what may be secret: also in texts that are not known to have any.
func shown(v reflect.Value, tag reflect.StructTag) any {
	switch value := v.Interface().(type) {
	case Secret, URL:
		return fmt.Sprint(value)
	case time.Duration:
		if value < 0 && tag.Get("off") == "true" {
			return "off"
		}
		return value.String()
	case fmt.Stringer:
		if parsers[v.Type()] != nil {
			return strings.ToLower(value.String())
		}
		if isScalar(v.Type()) {
			return value.String()
		}
	}
	switch {
	case v.Kind() == reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = shown(v.Index(i), tag)
		}
		return list
	case v.Kind() == reflect.String && tag.Get("address") == "true":
		return URL(v.String()).String()
	case v.Kind() == reflect.String:
		return redact.Addresses(v.String())
	}
	return v.Interface()
}
