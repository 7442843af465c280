package admin

import (
	"embed"
	"net/http"
)

// The page and its assets. There is no template: dynamic content comes from the API, as
// text.
//
//go:embed page
var pageFiles embed.FS

// servePage serves the files of the page with explicit content types, so that they do not
// depend on this machine's MIME table.
func servePage(mux *http.ServeMux) {
	for path, file := range map[string]struct{ name, contentType string }{
		"/{$}":         {"index.html", "text/html; charset=utf-8"},
		"/page.css":    {"page.css", "text/css; charset=utf-8"},
		"/page.js":     {"page.js", "text/javascript; charset=utf-8"},
		"/favicon.svg": {"favicon.svg", "image/svg+xml"},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			content, err := pageFiles.ReadFile("page/" + file.name)
			if err != nil { // impossible: it is embedded
				http.Error(w, "missing in the binary", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", file.contentType)
			_, _ = w.Write(content)
		})
	}
}
