package router_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// watermillMiddleware is one of Watermill's.
type watermillMiddleware struct {
	name           string // of the constructor, the function, or the type that has it as a method
	new            func(t *testing.T) message.HandlerMiddleware
	within, around bool // composes in Route.Middleware, in Config.Middleware; else Add refuses it
	copies         int  // of each message, in Route.Middleware; 0 means 1
	attempts       int  // of a handler that fails by itself; 0 means 1
}

var watermillMiddlewares = []watermillMiddleware{
	{name: "CircuitBreaker", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware {
		return middleware.NewCircuitBreaker(gobreaker.Settings{
			Timeout: 10 * time.Millisecond, ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= 2 },
		}).Middleware
	}},
	{name: "CorrelationID", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware { return middleware.CorrelationID }},
	{name: "Deduplicator", new: func(*testing.T) message.HandlerMiddleware {
		return (&middleware.Deduplicator{Repository: neverDuplicate{}}).Middleware
	}},
	{name: "DelayOnError", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware {
		return (&middleware.DelayOnError{InitialInterval: time.Millisecond, MaxInterval: time.Second, Multiplier: 2}).Middleware
	}},
	{name: "Duplicator", within: true, around: true, copies: 2, new: func(*testing.T) message.HandlerMiddleware { return middleware.Duplicator }},
	{name: "IgnoreErrors", within: true, new: func(*testing.T) message.HandlerMiddleware {
		return middleware.NewIgnoreErrors([]error{errors.New("nobody")}).Middleware
	}},
	{name: "InstantAck", new: func(*testing.T) message.HandlerMiddleware { return middleware.InstantAck }},
	{name: "PoisonQueue", new: func(t *testing.T) message.HandlerMiddleware {
		m := testkit.Must(middleware.PoisonQueue(newSink(nil), "poison"))(t)
		return m
	}},
	{name: "PoisonQueueWithFilter", new: func(t *testing.T) message.HandlerMiddleware {
		m := testkit.Must(middleware.PoisonQueueWithFilter(newSink(nil), "poison", func(error) bool { return false }))(t)
		return m
	}},
	{name: "RandomFail", within: true, around: true, attempts: 100, new: func(*testing.T) message.HandlerMiddleware { return middleware.RandomFail(0.3) }},
	{name: "RandomPanic", within: true, around: true, attempts: 100, new: func(*testing.T) message.HandlerMiddleware { return middleware.RandomPanic(0.3) }},
	{name: "Recoverer", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware { return middleware.Recoverer }},
	{name: "Retry", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware {
		return middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, MaxInterval: time.Millisecond, Multiplier: 1}.Middleware
	}},
	{name: "Throttle", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware {
		return middleware.NewThrottle(1000, time.Second).Middleware
	}},
	{name: "Timeout", within: true, around: true, new: func(*testing.T) message.HandlerMiddleware { return middleware.Timeout(time.Second) }},
}

type neverDuplicate struct{}

func (neverDuplicate) IsDuplicate(context.Context, string) (bool, error) { return false, nil }

// Every middleware of Watermill, inside of a route and around it: with handlers and a sink that are down, and a shutdown
// in the middle of that. It composes, or Add refuses it.
func TestWatermillMiddlewaresCompose(t *testing.T) {
	for _, m := range watermillMiddlewares {
		for _, place := range []string{"within", "around", "in the chain"} {
			t.Run(m.name+"/"+place, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { compose(t, m, place) })
			})
		}
	}
}

func compose(t *testing.T, m watermillMiddleware, place string) {
	var config router.Config
	route := router.Route{Name: "farm"}
	composes, copies := m.around, 1
	switch place {
	case "within":
		composes, copies = m.within, max(1, m.copies)
		route.Middleware = []message.HandlerMiddleware{m.new(t)}
	case "around":
		config.Middleware = []message.HandlerMiddleware{m.new(t)}
	default:
		config.Chain = func(_ string, standard router.Chain) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{standard.Poison, standard.Retry, m.new(t), standard.Dedup, standard.Recoverer}
		}
	}
	config.Retry.MaxBackoff = 10 * time.Second // a handler that fails at random does not fail 100 times before the shutdown
	config.Retry.MaxAttempts = max(1, m.attempts)
	if composes {
		throughAnOutage(t, config, route, copies)
		return
	}
	config.Poison = newSink(nil)
	route.From, route.Topic, route.To = newSource(), "in", newSink(nil)
	err := build(t, config).Add(route)
	if name := strings.TrimSuffix(m.name, "WithFilter"); !errors.Is(err, router.ErrConfig) || !strings.Contains(err.Error(), "middleware."+name+" ") {
		t.Errorf("err = %v, want ErrConfig that names %s", err, name)
	}
}

