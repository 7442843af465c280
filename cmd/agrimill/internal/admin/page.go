package admin

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
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

// tagged gives responses an ETag, so that a client that asks again is sent nothing if nothing has changed.
func tagged(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		held := &heldResponse{ResponseWriter: w, status: http.StatusOK}
		handler(held, r)
		if held.status == http.StatusOK {
			sum := sha256.Sum256(held.body)
			tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
			w.Header().Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		w.WriteHeader(held.status)
		_, _ = w.Write(held.body)
	}
}

// heldResponse holds a response back until it is whole.
type heldResponse struct {
	http.ResponseWriter
	status int
	body   []byte
}

func (h *heldResponse) WriteHeader(status int) { h.status = status }

func (h *heldResponse) Write(part []byte) (int, error) {
	h.body = append(h.body, part...)
	return len(part), nil
}
