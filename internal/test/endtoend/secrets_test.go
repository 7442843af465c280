package endtoend

import (
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	kafkapoison "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
	natsdevices "github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	natspoison "github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

// withSecrets are the types of public packages that hold secrets, by their names.
var withSecrets = map[string]any{
	"gateway.Config":                  gateway.Config{},
	"publisher.Config":                publisher.Config{},
	"sinks/claimcheck.Config":         claimcheck.Config{},
	"sinks/kafka.Config":              kafka.Config{},
	"sinks/kafka.Connection":          kafka.Connection{},
	"sinks/kafka.SASL":                kafka.SASL{},
	"sinks/nats.Config":               nats.Config{},
	"sinks/nats.Connection":           nats.Connection{},
	"sources/kafka.Config":            sourcekafka.Config{},
	"sources/nats.Config":             sourcenats.Config{},
	"stores/kafka/devicestore.Config": kafkadevices.Config{},
	"stores/kafka/poisonqueue.Config": kafkapoison.Config{},
	"stores/nats/devicestore.Config":  natsdevices.Config{},
	"stores/nats/kvlease.Config":      kvlease.Config{},
	"stores/nats/kvstore.Config":      kvstore.Config{},
	"stores/nats/poisonqueue.Config":  natspoison.Config{},
	"subscriber.Config":               subscriber.Config{},
}

const canary = "s3cretCanary"

// TestSecretsAreNotPrinted: whatever prints, logs or marshals a configuration, or what is made of it, gets no secret of it.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	for name, zero := range withSecrets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := reflect.New(reflect.TypeOf(zero)).Elem()
			fill(v)
			notPrinted(t, v.Interface())
			notPrinted(t, v.Addr().Interface())
			notPrinted(t, struct{ Of any }{v.Interface()})
			notPrinted(t, map[string]any{"of": []any{v.Interface()}})
		})
	}
	for name, value := range made(t) {
		t.Run(name, func(t *testing.T) { notPrinted(t, value) })
	}
}

// fill puts secrets in whatever may hold them.
func fill(v reflect.Value) {
	for field, value := range v.Fields() {
		switch {
		case !field.IsExported():
		case value.Kind() == reflect.Struct:
			fill(value)
		case field.Type == reflect.TypeFor[*natsgo.Conn]():
			value.Set(reflect.ValueOf(&natsgo.Conn{Opts: natsgo.Options{Url: canary, Password: canary, Token: canary}}))
		case field.Type == reflect.TypeFor[*tls.Config]():
			value.Set(reflect.ValueOf(&tls.Config{Certificates: []tls.Certificate{{PrivateKey: ed25519.PrivateKey(canary)}}}))
		case isSecret(field.Name, field.Type.Name(), field.Tag):
			if field.Type == reflect.TypeFor[gateway.Secret]() {
				value.SetString(canary)
			} else {
				value.SetString("https://farmer:" + canary + "@host:1/path?sig=" + canary + "#" + canary)
			}
		}
	}
}

func isSecret(name, typeName string, tag reflect.StructTag) bool {
	return typeName == "Secret" || typeName == "*natsgo.Conn" || typeName == "*tls.Config" || typeName == "string" && (strings.HasSuffix(name, "URL") || tag.Get("address") == "true")
}

// notPrinted tries each way to show a value.
func notPrinted(t *testing.T, value any) {
	t.Helper()
	shown := map[string]string{"Sprint": fmt.Sprint(value), "error": fmt.Errorf("with %v", value).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown[verb] = fmt.Sprintf(verb, value)
	}
	if text, err := json.Marshal(value); err == nil { // functions cannot be
		shown["JSON"] = string(text)
	}
	if text, err := marshalYAML(value); err == nil {
		shown["YAML"] = text
	}
	for name, handler := range map[string]func(io.Writer) slog.Handler{
		"slog text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"slog JSON": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var log strings.Builder
		slog.New(handler(&log)).Info("value", "of", value, slog.Group("group", "of", value))
		shown[name] = log.String()
	}
	bytesOf := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for how, text := range shown {
		if strings.Contains(text, canary) || strings.Contains(text, bytesOf) || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", canary)) {
			t.Errorf("%s tells the secret: %s", how, text)
		}
	}
}

// marshalYAML returns an error also where the library panics, as for functions.
func marshalYAML(value any) (text string, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%T cannot be marshaled", value)
		}
	}()
	data, err := yaml.Marshal(value)
	return string(data), err
}

