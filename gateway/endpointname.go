package gateway

import (
	"strings"
	"unicode"
)

// NormalizeEndpointName derives an endpoint name from any text: each run of
// characters that names must not contain (see [ValidateEndpointName]) becomes one
// underscore, as does a run of underscores, and the result is truncated to 200
// characters. Combining marks, such as those of a decomposed accent,
// become underscores too, because not every service accepts them. An empty text, or one
// of only spaces, returns a [*ValidationError].
func NormalizeEndpointName(text string) (string, error) {
	var b strings.Builder
	n, underscore := 0, false
	for _, r := range text { // invalid UTF-8 is read as U+FFFD, which is not allowed in names
		allowed := unicode.In(r, unicode.Letter, unicode.Number) || strings.ContainsRune(" -.,:", r)
		if !allowed {
			if underscore {
				continue
			}
			r = '_'
		}
		if n == maxEndpointName {
			break
		}
		n, underscore = n+1, !allowed
		b.WriteRune(r)
	}
	name := b.String()
	if err := ValidateEndpointName(name); err != nil {
		return "", err
	}
	return name, nil
}
