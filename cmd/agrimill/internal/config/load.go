package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// Limits of a configuration file.
const (
	// MaxFileSize is how large it may be, in bytes.
	MaxFileSize = 1 << 20
	// maxSecretSize is how large a file with a secret may be, in bytes.
	maxSecretSize = 64 << 10
	// maxDepth is how deep it may be nested.
	maxDepth = 32
	// maxNodes is how many values it may have; those behind an alias count each time it is
	// used.
	maxNodes = 100_000
	// maxProblems is how many mistakes are reported.
	maxProblems = 200
)

// Options change how a configuration is read.
type Options struct {
	// Env returns the value of an environment variable, empty when there is none. Nil
	// means os.Getenv.
	Env func(name string) string
	// AllowMissing reports unset environment variables and unreadable files as warnings, to
	// check a configuration where its secrets are not available. What depends on them is
	// left empty, so the Config must not be used for anything else.
	AllowMissing bool
}

// Load reads the configuration in a file. It also reads the files with secrets and
// certificates that the configuration names, and nothing else: it does not use the network.
// Relative file names are relative to the directory of the configuration.
//
// The error is a [*Problems] with every mistake. Warnings are in Config.Warnings.
func Load(path string, options Options) (*Config, error) {
	data, err := Read(path)
	if err != nil {
		return nil, &Problems{List: []Problem{{Severity: SeverityError, File: path, Message: fileError(err)}}}
	}
	return Parse(path, data, options)
}

// Read reads what Load parses.
func Read(path string) ([]byte, error) { return readBounded(path, MaxFileSize) }

// Parse is Load for a file in memory. name is the file name in problems, and relative file
// names are relative to its directory.
func Parse(name string, data []byte, options Options) (*Config, error) {
	if options.Env == nil {
		options.Env = os.Getenv
	}
	d := &decoder{dir: filepath.Dir(name), options: options, excused: map[string]bool{}, sources: &sources{
		file: name, keys: map[string]place{}, values: map[string]place{}, environment: map[string]bool{},
		secrets: map[string]string{}, contents: map[string][sha256.Size]byte{},
	}}
	c := new(Config)
	if root := d.parse(data); root != nil {
		d.value(root, reflect.ValueOf(c).Elem(), "", "")
		c.deriveDefaults(d.has)
		c.source = d.sources
		d.tracingFromEnvironment(c)
		if !d.stopped {
			d.check(c)
		}
	}
	problems := &Problems{List: d.problems}
	problems.sort()
	if problems.Errors() > 0 {
		return nil, problems
	}
	c.Warnings = problems.List
	return c, nil
}

// errTooLarge: a file exceeds its limit.
var errTooLarge = errors.New("is too large")

func readBounded(path string, limit int64) ([]byte, error) {
	// A reload would wait for a pipe without end. In /dev are those of the shell, such as <(command).
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 && !strings.HasPrefix(path, "/dev/") {
		return nil, errors.New("is a pipe")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%w: at most %d bytes", errTooLarge, limit)
	}
	return data, err
}

// fileError describes why a file cannot be read, without repeating its name.
func fileError(err error) string {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		err = path.Err
	}
	return "cannot be read: " + err.Error()
}

func (d *decoder) parse(data []byte) *yaml.Node {
	if !utf8.Valid(data) {
		at := place{line: 1}
		for line := range bytes.Lines(data) {
			if !utf8.Valid(line) {
				valid, _, _ := strings.Cut(strings.ToValidUTF8(string(line), "\xff"), "\xff")
				at.column = utf8.RuneCountInString(valid) + 1
				break
			}
			at.line++
		}
		d.add(SeverityError, at, "", "is not UTF-8", "save the file as UTF-8")
		return nil
	}
	if len(data) > MaxFileSize {
		d.add(SeverityError, place{}, "", fmt.Sprintf("%s: at most %d bytes", errTooLarge, MaxFileSize), "")
		return nil
	}
	var documents []yaml.Node
	err := yaml.Load(data, &documents, yaml.WithAllDocuments(), yaml.WithUniqueKeys(false), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	var load *yaml.LoadError
	switch {
	case errors.As(err, &load):
		message := load.Message
		if load.ContextMsg != "" {
			message = load.ContextMsg + ": " + message
		}
		d.add(SeverityError, place{load.Mark.Line, load.Mark.Column}, "", "is not valid YAML: "+message, suggestSyntax(data, load.Mark.Line))
		return nil
	case err != nil:
		d.add(SeverityError, place{}, "", "is not valid YAML: "+err.Error(), "")
		return nil
	case len(documents) == 0 || len(documents[0].Content) == 0:
		d.add(SeverityError, place{}, "", "is empty", "")
		return nil
	case len(documents) > 1:
		second := documents[1]
		d.add(SeverityError, place{second.Line, second.Column}, "", "has a second document", "remove --- and everything after it")
		return nil
	}
	return documents[0].Content[0]
}

// suggestSyntax guesses what is wrong with a line that is not valid YAML.
func suggestSyntax(data []byte, line int) string {
	var text string
	for range line {
		before, after, _ := bytes.Cut(data, []byte("\n"))
		text, data = string(before), after
	}
	switch {
	case strings.HasPrefix(strings.TrimLeft(text, " "), "\t"):
		return "indent with spaces"
	case strings.Contains(text, "${") && strings.ContainsAny(strings.ReplaceAll(text, "${", ""), "{["):
		return `put "${NAME}" in quotes inside { } and [ ]`
	}
	return ""
}
