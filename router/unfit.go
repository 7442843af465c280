package router

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// watermillMiddleware is the package of Watermill's middlewares.
const watermillMiddleware = "github.com/ThreeDotsLabs/watermill/message/router/middleware."

const dedupMiddleware = "github.com/agrimill/agrimill/router.(*Dedup).Middleware-fm"

// unfit are the middlewares of Watermill that would break a promise of a route. A
// middleware is a function, which only its name tells from others; none of these is a
// closure, so the name is the same wherever it is used. It is never changed.
var unfit = []struct {
	function string // in the package of Watermill's middlewares
	name     string
	why      string
	within   bool // does no harm in Route.Middleware
}{
	{"InstantAck", "InstantAck", "acks messages before they are stored; leave it out", false},
	{"(*Deduplicator).Middleware-fm", "Deduplicator", "drops a message that failed once when it is tried again; use deduplication of the router", false},
	{"poisonQueue.Middleware-fm", "PoisonQueue", "takes messages that an outage or a shutdown has interrupted; use the poison queue of the router", false},
	{"IgnoreErrors.Middleware-fm", "IgnoreErrors", "acks messages that are not stored; put it into the middleware of a route", true},
}

// checkMiddlewares refuses those that cannot compose with a route. within says that they
// are in Route.Middleware, where they see the handler and not the sink.
func checkMiddlewares(route string, middlewares []message.HandlerMiddleware, within bool) error {
	for _, middleware := range middlewares {
		if middleware == nil {
			continue
		}
		function := runtime.FuncForPC(reflect.ValueOf(middleware).Pointer())
		if function == nil {
			continue
		}
		if within && function.Name() == dedupMiddleware {
			return fmt.Errorf("%w: route %q: Dedup in a route takes what is not stored yet for handled; put it around all routes", ErrConfig, route)
		}
		name, ok := strings.CutPrefix(function.Name(), watermillMiddleware)
		if !ok {
			continue
		}
		for _, u := range unfit {
			if u.function == name && !(within && u.within) {
				return fmt.Errorf("%w: route %q: Watermill's middleware.%s %s", ErrConfig, route, u.name, u.why)
			}
		}
	}
	return nil
}
