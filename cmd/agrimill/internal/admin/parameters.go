package admin

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// knowing refuses a request whose query is not made of these parameters, each once and of a length that something can have. One
// that is misspelled, or that net/http cannot read and leaves out, would be taken for none: everything would be selected.
func knowing(handler http.HandlerFunc, parameters ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if problem := problemOf(r.URL.RawQuery, parameters); problem != "" {
			writeProblem(w, http.StatusBadRequest, problem)
			return
		}
		handler(w, r)
	}
}

// problemOf returns what is wrong with a query, without its values.
func problemOf(raw string, parameters []string) string {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return "the query cannot be read; percent-encode % ; & and + in its values"
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch values := query[name]; {
		case !slices.Contains(parameters, name) && len(parameters) == 0:
			return "this takes no parameters"
		case !slices.Contains(parameters, name):
			return fmt.Sprintf("%.64q is not a parameter; use %s", name, strings.Join(parameters, ", "))
		case len(values) > 1:
			return name + " is there more than once; use it once"
		case len(values[0]) > maxTraceQuery:
			return fmt.Sprintf("%s must have at most %d bytes", name, maxTraceQuery)
		}
	}
	return ""
}
