// Package enum converts named constants to and from text, for configuration files and messages.
package enum

import (
	"fmt"
	"slices"
	"strings"
)

// Text returns the name of value; names[0] is the name of 0.
func Text[T ~int | ~int32 | ~int64](value T, names []string) string {
	if value < 0 || int(value) >= len(names) {
		return fmt.Sprintf("unknown (%d)", int(value))
	}
	return names[value]
}

// Parse sets value to the constant whose name is text.
func Parse[T ~int | ~int64](value *T, text []byte, names []string) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("must be %s or %s, not %q", strings.Join(names[:len(names)-1], ", "), names[len(names)-1], text)
	}
	*value = T(i)
	return nil
}
