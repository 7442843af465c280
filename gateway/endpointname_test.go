package gateway

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNormalizeEndpointName(t *testing.T) {
	for text, want := range map[string]string{
		"Hof Müller, Nord-Ost: 2.1_a": "Hof Müller, Nord-Ost: 2.1_a",
		"Farm (north) / field #7":     "Farm _north_ _ field _7",
		"a___b__":                     "a_b_",
		"a\r\n\tb":                    "a_b",
		"/_/":                         "_",
		"💾":                           "_",
		"農場 ²Ⅳ":                       "農場 ²Ⅳ",
		"Mu\u0308ller":                "Mu_ller",
		"a\xff\xfeb":                  "a_b",
		" padded ":                    " padded ",
		strings.Repeat("ü", 250):      strings.Repeat("ü", 200),
		strings.Repeat("a/", 250):     strings.Repeat("a_", 100),
	} {
		if got, err := NormalizeEndpointName(text); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", strings.Repeat(" ", 300), strings.Repeat(" ", 200) + "a"} {
		if got, err := NormalizeEndpointName(text); got != "" || err == nil {
			t.Errorf("%q: got %q, %v", text, got, err)
		} else {
			wantOnly(t, err, ErrInvalid)
		}
	}
}

func FuzzNormalizeEndpointName(f *testing.F) {
	for _, text := range []string{"", " ", "a/b", "a__b", "\xff", "Mu\u0308ller", strings.Repeat("a ", 200)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := NormalizeEndpointName(text)
		if err != nil {
			if strings.Trim(text[:min(len(text), 200)], " ") != "" || name != "" {
				t.Fatalf("%q: %q, %v", text, name, err)
			}
			return
		}
		if err := ValidateEndpointName(name); err != nil || utf8.RuneCountInString(name) > 200 || strings.Contains(name, "__") {
			t.Fatalf("%q: %q, %v", text, name, err)
		}
		if again, err := NormalizeEndpointName(name); err != nil || again != name {
			t.Fatalf("%q: %q, then %q, %v", text, name, again, err)
		}
	})
}