// redelivering delivers a message until it is acked, and a while after each nack, as long as the source is open.
func redelivering(from *source, msg *message.Message, acked func(*message.Message)) {
	for {
		again := msg.Copy()
		select {
		case from.messages <- again:
		case <-from.closed:
			return
		}
		select {
		case <-again.Acked():
			acked(again)
			return
		case <-again.Nacked():
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// throughAnOutage carries messages through a route. At first the sink is
// down, and what the handler needs, and the handler of one message is interrupted by the
// shutdown; after the restart everything works. copies is how often each message is then
// in the sink.
func throughAnOutage(t *testing.T, config router.Config, route router.Route, copies int) {
	const n = 8
	var failing atomic.Bool
	failing.Store(true)
	to, poison := newSink(func(string, *message.Message) error {
		if failing.Load() {
			return down
		}
		return nil
	}), newSink(nil)
	config.Poison = poison
	stored := func() map[string]int {
		times := map[string]int{}
		for _, m := range to.all() {
			times[m.msg.Metadata[gateway.KeyMessageID]]++
		}
		return times
	}
	acked := func(msg *message.Message) {
		if stored()[msg.UUID] == 0 {
			t.Errorf("message %s is acked, and not stored", msg.UUID)
		}
	}
	run := func(wait time.Duration) router.RouteHealth {
		from := newSource()
		application, end := context.WithCancel(t.Context())
		var tried sync.Map
		route.From, route.Topic, route.To = from, "in", to
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			_, again := tried.LoadOrStore(msg.UUID, true)
			switch {
			case msg.UUID == "0" && failing.Load():
				<-application.Done()
				return nil, fmt.Errorf("asking for rain: %w", application.Err())
			case !again:
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return []*message.Message{msg}, nil
		}
		r := build(t, config, route)
		result := make(chan error, 1)
		go func() { result <- r.Run(application) }()
		for i := range n {
			id := fmt.Sprint(i)
			go redelivering(from, farmMessage(id, "e", id, id), acked) // ends with the source
			time.Sleep(time.Second)
		}
		time.Sleep(wait)
		synctest.Wait()
		health := r.Health()[0]
		end()
		testkit.NoError(t, <-result)
		poison.wantStored(t, 0)
		return health
	}

	if h := run(time.Minute); h.LastError == "" || h.InFlight == 0 || to.callCount() == 0 {
		t.Errorf("health is %+v after %d calls of the sink, want an error, messages in flight, and calls", h, to.callCount())
	}
	to.wantStored(t, 0)
	failing.Store(false)
	if h := run(time.Hour); h.Delivered < n {
		t.Errorf("%d messages counted as delivered, want %d", h.Delivered, n)
	}
	for i := range n {
		if got := stored()[fmt.Sprint(i)]; got != copies {
			t.Errorf("message %d stored %d times, want %d", i, got, copies)
		}
	}
}

// Middlewares that Add cannot see through are noticed when it has happened.
func TestEarlyAckIsTold(t *testing.T) {
	logger := testkit.NewLog()
	in := newSource()
	route := farmRoute(in, newSink(nil))
	route.Middleware = []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc {
		return middleware.InstantAck(func(*message.Message) ([]*message.Message, error) {
			return nil, router.WithClass(errHandler, router.ClassRedeliver)
		})
	}}
	startLogged(t, logger, router.Config{Poison: newSink(nil)}, route)
	in.messages <- farmMessage("1", "endpoint", "context", "payload")
	testkit.Eventually(t, "a line", func() bool {
		return strings.Contains(logger.String(), "a middleware acked a message that was not stored; it will not be redelivered")
	})
}

// The table of docs/watermill.md, and the test above, have every middleware that
// Watermill exports.
func TestWatermillMiddlewaresAreAllListed(t *testing.T) {
	exported := exportedMiddlewares(t)
	var tested []string
	for _, m := range watermillMiddlewares {
		tested = append(tested, m.name)
	}
	testkit.Equal(t, tested, exported)

	page := testkit.Must(os.ReadFile("../docs/watermill.md"))(t)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `middleware\\.(\\w+)` \\| ([\\w ]+) \\| ([\\w ]+) \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
		i := slices.Index(tested, row[1])
		if i < 0 {
			continue
		}
		for place, composes := range []bool{watermillMiddlewares[i].within, watermillMiddlewares[i].around} {
			if cell := row[2+place]; (cell != "refused") != composes {
				t.Errorf("%s: the page says %q, and composes is %v", row[1], cell, composes)
			}
		}
	}
	testkit.Equal(t, listed, exported)
}

// exportedMiddlewares returns, sorted, the exported functions that are or return a
// middleware, except constructors of a type that has one as a method, and those types.
func exportedMiddlewares(t *testing.T) []string {
	dir := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/ThreeDotsLabs/watermill/message/router/middleware").Output())(t)
	files := testkit.Must(filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go")))(t)
	isFunc := func(list *ast.FieldList, name string) bool { // of one message.name, or the same spelled out
		if list == nil || len(list.List) == 0 {
			return false
		}
		selector, ok := list.List[0].Type.(*ast.SelectorExpr)
		return ok && selector.Sel.Name == name
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		for _, declaration := range parsed.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || !function.Name.IsExported() {
				continue
			}
			is := isFunc(function.Type.Params, "HandlerFunc") && isFunc(function.Type.Results, "HandlerFunc") || isFunc(function.Type.Results, "HandlerMiddleware")
			if results := function.Type.Results; results != nil && len(results.List) > 0 {
				if literal, ok := results.List[0].Type.(*ast.FuncType); ok {
					is = is || isFunc(literal.Params, "HandlerFunc") && isFunc(literal.Results, "HandlerFunc")
				}
			}
			if !is {
				continue
			}
			name := function.Name.Name
			if function.Recv != nil {
				receiver := function.Recv.List[0].Type
				if pointer, ok := receiver.(*ast.StarExpr); ok {
					receiver = pointer.X
				}
				name = receiver.(*ast.Ident).Name
			}
			if ast.IsExported(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// lasting is a broker for which a Router is one of several clients: it does not end
// with it.
type lasting struct{ *gochannel.GoChannel }

func (lasting) Close() error { return nil }

// The middlewares of this package in Watermill's own Router over GoChannel, in every
// combination: something that the handler needs is down, the Router is closed meanwhile,
// and another one goes on.
func TestInWatermillsRouter(t *testing.T) {
	parts := []string{"poison", "retry", "dedup", "recoverer"}
	for set := range 1 << len(parts) {
		var with []string
		for i, part := range parts {
			if set&(1<<i) != 0 {
				with = append(with, part)
			}
		}
		t.Run(strings.Join(with, "+"), func(t *testing.T) {
			t.Parallel()
			inWatermillsRouter(t, with)
		})
	}
}

func inWatermillsRouter(t *testing.T, with []string) {
	const n = 5
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	defer func() { _ = broker.Close() }()
	poison, store := newSink(nil), newStore(t, 0)
	var failing atomic.Bool
	failing.Store(true)
	var mu sync.Mutex
	calls, handled := make(map[string]int), make(map[string]int)
	count := func(of map[string]int, id string) int {
		mu.Lock()
		defer mu.Unlock()
		return of[id]
	}

	run := func() (stop func()) {
		stopping := make(chan struct{})
		available := map[string]message.HandlerMiddleware{
			"poison": newPoison(t, router.PoisonConfig{Publisher: poison, Stop: stopping}).Middleware,
			"retry":  newRetry(t, router.RetryConfig{Stop: stopping, RetrySettings: fastRetry}).Middleware,
			"dedup": newDedup(t, router.DedupConfig{DedupSettings: router.DedupSettings{Store: store, KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
				return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
			}}}).Middleware,
			"recoverer": router.NewRecoverer(nil),
		}
		r := testkit.Must(message.NewRouter(message.RouterConfig{}, nil))(t)
		for _, part := range with {
			r.AddMiddleware(available[part])
		}
		r.AddConsumerHandler("farm", "in", lasting{broker}, func(msg *message.Message) error {
			<-time.After(time.Millisecond) // what is nacked comes back at once
			mu.Lock()
			calls[msg.UUID]++
			mu.Unlock()
			switch payload := string(msg.Payload); {
			case payload == "bad":
				return router.Permanent(errHandler)
			case payload == "interrupted" && failing.Load():
				<-stopping
				return fmt.Errorf("asking for rain: %w", context.Canceled)
			case failing.Load():
				return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			mu.Lock()
			defer mu.Unlock()
			handled[msg.UUID]++
			return nil
		})
		result := make(chan error, 1)
		go func() { result <- r.Run(t.Context()) }()
		<-r.Running()
		return func() {
			close(stopping)
			if err := errors.Join(r.Close(), <-result); err != nil {
				t.Error(err)
			}
		}
	}

	stop := run()
	for i := range n {
		payload := "good"
		switch {
		case i == 0:
			payload = "interrupted"
		case i == 1 && slices.Contains(with, "poison"):
			payload = "bad"
		}
		publish(t, broker, message.NewMessage(fmt.Sprint(i), []byte(payload)))
		testkit.Eventually(t, "a call", func() bool { return count(calls, "0") > 0 })
	}
	testkit.Eventually(t, "several attempts", func() bool { return count(calls, "2") > 2 })
	if slices.Contains(with, "poison") {
		poison.wait(t, 1)
	}
	stop()
	mu.Lock()
	if len(handled) > 0 {
		t.Errorf("handled during the outage: %v", handled)
	}
	mu.Unlock()

	failing.Store(false)
	stop = run()
	for i := range n {
		if i != 1 || !slices.Contains(with, "poison") {
			testkit.Eventually(t, "that the message is handled", func() bool { return count(handled, fmt.Sprint(i)) > 0 })
		}
	}
	stop()
	mu.Lock() // Watermill's Router does not wait for every handler
	defer mu.Unlock()
	for id, times := range handled {
		if times != 1 && slices.Contains(with, "dedup") {
			t.Errorf("message %s handled %d times, want once", id, times)
		}
	}
	for _, m := range poison.all() {
		if m.msg.UUID != "1" {
			t.Errorf("message %s poisoned: %s", m.msg.UUID, m.msg.Metadata[router.KeyPoisonReason])
		}
	}
}
