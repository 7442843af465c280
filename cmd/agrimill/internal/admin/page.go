package admin

import (
	"embed"
	"net/http"
	"path"
)

// The page and its assets. There is no template: dynamic content comes from the API, as
// text.
//
//go:embed page
var pageFiles embed.FS

// servePage serves the page at the root, and its modules, style and icon below page/.
func servePage(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		serveFile(w, r, "index.html", "text/html; charset=utf-8")
	})
	// Explicit, so that they do not depend on this machine's MIME table.
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	mux.HandleFunc("GET /page/{file}", func(w http.ResponseWriter, r *http.Request) {
		file := r.PathValue("file")
		serveFile(w, r, file, types[path.Ext(file)])
	})
}

func serveFile(w http.ResponseWriter, r *http.Request, name, contentType string) {
	content, err := pageFiles.ReadFile("page/" + name)
	if err != nil || contentType == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(content)
}
