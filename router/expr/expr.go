// Package expr selects messages, and sets their metadata, by expressions in CEL, the Common
// Expression Language (https://cel.dev). They see the metadata and, of farm data, what is in the
// payload.
//
// The variables are those of topic templates (tenant, sender, filename, …, see
// [sinks.TopicVariables]), each a string, which is empty if the message does not have the value;
// msgtype, because type is a function of CEL; and metadata, a map of all metadata by key. Beside
// them there is farm, a [farm.Contents] with what is in the payload that was received: farm.machines, farm.tasks,
// farm.fields, farm.ddis and others. The payload is read once, when an expression needs it, so ask for
// metadata first: msgtype.startsWith("iso:") && "Mower" in farm.machines. Beside
// the standard functions there are those of strings (lowerAscii, split, replace, substring, …)
// and optional values: metadata[?"my-key"].orValue("").
//
// An expression is checked when it is compiled: its syntax, its variables and the type of its
// result. What remains is the value of a message, such as a key that its metadata lacks or a
// text that is no number. Such a message is not dropped: the error has the class
// [router.ClassPermanent], so that the message goes to the poison queue. A payload that cannot be
// read is no error: farm.readable is false then, and the rest of farm is empty.
package expr

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
)

// maxCost bounds one evaluation, in CEL's units of about one operation: metadata come from
// elsewhere, and an expression that compares all with all would hold up its route.
const maxCost = 100_000

// Names of variables that are not named as in topic templates.
const (
	varMetadata = "metadata"
	varType     = "msgtype"
	varFarm     = "farm"
)

// ErrBadExpression is matched by errors of expressions that cannot be compiled.
var ErrBadExpression = errors.New("bad expression")

// Error says what is wrong with an expression. It matches [ErrBadExpression].
type Error struct {
	// Line and Column are the place in the expression; both count from 1.
	Line, Column int
	// Reason says what is wrong there.
	Reason string
}

// Error returns the place and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Reason) }

// Is reports whether target is ErrBadExpression.
func (e *Error) Is(target error) bool { return target == ErrBadExpression }

// variables returns the metadata key of each variable that is a string.
func variables() map[string]string {
	all := sinks.TopicVariables()
	all[varType] = all["type"]
	delete(all, "type")
	return all
}

// compiler compiles expressions.
type compiler struct {
	env  *cel.Env
	keys map[string]string // metadata keys by variable
	farm *farm.Inspector
}

