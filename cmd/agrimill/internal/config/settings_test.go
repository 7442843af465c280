package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
)

func settingAt(t *testing.T, list []admin.Setting, path string) admin.Setting {
	t.Helper()
	for _, s := range list {
		if s.Path == path {
			return s
		}
	}
	t.Fatalf("no setting %s", path)
	return admin.Setting{}
}

// Each value has the line that set it, in the file or nowhere.
func TestSettingsHaveTheirLines(t *testing.T) {
	text := small + `log:
  level: debug
x-anchor: &kept
  max_age: 3h
journal:
  <<: *kept
  max_bytes: ${SIZE}
`
	c := testkit.Must(Parse("agrimill.yaml", []byte(text), environment(map[string]string{"ID": "app", "SECRET": "hidden-secret", "SIZE": "7MiB"})))(t)
	line := func(part string) string {
		return fmt.Sprintf("agrimill.yaml:%d", strings.Count(text[:strings.Index(text, part)], "\n")+1)
	}
	list := c.Settings()
	for path, want := range map[string]admin.Setting{
		"log.level":             {Value: "debug", Source: line("level: debug")},
		"log.format":            {Value: "text"},
		"gateway.client_id":     {Value: hiddenValue, Source: line("client_id"), Environment: true},
		"gateway.client_secret": {Value: redacted, Source: line("client_secret"), Environment: true},
		"journal.max_age":       {Value: "3h0m0s", Source: line("max_age: 3h")},
		"journal.max_bytes":     {Value: hiddenValue, Source: line("max_bytes"), Environment: true},
	} {
		want.Path = path
		testkit.Equal(t, settingAt(t, list, path), want)
	}
	if got := settingAt(t, list, "routes[0].name"); got.Source == "" {
		t.Errorf("%+v has no line", got)
	}

	// What the command line says has the line of no file.
	flagged := *c
	source := *c.source
	flagged.source = &source
	flagged.SetAddress("--address", "127.0.0.1:9999")
	testkit.Equal(t, settingAt(t, flagged.Settings(), "admin.address"), (admin.Setting{Path: "admin.address", Value: "127.0.0.1:9999", Source: "--address"}))

	// A section that waits for a restart has the lines of its own file.
	next := testkit.Must(Parse("agrimill.yaml", []byte("# one more line\n"+strings.Replace(text, "3h", "4h", 1)), environment(map[string]string{"ID": "app", "SECRET": "hidden-secret", "SIZE": "7MiB"})))(t)
	kept := *next
	kept.Journal = c.Journal
	kept.KeepSource(c, next, "journal")
	later := kept
	later.KeepSource(&kept, next, "journal")
	for _, c := range []*Config{&kept, &later} {
		list = c.Settings()
		if got := settingAt(t, list, "journal.max_bytes"); got.Restart || got.InFile != nil {
			t.Errorf("%+v is as in the file", got)
		}
		if got := settingAt(t, list, "journal.max_age"); got.Source != line("max_age: 3h") || !got.Restart || got.InFile != "4h0m0s" {
			t.Errorf("%+v, want %s", got, line("max_age: 3h"))
		}
		if got := settingAt(t, list, "log.level"); got.Source == line("level: debug") || got.Restart {
			t.Errorf("%+v is not that of the new file", got)
		}
	}
}

// Values are as the file may have them.
func TestSettingsAreAsInTheFile(t *testing.T) {
	c := parse(t, small+"subscriber: {file_hold: off}\n", smallEnv)
	for path, want := range map[string]any{
		"sinks.farm.nats.storage": "file", "sinks.farm.nats.retention": "limits", "subscriber.file_hold": "off", "subscriber.order": "endpoint", "sinks.farm.nats.synced": "unknown",
	} {
		if got := settingAt(t, c.Settings(), path); got.Value != want {
			t.Errorf("%s is %v, want %v", path, got.Value, want)
		}
	}
}

// What waits for a restart has its value in the file, also if nothing is set yet; what a reload takes does not wait.
func TestSettingsInTheFile(t *testing.T) {
	env := environment(map[string]string{"ID": "app", "SECRET": "hidden-secret"})
	running := testkit.Must(Parse("agrimill.yaml", []byte(small), env))(t)
	env = environment(map[string]string{"ID": "app", "SECRET": "another-secret"})
	file := testkit.Must(Parse("agrimill.yaml", []byte(small+"dedup: {bbolt: {path: /var/lib/dedup.db}}\n"), env))(t)
	kept := *file
	kept.Dedup, kept.Gateway = running.Dedup, running.Gateway
	kept.KeepSource(running, file, "dedup")
	kept.KeepSource(running, file, "gateway")
	list := kept.Settings()
	if got := settingAt(t, list, "dedup.bbolt.path"); got.Value != nil || !got.Restart || got.InFile != "/var/lib/dedup.db" {
		t.Errorf("got %+v", got)
	}
	for _, path := range []string{"gateway.client_secret", "gateway.base_url"} {
		if got := settingAt(t, list, path); got.Restart {
			t.Errorf("%+v waits for a restart", got)
		}
	}
	if changed := admin.Changes(running.Settings(), list); len(changed) > 0 {
		t.Errorf("changed is %q", changed)
	}
}

// Whatever may hold a secret in any section shows none: fields of a secret type, addresses, and texts that have an address in them.
func TestSettingsShowNoSecret(t *testing.T) {
	const marker = "Hunter2"
	c, kinds := new(Config), map[string]int{}
	var fill func(v reflect.Value, tag reflect.StructTag)
	fill = func(v reflect.Value, tag reflect.StructTag) {
		switch v.Addr().Interface().(type) {
		case *Secret:
			kinds["secret"]++
			v.SetString(marker)
			return
		case *URL:
			kinds["address"]++
			v.SetString("nats://user:" + marker + "@farm.example/path?token=" + marker + "#" + marker)
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), tag)
		case reflect.Struct:
			for _, f := range fields(v.Type()) {
				if f.base == "" {
					fill(v.FieldByIndex(f.index), f.tag)
				}
			}
		case reflect.Map:
			v.Set(reflect.MakeMap(v.Type()))
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value, "")
			v.SetMapIndex(reflect.ValueOf("name"), value)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), "")
		case reflect.String:
			if isScalar(v.Type()) {
				return
			}
			kinds["text"]++
			if tag.Get("address") == "true" {
				kinds["address in a text"]++
			}
			v.SetString("https://user:" + marker + "@farm.example/path?token=" + marker)
		}
	}
	fill(reflect.ValueOf(c).Elem(), "")
	for kind, least := range map[string]int{"secret": 8, "address": 2, "address in a text": 4, "text": 40} {
		if kinds[kind] < least {
			t.Errorf("%d fields of the kind %s, want at least %d", kinds[kind], kind, least)
		}
	}
	list := c.Settings()
	for _, s := range list {
		if text := fmt.Sprintf("%v %+v", s.Value, s); strings.Contains(text, marker) {
			t.Errorf("%s shows %s", s.Path, text)
		}
	}
	if text, err := json.Marshal(list); err != nil || strings.Contains(string(text), marker) || !strings.Contains(string(text), "farm.example") {
		t.Errorf("%v: %.300s", err, text)
	}
}
