package gateway

import (
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

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
		u := testkit.Must(url.Parse("https://gateway.example/base/endpoints/" + escapePathSegment(id)))(t)
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
