package redact_test

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/agrimill/agrimill/internal/redact"
)

func TestAddresses(t *testing.T) {
	_, unreadable := url.Parse(strings.Join([]string{"nats://farmer:s3cr/zzet@host", "1"}, ":")) // as nobody should write it
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "no such field", "no such field"},
		{"address", "dial nats://host:4222: refused", "dial nats://host:4222: refused"},
		{"userinfo", "dial nats://user:pass@host:4222: refused", "dial nats://host:4222: refused"},
		{"user only", "dial nats://token@host: refused", "dial nats://host: refused"},
		{"several", "nats://u:p@a,nats://b,nats://u:p@c", "nats://a,nats://b,nats://c"},
		{"@ in the password", "dial nats://user:s3cr@zzet@host: refused", "dial nats://…@host: refused"},
		{"/ in the password", "dial nats://user:s3cr/zzet@host: refused", "dial nats://…@host: refused"},
		{"? in the password", "dial nats://user:s3cr?zzet@host: refused", "dial nats://…?…: refused"},
		{"# in the password", "dial nats://user:s3cr#zzet@host: refused", "dial nats://…?…: refused"},
		{"@ in a query", "GET https://host/p?mail=a@b&sig=secret: 403", "GET https://…?…: 403"},
		{"quote in the password", `dial nats://user:s3cr"zzet@host: refused`, "dial nats://…@host: refused"},
		{"space in the password", "dial nats://user:s3cr zzet@host: refused", "dial nats://…@host: refused"},
		{"no scheme", `parse "user:s3cr%zzet@host:1": missing`, `parse "…@host:1": missing`},
		{"no scheme, no quotes", "dial user:s3cr/zzet@host:1", "dial …@host:1"},
		{"a piece that cannot be read", unreadable.Error(), `parse "nats://…@host:1": invalid port "…" after host`},
		{"the same, quoted again", strconv.Quote(unreadable.Error()), `"parse \"nats://…@host:1\": invalid port "…"`},
		{"query", "GET https://host/p/a?sig=secret&x=1: 403", "GET https://host/p/a?…: 403"},
		{"fragment", "see https://host/p#token=1", "see https://host/p?…"},
		{"quoted query", `Get "https://host/p?sig=s ' \" <e>cret": EOF`, `Get "https://host/p?…": EOF`},
		{"query quoted twice", `"Get \"https://host/p?sig=s cret\": EOF"`, `"Get \"https://host/p?…\": EOF"`},
		{"query in angle brackets", `see <https://host/p?sig="secret"> there`, `see <https://host/p?…> there`},
		{"quotes in a query", `at https://host/p?sig='se"cret failed`, `at https://host/p?… failed`},
		{"end is missing", `Get "https://host/p?sig=secret and more`, `Get "https://host/p?…`},
		{"two addresses", `Get "https://a/b?c": Post "https://d/e?f": EOF`, `Get "https://a/b?…": Post "https://d/e?…": EOF`},
		{"question", "really? see https://host, ok", "really? see https://host, ok"},
		{"mail address", "ask someone@host", "ask someone@host"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := redact.Addresses(test.text); got != test.want {
				t.Errorf("%s\nbecame %s\nwant   %s", test.text, got, test.want)
			}
		})
	}
	if n := len(redact.Addresses(strings.Repeat("x@y://z?", 1<<20))); n > 65<<10 {
		t.Errorf("%d bytes", n)
	}
}

// FuzzAddresses: a secret in userinfo or query never comes out, as long as it can be
// told where the address ends.
func FuzzAddresses(f *testing.F) {
	for _, secret := range []string{"s3cr@zzet", "s3cr/zzet", `s3cr"zzet`, "s3cr%zzet", `s3cr\zzet`, "s3cr zzet", "'<>s3cret", "https:/s3cret"} {
		for shape := range uint8(5) {
			f.Add("dial ", secret, ": refused", shape)
		}
	}
	f.Add(`"a://b`, "s3cr zzet", "c://d@e", uint8(3))
	f.Add(`\`, "s3cr zzet", "", uint8(4))
	f.Fuzz(func(t *testing.T, before, secret, after string, shape uint8) {
		if len(secret) < 6 || strings.Contains(secret, "://") || len(before)+len(secret) > 60<<10 {
			return
		}
		if shape%5 == 2 && strings.ContainsFunc(secret, unicode.IsSpace) {
			return // nobody knows where that ends
		}
		text := func(secret string) string {
			query := "https://store.example/p/17?signature=" + secret
			switch shape % 5 {
			case 0:
				return before + "nats://farmer:" + secret + "@broker.example:4222" + after
			case 1:
				return before + strconv.Quote("nats://farmer:"+secret+"@broker.example:4222") + after
			case 2:
				return before + " at " + query + " " + after
			case 3:
				return before + " " + strconv.Quote(query) + " " + after
			default:
				return before + " " + strconv.Quote("Get "+strconv.Quote(query)+": EOF") + " " + after
			}
		}
		escaped := strings.Trim(strconv.Quote(secret), `"`)
		got, rest := redact.Addresses(text(secret)), text("")
		rest += redact.Addresses(rest)
		for _, s := range []string{secret, escaped, strings.Trim(strconv.Quote(escaped), `"`)} {
			// What the secret has in common with the rest is no secret.
			if strings.Contains(got, s) && !strings.Contains(rest, s) {
				t.Fatalf("%q\nbecame %q\nwhich has %q", text(secret), got, s)
			}
		}
	})
}