func newCompiler(inspector *farm.Inspector) (*compiler, error) {
	if inspector == nil {
		var err error
		if inspector, err = farm.NewInspector(farm.ReadConfig{}); err != nil {
			return nil, err
		}
	}
	keys := variables()
	contents := reflect.TypeFor[farm.Contents]()
	options := []cel.EnvOption{
		cel.Variable(varMetadata, cel.MapType(cel.StringType, cel.StringType)),
		cel.OptionalTypes(), ext.Strings(),
		ext.NativeTypes(contents, ext.ParseStructTag("cel")), cel.Variable(varFarm, cel.ObjectType(contents.String())),
	}
	for name := range keys {
		options = append(options, cel.Variable(name, cel.StringType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, err
	}
	return &compiler{env: env, keys: keys, farm: inspector}, nil
}

// compile compiles an expression whose result has the type want.
func (c *compiler) compile(text string, want *cel.Type) (cel.Program, error) {
	ast, issues := c.env.Compile(text)
	if err := issues.Err(); err != nil {
		first := issues.Errors()[0]
		reason := first.Message
		if strings.Contains(reason, "type(type)") { // type is a function of CEL, and in topics the message type
			reason += "; the message type is called msgtype"
		}
		return nil, &Error{Line: max(first.Location.Line(), 1), Column: max(first.Location.Column()+1, 1), Reason: reason}
	}
	if got := ast.OutputType(); !got.IsExactType(want) {
		return nil, &Error{Line: 1, Column: 1, Reason: fmt.Sprintf("the result is a %s, must be a %s", got, want)}
	}
	program, err := c.env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil { // such as a regular expression that is a constant
		return nil, &Error{Line: 1, Column: 1, Reason: err.Error()}
	}
	return program, nil
}

// values are what an expression sees of a message.
type values struct {
	metadata message.Metadata
	keys     map[string]string
	received *message.Message
	farm     *farm.Inspector
	err      error // why the payload could not be had
}

// ResolveName returns the value of a variable.
func (v *values) ResolveName(name string) (any, bool) {
	if key, ok := v.keys[name]; ok {
		return v.metadata[key], true
	}
	if name == varMetadata {
		return map[string]string(v.metadata), true
	}
	if name == varFarm {
		contents, err := v.farm.Contents(v.received)
		if err != nil {
			v.err = err
			return types.WrapErr(err), true
		}
		return contents, true
	}
	return nil, false
}

// Parent returns nil: there is nothing beside the message.
func (v *values) Parent() cel.Activation { return nil }

// eval returns the result of an expression. The error has the class [router.ClassPermanent], or is that
// of getting the payload.
func (v *values) eval(program cel.Program, what string) (any, error) {
	result, _, err := program.Eval(v)
	if v.err != nil {
		return nil, v.err
	}
	if err != nil {
		return nil, router.Permanent(fmt.Errorf("%s: %w", what, err))
	}
	return result.Value(), nil
}

// Filter selects the messages for which an expression is true. It is safe for concurrent use.
type Filter struct {
	program cel.Program
	*compiler
}

// NewFilter compiles an expression whose result is a bool. inspector reads payloads; nil means one with the
// defaults of [farm.ReadConfig]. The error is an [*Error].
func NewFilter(text string, inspector *farm.Inspector) (*Filter, error) {
	c, err := newCompiler(inspector)
	if err != nil {
		return nil, err
	}
	program, err := c.compile(text, cel.BoolType)
	if err != nil {
		return nil, err
	}
	return &Filter{program, c}, nil
}

// Select reports whether the route accepts the message: use it as [router.Route.Filter]. The
// error has the class [router.ClassPermanent], or is that of getting a payload that is elsewhere.
func (f *Filter) Select(msg *message.Message) (bool, error) {
	result, err := (&values{metadata: msg.Metadata, keys: f.keys, received: msg, farm: f.farm}).eval(f.program, "filter expression")
	if err != nil {
		return false, err
	}
	selected, ok := result.(bool)
	if !ok {
		return false, router.Permanent(fmt.Errorf("filter expression: the result is a %T", result))
	}
	return selected, nil
}

// Setter sets metadata to the results of expressions. It is safe for concurrent use.
type Setter struct {
	names    []string // ascending
	programs []cel.Program
	*compiler
}

// NewSetter compiles an expression for each metadata key; its result is a string. Keys have no
// control characters and are none of those that say what a message is, where its payload is, or
// what became of it in the poison queue. inspector is that of [NewFilter]. Errors match [ErrBadExpression]; the first one, by key, is returned.
func NewSetter(expressions map[string]string, inspector *farm.Inspector) (*Setter, error) {
	c, err := newCompiler(inspector)
	if err != nil {
		return nil, err
	}
	s := &Setter{names: slices.Sorted(maps.Keys(expressions)), compiler: c}
	for _, name := range s.names {
		if err := checkKey(name); err != nil {
			return nil, fmt.Errorf("metadata key %q: %w", name, err)
		}
		program, err := c.compile(expressions[name], cel.StringType)
		if err != nil {
			return nil, fmt.Errorf("metadata key %q: %w", name, err)
		}
		s.programs = append(s.programs, program)
	}
	return s, nil
}

func checkKey(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the key must not be empty", ErrBadExpression)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%w: the key must not have control characters", ErrBadExpression)
	case isReserved(name):
		return fmt.Errorf("%w: the key is reserved", ErrBadExpression)
	}
	return nil
}

// isReserved reports whether a key says what a message is, where its payload is, or what became
// of it in the poison queue.
func isReserved(name string) bool {
	return strings.HasPrefix(strings.ToLower(name), "x-router-poison-") || slices.ContainsFunc(
		[]string{gateway.KeyDedupID, gateway.KeyPayloadMode, gateway.KeyPayloadReference},
		func(key string) bool { return strings.EqualFold(key, name) })
}

// Middleware sets the metadata of each message that a route makes, after its Transform and
// before its topic is found: use it in [router.Route.Middleware]. All expressions see the
// message as it was before any of them has set something, and farm is the payload that was received. An empty result removes the key.
func (s *Setter) Middleware(next message.HandlerFunc) message.HandlerFunc {
	if len(s.names) == 0 {
		return next
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil {
			return out, err
		}
		for i, m := range out {
			if m == nil {
				continue // the router says so
			}
			changed, err := s.apply(msg, m)
			if err != nil {
				return nil, err
			}
			out[i] = changed
		}
		return out, nil
	}
}

// apply returns a message with a map of its own: several may share one, or be one.
func (s *Setter) apply(received, m *message.Message) (*message.Message, error) {
	metadata := maps.Clone(m.Metadata)
	if metadata == nil {
		metadata = message.Metadata{}
	}
	for i, name := range s.names {
		result, err := (&values{metadata: m.Metadata, keys: s.keys, received: received, farm: s.farm}).eval(s.programs[i], fmt.Sprintf("expression of metadata key %q", name))
		if err != nil {
			return nil, err
		}
		text, ok := result.(string)
		if !ok {
			return nil, router.Permanent(fmt.Errorf("expression of metadata key %q: the result is a %T", name, result))
		}
		if text == "" {
			delete(metadata, name)
		} else {
			metadata[name] = text
		}
	}
	changed := &message.Message{UUID: m.UUID, Metadata: metadata, Payload: m.Payload}
	changed.SetContext(m.Context())
	return changed, nil
}
