// Package validate collects the mistakes in a configuration as values that carry the
// path of their field, so that a program can locate each one in its file
// without parsing error texts.
package validate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Field is the path of another field, such as Retry.MaxBackoff, in a rule. A
// program replaces it with the field's name in its file.
type Field string

// FieldError is one mistake: a field, and the rule that it violates.
type FieldError struct {
	// Path is the field as named in Go, relative to the validated configuration, e.g.
	// Retry.MaxBackoff or Endpoints[2].Name. Empty for the configuration as a whole.
	Path string
	// Err is the cause that the rule wraps; nil if there is none.
	Err error

	format string
	args   []any
}

// Error returns the path and the rule, with Go names.
func (e *FieldError) Error() string {
	rule := e.Rule(func(path string) string { return path })
	if e.Path == "" {
		return rule
	}
	return e.Path + " " + rule
}

// Rule returns what the field must be. name returns the displayed name of another field
// mentioned in the rule.
func (e *FieldError) Rule(name func(path string) string) string {
	args := slices.Clone(e.args)
	for i, arg := range args {
		if field, ok := arg.(Field); ok {
			args[i] = name(string(field))
		}
	}
	return fmt.Sprintf(e.format, args...)
}

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// Errors collects mistakes. The zero value is ready for use. It is not safe for
// concurrent use.
type Errors struct {
	// Cause returns the error that a mistake without a cause wraps, so that a package can
	// have its own type for errors.As. It may be nil.
	Cause func(path, rule string) error

	list []*FieldError
}

// Add adds a mistake: format and args are the rule, e.g. "must not exceed %s",
// Field("MaxAge").
func (e *Errors) Add(path, format string, args ...any) { e.AddCause(nil, path, format, args...) }

// AddCause is Add for a mistake that wraps err.
func (e *Errors) AddCause(err error, path, format string, args ...any) {
	e.append(&FieldError{Path: path, Err: err, format: format, args: args})
}

func (e *Errors) append(one *FieldError) {
	if e.Cause != nil && one.Err == nil {
		one.Err = e.Cause(one.Path, one.Rule(func(path string) string { return path }))
	}
	e.list = append(e.list, one)
}

// Check adds a mistake unless ok.
func (e *Errors) Check(ok bool, path, format string, args ...any) {
	if !ok {
		e.Add(path, format, args...)
	}
}

// Number is what [NotNegative] accepts; a time.Duration is one.
type Number interface {
	~int | ~int16 | ~int32 | ~int64 | ~float64
}

// NotNegative adds a mistake if value is negative.
func NotNegative[T Number](e *Errors, path string, value T) {
	e.Check(value >= 0, path, "must not be negative")
}

// Join adds the mistakes returned by the Validate method of an inner configuration,
// which is located at path; empty for an embedded one. Any other error becomes one
// mistake. nil adds nothing.
func (e *Errors) Join(path string, err error) {
	if err == nil {
		return
	}
	fields := Fields(err)
	if fields == nil {
		e.AddCause(err, path, "%v", err)
		return
	}
	for _, inner := range fields {
		outer := *inner
		outer.Path = join(path, inner.Path)
		outer.args = slices.Clone(inner.args)
		for i, arg := range outer.args {
			if field, ok := arg.(Field); ok {
				outer.args[i] = Field(join(path, string(field)))
			}
		}
		e.append(&outer)
	}
}

func join(path, field string) string {
	if path == "" || field == "" {
		return path + field
	}
	return path + "." + field
}

// Err returns nil if there are no mistakes, otherwise an error that matches sentinel and
// contains all mistakes in the order in which they were added. Its text begins with that
// of sentinel.
func (e *Errors) Err(sentinel error) error {
	if len(e.list) == 0 {
		return nil
	}
	return &joined{sentinel: sentinel, list: e.list}
}

type joined struct {
	sentinel error
	list     []*FieldError
}

// Error returns all mistakes in one line.
func (j *joined) Error() string {
	texts := make([]string, len(j.list))
	for i, one := range j.list {
		texts[i] = one.Error()
	}
	return j.sentinel.Error() + ": " + strings.Join(texts, "; ")
}

// Unwrap returns the sentinel and the mistakes.
func (j *joined) Unwrap() []error {
	all := []error{j.sentinel}
	for _, one := range j.list {
		all = append(all, one)
	}
	return all
}

// Fields returns the mistakes in err; nil if it does not come from [Errors.Err].
func Fields(err error) []*FieldError {
	if j, ok := errors.AsType[*joined](err); ok {
		return j.list
	}
	if one, ok := errors.AsType[*FieldError](err); ok {
		return []*FieldError{one}
	}
	return nil
}