// made are things that were made of configurations with secrets.
func made(t *testing.T) map[string]any {
	t.Helper()
	values := map[string]any{}
	add := func(name string, value any, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		values[name] = value
		if closer, ok := value.(io.Closer); ok {
			t.Cleanup(func() { _ = closer.Close() })
		}
	}
	gate := gatewaytest.New(t, gatewaytest.Config{})
	client, err := gateway.New(gateway.Config{BaseURL: gate.BaseURL(), TokenURL: gate.TokenURL(), ClientID: "id", ClientSecret: canary})
	add("gateway.Client", client, err)
	sender, err := publisher.New(publisher.Config{Client: client}, nil)
	add("publisher.Publisher", sender, err)
	receiver, err := subscriber.New(subscriber.Config{Client: client}, nil)
	add("subscriber.Subscriber", receiver, err)

	address := testkit.Must(url.Parse(natstest.Start(t).URL()))(t)
	address.User = url.UserPassword("farmer", canary)
	connection := nats.Connection{URL: address.String()}
	natsSink, err := nats.New(nats.Config{Connection: nats.Connection{URL: connection.URL}}, nil)
	add("nats.Sink", natsSink, err)
	conn := natsSink.Conn()
	store, err := kvstore.New(t.Context(), kvstore.Config{Conn: conn})
	add("kvstore.Store", store, err)
	lease, err := kvlease.New(t.Context(), kvlease.Config{Conn: conn})
	add("kvlease.Lease", lease, err)
	devices, err := natsdevices.New(t.Context(), natsdevices.Config{Conn: conn})
	add("nats devices", devices, err)
	dead, err := natspoison.New(natspoison.Config{Conn: conn, Topic: "dead"})
	add("nats poison queue", dead, err)
	natsSource, err := sourcenats.New(sourcenats.Config{Connection: connection, Durable: "d"}, nil)
	add("nats.Subscriber", natsSource, err)

	cluster := kafkatest.Start(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "farmer", canary))
	sasl := kafka.SASL{User: "farmer", Password: canary}
	brokers := kafka.Connection{Brokers: []string{cluster.Addr()}, SASL: sasl}
	kafkaSink, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers.Brokers, SASL: sasl}}, nil)
	add("kafka.Sink", kafkaSink, err)
	kafkaDevices, err := kafkadevices.New(t.Context(), kafkadevices.Config{Connection: brokers})
	add("kafka devices", kafkaDevices, err)
	kafkaSource, err := sourcekafka.New(sourcekafka.Config{Connection: brokers, Group: "g"}, nil)
	add("kafka.Subscriber", kafkaSource, err)
	queue, err := kafkapoison.New(kafkapoison.Config{Connection: brokers, Topic: "dead"})
	add("kafka poison queue", queue, err)
	bucket, err := claimcheck.New(t.Context(), claimcheck.Config{URL: "file://" + filepath.ToSlash(t.TempDir()) + "?no_tmp_dir=true&secret_key_path=" + canary})
	if err == nil { // the driver may refuse the query
		add("claimcheck.Store", bucket, err)
	}
	return values
}

// TestTypesWithSecretsAreListed: no exported struct with a secret, or with an address, is missing above, nor one that has such a
// struct in it.
func TestTypesWithSecretsAreListed(t *testing.T) {
	t.Parallel()
	top := filepath.Join("..", "..", "..")
	parts := map[string][]string{} // the types in each exported struct of a public package
	for _, dir := range []string{"gateway", "publisher", "subscriber", "router", "sinks", "sources", "stores", "farmdata"} {
		testkit.NoError(t, filepath.WalkDir(filepath.Join(top, dir), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "gatewaytest") {
				return err
			}
			relative, err := filepath.Rel(top, filepath.Dir(file))
			if err == nil {
				err = addStructs(parts, file, filepath.ToSlash(relative))
			}
			return err
		}))
	}
	holds := map[string]bool{"": true}
	for changed := true; changed; {
		changed = false
		for name, types := range parts {
			if !holds[name] && slices.ContainsFunc(types, func(part string) bool { return holds[part] }) {
				holds[name], changed = true, true
			}
		}
	}
	delete(holds, "")
	for name := range holds {
		if _, listed := withSecrets[name]; !listed {
			t.Errorf("%s may hold a secret and is not in withSecrets", name)
		}
	}
}

// addStructs notes the types of the fields of structs, with "" for a secret.
func addStructs(parts map[string][]string, file, dir string) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	imported := map[string]string{}
	for _, spec := range parsed.Imports {
		of, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(of)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = strings.TrimPrefix(of, "github.com/agrimill/agrimill/")
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, ok := node.(*ast.TypeSpec)
		if !ok || !spec.Name.IsExported() {
			return true
		}
		of, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range of.Fields.List {
			typeName, part := "", ""
			switch typ := field.Type.(type) {
			case *ast.Ident:
				typeName, part = typ.Name, dir+"."+typ.Name
			case *ast.StarExpr:
				if of, ok := typ.X.(*ast.SelectorExpr); ok {
					typeName = fmt.Sprintf("*%s.%s", of.X, of.Sel.Name)
				}
			case *ast.SelectorExpr:
				typeName = typ.Sel.Name
				if from, ok := typ.X.(*ast.Ident); ok {
					part = imported[from.Name] + "." + typ.Sel.Name
				}
			}
			var tag reflect.StructTag
			if field.Tag != nil {
				text, _ := strconv.Unquote(field.Tag.Value)
				tag = reflect.StructTag(text)
			}
			name := typeName // of an embedded field
			if len(field.Names) > 0 {
				name = field.Names[0].Name
			}
			switch {
			case !ast.IsExported(name):
			case isSecret(name, typeName, tag):
				parts[dir+"."+spec.Name.Name] = append(parts[dir+"."+spec.Name.Name], "")
			case part != "":
				parts[dir+"."+spec.Name.Name] = append(parts[dir+"."+spec.Name.Name], part)
			}
		}
		return true
	})
	return nil
}
