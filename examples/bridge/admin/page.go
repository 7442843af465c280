package admin

import (
	"embed"
	"net/http"
)

// The page and what it loads. There is no template: what changes comes from the
// API, as text.
//
//go:embed page
var pageFiles embed.FS

// servePage serves the files of the page, each under its type: what the browser
// makes of them is not left to this machine's table of MIME types.
func servePage(mux *http.ServeMux) {
	for path, file := range map[string]struct{ name, contentType string }{
		"/{$}":         {"index.html", "text/html; charset=utf-8"},
		"/page.css":    {"page.css", "text/css; charset=utf-8"},
		"/page.js":     {"page.js", "text/javascript; charset=utf-8"},
		"/favicon.svg": {"favicon.svg", "image/svg+xml"},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			content, err := pageFiles.ReadFile("page/" + file.name)
			if err != nil { // not possible: it is in the binary
				http.Error(w, "missing in the binary", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", file.contentType)
			_, _ = w.Write(content)
		})
	}
}
