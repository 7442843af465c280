package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestValidateExternalID(t *testing.T) {
	long := func(n int) string { return "urn:farm:" + strings.Repeat("x", n-len("urn:farm:")) }
	tests := []struct {
		id    string
		valid bool
	}{
		{"urn:farm:1", true},
		{"URN:farm:1", true},
		{"uRn:farm:1", true},
		{"farm:1", true},
		{"a:b", true},
		{"a:", false},
		{":b", false},
		{"ab", false},
		{"abc", false},
		{"", false},
		{"urn:abc", true}, // urn is the namespace
		{"urn:", false},
		{"urn::a", true},
		{"urnx:a", true},
		{"7-f:x", true},
		{"-f:x", false},
		{"urn:-f:x", true},
		{"f_a:x", false},
		{"f.a:x", false},
		{"farm::", true},
		{"farm:a:b", true},
		{"farm:()+,-.:=@;$_!*%/?#Az09", true},
		{"farm:%2f/../x?y#z", true},
		{"farm:a b", false},
		{"farm:ä", false},
		{"farm:a\n", false},
		{"farm:a&b", false},
		{"farm:a'b", false},
		{"farm:a~b", false},
		{strings.Repeat("n", 32) + ":x", true},
		{strings.Repeat("n", 33) + ":x", false},
		{"urn:" + strings.Repeat("n", 32) + ":x", true},
		{"urn:" + strings.Repeat("n", 33) + ":x", true}, // again the namespace
		{long(255), true},
		{long(256), false},
	}
	for _, tt := range tests {
		err := ValidateExternalID(tt.id)
		if (err == nil) != tt.valid {
			t.Errorf("ValidateExternalID(%q) = %v, want valid: %v", tt.id, err, tt.valid)
		}
		if err != nil {
			checkValidation(t, err, "externalId")
		}
	}
}

func TestExternalIDSurvivesThePath(t *testing.T) {
	s := newService(t)
	var got []string
	s.mux.HandleFunc("/endpoints/{id}", func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.PathValue("id"))
		w.WriteHeader(http.StatusNoContent)
	})
	ids := []string{"urn:farm:()+,-.:=@;$_!*%/?#", "farm:/../..//x", "a:%2F%3F%23", "a:?", "a:#", "a:..", "a:/"}
	c := s.client(t)
	for _, id := range ids {
		if err := c.DeleteEndpoint(t.Context(), testTenant, id); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("the service saw %q, want %q", got, ids)
	}
}

func FuzzExternalID(f *testing.F) {
	for _, s := range []string{"urn:farm:1", "a:b", "a:/../?#%41", "urn:", "farm:ä", "", "URN:x-:%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if ValidateExternalID(id) != nil {
			return
		}
		if len(id) < 3 || len(id) > 255 || strings.ContainsAny(id, " \r\n\x00\"<>\\") {
			t.Fatalf("%q is not to be valid", id)
		}
		u, err := url.Parse("https://gateway.example/base/endpoints/" + escapePathSegment(id))
		if err != nil {
			t.Fatal(err)
		}
		if u.RawQuery != "" || u.Fragment != "" || u.Host != "gateway.example" {
			t.Fatalf("%q leaves the path: %s", id, u)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if len(segments) != 4 {
			t.Fatalf("%q is not one segment: %s", id, u)
		}
		back, err := url.PathUnescape(segments[3])
		if err != nil || back != id {
			t.Fatalf("%q came back as %q, %v", id, back, err)
		}
	})
}
