package pipeline

import (
	"context"
	"log/slog"
	"strings"

	"github.com/agrimill/agrimill/subscriber"
)

// loggedIDs are the attributes that have IDs, and what those are of.
var loggedIDs = map[string]subscriber.WaitKind{
	"key": subscriber.WaitKey, "endpoint_id": subscriber.WaitKey, "first_endpoint_id": subscriber.WaitKey,
	"tenant": subscriber.WaitTenant, "tenant_id": subscriber.WaitTenant, "subscription": subscriber.WaitSubscription,
}

// namingHandler logs beside the ID of an endpoint or a tenant what people call it.
type namingHandler struct {
	slog.Handler
	p *Pipeline
}

// Handle implements [slog.Handler].
func (h namingHandler) Handle(ctx context.Context, r slog.Record) error {
	var names []slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		if kind, ok := loggedIDs[a.Key]; ok && h.p.directory != nil {
			name := strings.TrimSuffix(h.p.waitName(h.p.now(), kind, a.Value.String()), " ("+a.Value.String()+")")
			if name != "" && !strings.HasSuffix(name, " "+a.Value.String()) { // not the ID once more
				names = append(names, slog.String(strings.TrimSuffix(a.Key, "_id")+"_name", name))
			}
		}
		return true
	})
	r = r.Clone() // the caller's has room for attributes that are not its own
	r.AddAttrs(names...)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h namingHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return namingHandler{h.Handler.WithAttrs(attrs), h.p}
}

// WithGroup implements [slog.Handler].
func (h namingHandler) WithGroup(name string) slog.Handler {
	return namingHandler{h.Handler.WithGroup(name), h.p}
}
