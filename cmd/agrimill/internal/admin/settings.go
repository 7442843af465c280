package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

const (
	// maxChanges bounds how many values a [Reload] names, and maxChanged how long each of them is, in bytes.
	maxChanges = 20
	maxChanged = 120
)

// Settings is the response to GET /api/config: the configuration that is running.
type Settings struct {
	// LoadedAt is when it was applied. Lines are those of the file as it was then.
	LoadedAt time.Time `json:"loaded_at"`
	// Error is why the file as it is now was not applied; empty if it was.
	Error    string    `json:"error,omitempty"`
	Settings []Setting `json:"settings"`
	// Reloads are the latest, the newest first.
	Reloads []Reload `json:"reloads"`
}

// Reload is one configuration that was applied or refused while the pipeline ran.
type Reload struct {
	At time.Time `json:"at"`
	// Changes are [Changes]; Error is why it was refused, redacted.
	Changes []string `json:"changes,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Changes lists the values that differ between two configurations, e.g. "routes[2].to.topic: a → b", without secrets. Of more than
// 20, the last line says how many there are besides.
func Changes(old, next []Setting) []string {
	before := map[string]string{}
	for _, s := range old {
		if !s.onlyInFile() {
			before[s.Path] = valueText(s.Value)
		}
	}
	const unset = "not set"
	var all []string
	for _, s := range next {
		if s.onlyInFile() {
			continue
		}
		was, had := before[s.Path]
		delete(before, s.Path)
		if is := valueText(s.Value); !had {
			all = append(all, fmt.Sprintf("%s: %s → %s", s.Path, unset, is))
		} else if was != is {
			all = append(all, fmt.Sprintf("%s: %s → %s", s.Path, was, is))
		}
	}
	for _, s := range old {
		if was, gone := before[s.Path]; gone {
			all = append(all, fmt.Sprintf("%s: %s → %s", s.Path, was, unset))
		}
	}
	if more := len(all) - maxChanges; more > 0 {
		all = append(all[:maxChanges:maxChanges], fmt.Sprintf("and %d more", more))
	}
	return all
}

// valueText is a value as a person wrote it, shortened.
func valueText(value any) string {
	text, ok := value.(string)
	if !ok {
		encoded, err := json.Marshal(value)
		if err != nil {
			return "unknown"
		}
		text = string(encoded)
	}
	return capText(text, maxChanged)
}

// Setting is one value of a configuration, as it may be shown.
type Setting struct {
	// Path is the key, e.g. routes[1].to.sink.
	Path string `json:"path"`
	// Value is the value in effect. Secrets and what comes from the environment are not in it, nor users, passwords and
	// queries of addresses.
	Value any `json:"value"`
	// Source is where it was set, as FILE:LINE or a flag of the command line; empty for a default.
	Source string `json:"source,omitempty"`
	// File is the file that a secret was read from.
	File string `json:"file,omitempty"`
	// Environment says that an environment variable sets it.
	Environment bool `json:"environment,omitempty"`
	// Restart says that the file has another value by now, which takes effect after a restart: InFile, as Value. A Value or InFile
	// that is null is not set.
	Restart bool `json:"restart,omitempty"`
	InFile  any  `json:"in_file,omitempty"`
}

// onlyInFile reports whether the configuration that is running lacks it.
func (s *Setting) onlyInFile() bool { return s.Value == nil && s.Restart }

func (s *Server) settings(*http.Request) (any, error) {
	settings := Settings{Settings: append([]Setting{}, s.source.Settings()...)} // never null in JSON
	state := s.source.Snapshot().Config
	settings.LoadedAt, settings.Error, settings.Reloads = state.LoadedAt, state.Error, append([]Reload{}, state.Reloads...)
	slices.Reverse(settings.Reloads)
	return settings, nil
}
