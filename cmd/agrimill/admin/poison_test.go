package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/admin"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
)

func replay(t *testing.T, server *admin.Server, changes []change, ids ...string) answer {
	t.Helper()
	body := must(json.Marshal(admin.ReplayRequest{IDs: ids}))(t)
	return request(t, server, http.MethodPost, "/api/poison/replay", string(body), append([]change{asJSON()}, changes...)...)
}

func TestPoisonPages(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{queue: queueOf(60)})
	for query, want := range map[string]struct {
		first, n int
		more     bool
	}{
		"": {0, 25, true}, "?offset=50": {50, 10, false}, "?offset=10&limit=50": {10, 50, false}, "?offset=9&limit=50": {9, 50, true},
		"?offset=60": {60, 0, false}, "?limit=100": {0, 60, false}, "?offset=2147483647": {2147483647, 0, false},
	} {
		page := decode[admin.PoisonPage](t, get(t, server, "/api/poison"+query).want(t, http.StatusOK))
		if page.Offset != want.first || len(page.Messages) != want.n || page.More != want.more ||
			want.n > 0 && (page.Messages[0].ID != fmt.Sprint(want.first) || !page.Messages[0].Foreign || page.Messages[0].Size != int64(len(secret))) {
			t.Errorf("%q: %+v", query, page)
		}
	}
	for _, query := range []string{"?offset=-1", "?limit=0", "?limit=101", "?offset=x", "?limit=1e1", "?offset=99999999999999999999"} {
		get(t, server, "/api/poison"+query).want(t, http.StatusBadRequest)
	}
	get(t, serve(t, admin.Config{}, &plainSource{}), "/api/poison").want(t, http.StatusNotFound)
}

func TestReplayNeedsTheToken(t *testing.T) {
	var log strings.Builder
	source := &plainSource{queue: queueOf(1), replay: func(context.Context, []string) (router.ReplayReport, error) {
		return router.ReplayReport{Sent: 1}, nil
	}}
	var now atomic.Int64
	config := admin.Config{
		Token: testToken, Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return time.Unix(0, now.Load()) },
	}
	server := serve(t, config, source)
	replay(t, server, nil, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{header("Authorization", "Basic "+testToken)}, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{header("Authorization", "Bearer")}, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{header("Cookie", "token="+testToken)}, "1").want(t, http.StatusUnauthorized)
	request(t, server, http.MethodPost, "/api/poison/replay?token="+testToken, `{"ids":["1"]}`, asJSON()).want(t, http.StatusUnauthorized)
	a := replay(t, server, []change{bearer(testToken[:5])}, "1").want(t, http.StatusUnauthorized)
	if a.header.Get("WWW-Authenticate") == "" {
		t.Error("the answer does not say what is required")
	}
	replay(t, server, []change{bearer(testToken + "x")}, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusOK, `"delivered"`)
	replay(t, server, []change{header("Authorization", "bearer "+testToken)}, "1").want(t, http.StatusOK)

	for range 3 {
		replay(t, server, []change{bearer("wrong-one")}, "1").want(t, http.StatusUnauthorized)
	}
	a = replay(t, server, []change{bearer("wrong-one")}, "1").want(t, http.StatusTooManyRequests)
	if a.header.Get("Retry-After") != "10" {
		t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
	}
	// The right one too: an answer would say which one is right.
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusTooManyRequests)
	now.Add(int64(10 * time.Second))
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusOK)
	replay(t, server, []change{bearer("wrong-one")}, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{bearer("wrong-one")}, "1").want(t, http.StatusTooManyRequests)
	if text := log.String(); strings.Contains(text, testToken[:5]) || strings.Contains(text, "wrong-one") {
		t.Errorf("the log shows tokens: %s", text)
	} else if n := strings.Count(text, "rejected a replay with a wrong token"); n != 6 {
		t.Errorf("%d wrong tokens are logged, want 6: %s", n, text)
	}

	off := serve(t, admin.Config{}, source)
	replay(t, off, []change{bearer("")}, "1").want(t, http.StatusForbidden)
	replay(t, off, []change{bearer(testToken)}, "1").want(t, http.StatusForbidden)
}

func TestReplayRequests(t *testing.T) {
	source := &plainSource{queue: queueOf(1), replay: func(context.Context, []string) (router.ReplayReport, error) {
		return router.ReplayReport{Sent: 1}, nil
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	post := func(body string, changes ...change) answer {
		return request(t, server, http.MethodPost, "/api/poison/replay", body, append([]change{asJSON(), bearer(testToken)}, changes...)...)
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint(i))
	}
	for body, status := range map[string]int{
		`{"ids":["1"]}`: http.StatusOK,
		`{"ids":[` + strings.Join(many[:100], ",") + `]}`: http.StatusOK,
		`{"ids":[` + strings.Join(many, ",") + `]}`:       http.StatusBadRequest,
		``:                         http.StatusBadRequest,
		`{}`:                       http.StatusBadRequest,
		`{"ids":[]}`:               http.StatusBadRequest,
		`{"ids":[""]}`:             http.StatusBadRequest,
		`{"ids":["1","1"]}`:        http.StatusBadRequest,
		`{"ids":[1]}`:              http.StatusBadRequest,
		`{"ids":["1"],"all":true}`: http.StatusBadRequest,
		`{"ids":["1"]}{"ids":[]}`:  http.StatusBadRequest,
		`{"ids":["1"`:              http.StatusBadRequest,
		`["1"]`:                    http.StatusBadRequest,
		`{"ids":["` + strings.Repeat("1", 70_000) + `"]}`: http.StatusRequestEntityTooLarge,
	} {
		if a := post(body); a.status != status {
			t.Errorf("%.60s: %d, want %d: %s", body, a.status, status, a.body)
		}
	}
	post(`{"ids":["1"]}`, header("Content-Type", "text/plain")).want(t, http.StatusUnsupportedMediaType)
	post(`{"ids":["1"]}`, header("Content-Type", "application/x-www-form-urlencoded")).want(t, http.StatusUnsupportedMediaType)
	// A browser says that another site asks.
	post(`{"ids":["1"]}`, header("Sec-Fetch-Site", "cross-site")).want(t, http.StatusForbidden)
	post(`{"ids":["1"]}`, header("Origin", "https://attacker.example")).want(t, http.StatusForbidden)
	post(`{"ids":["1"]}`, header("Origin", "http://"+server.Addr()), header("Sec-Fetch-Site", "same-origin")).want(t, http.StatusOK)
}

func TestReplayOutcomes(t *testing.T) {
	source := &plainSource{queue: queueOf(1), replay: func(_ context.Context, ids []string) (router.ReplayReport, error) {
		switch ids[0] {
		case "delivered":
			return router.ReplayReport{Sent: 1}, nil
		case "duplicate":
			return router.ReplayReport{Sent: 1, Duplicates: 1}, nil
		case "poisoned":
			return router.ReplayReport{Poisoned: 1}, nil
		case "foreign":
			return router.ReplayReport{Kept: 1}, nil
		case "gone":
			return router.ReplayReport{}, fmt.Errorf("poisoned message: %w", router.ErrNotInQueue)
		case "kept":
			return router.ReplayReport{}, router.Permanent(errors.New("no such route, see https://farm.example/?token=" + secret))
		}
		return router.ReplayReport{}, errors.New("the queue does not answer, see https://farm.example/?token=" + secret)
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	a := replay(t, server, []change{bearer(testToken)}, "delivered", "duplicate", "poisoned", "foreign", "gone", "kept", "broken", "delivered again")
	response := decode[admin.ReplayResponse](t, a.want(t, http.StatusOK))
	outcomes := []admin.ReplayOutcome{
		admin.ReplayDelivered, admin.ReplayDuplicate, admin.ReplayPoisoned, admin.ReplayKept, admin.ReplayGone, admin.ReplayKept,
	}
	if len(response.Results) != len(outcomes) || !strings.Contains(response.Error, "does not answer") {
		t.Fatalf("response: %+v", response)
	}
	for i, result := range response.Results {
		if result.Outcome != outcomes[i] {
			t.Errorf("%s: %s", result.ID, result.Outcome)
		}
	}
}

// TestReplayIsBounded checks that there is one replay at a time, that it ends after
// its time, and that the end of the server does not wait for it.
func TestReplayIsBounded(t *testing.T) {
	started := make(chan struct{}, 2)
	source := &plainSource{queue: queueOf(1), replay: func(ctx context.Context, _ []string) (router.ReplayReport, error) {
		started <- struct{}{}
		<-ctx.Done()
		return router.ReplayReport{}, ctx.Err()
	}}
	server := must(admin.New(admin.Config{Address: "127.0.0.1:0", Token: testToken}, source))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served, first := make(chan error, 1), make(chan answer, 1)
	go func() { served <- server.Serve(ctx) }()
	go func() { first <- replay(t, server, []change{bearer(testToken)}, "1") }()
	<-started
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusConflict)
	cancel()
	(<-first).want(t, http.StatusOK, `"error":"agrimill is stopping"`, `"results":[]`)
	if err := <-served; err != nil {
		t.Error(err)
	}

	short := serve(t, admin.Config{Token: testToken, ReplayTimeout: 20 * time.Millisecond}, source)
	replay(t, short, []change{bearer(testToken)}, "1").want(t, http.StatusOK, "not finished within 20ms")
}

// TestReplayOverRealParts replays what a route poisoned: in vain at first, and for
// good when the route is repaired.
func TestReplayOverRealParts(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	b.run()
	b.send(2, shapes, hostileFilename)
	b.waitConfirmed(2)
	list := func() []admin.PoisonedRecord {
		t.Helper()
		return decode[admin.PoisonPage](t, get(t, server, "/api/poison").want(t, http.StatusOK)).Messages
	}
	before := list()
	if len(before) != 2 {
		t.Fatalf("queue: %+v", before)
	}
	record := before[0]
	if record.Route != hostileRoute || record.Class != "permanent" || record.MessageType != shapes || record.Filename != hostileFilename ||
		record.Attempts != 1 || record.Count != 1 || record.First.IsZero() || record.Foreign || record.Endpoint != b.office.ID || record.Size <= 0 {
		t.Errorf("record: %+v", record)
	}
	replay(t, server, []change{bearer(testToken)}, before[0].ID).want(t, http.StatusOK, `"outcome":"poisoned"`)
	again := list()
	if len(again) != 2 || again[1].ID == before[1].ID || again[1].Count != 2 {
		t.Errorf("queue: %+v", again)
	}
	b.repaired.Store(true)
	replay(t, server, []change{bearer(testToken)}, again[0].ID, again[1].ID, before[0].ID).want(t, http.StatusOK, `"delivered"`, `"gone"`)
	if left := list(); len(left) != 0 {
		t.Errorf("queue: %+v", left)
	}
	if n := b.stored(); n != 2 {
		t.Errorf("%d messages are stored", n)
	}
}

// What is in a payload is told to those with the token only.
func TestPoisonContents(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	b.run()
	b.sendPayload(shapes, "acre.zip", farmdatatest.Archive(t, 3))
	b.waitConfirmed(1)
	b.send(1, shapes, "picture")
	b.waitConfirmed(2)
	page := decode[admin.PoisonPage](t, get(t, server, "/api/poison").want(t, http.StatusOK))
	path := "/api/poison/contents?id=" + page.Messages[0].ID
	get(t, server, path).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer("wrong")).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer(testToken)).want(t, http.StatusOK, "TaskData 4.2: 1 task", "Working width", `"records":3`, "u003csvg", "Mower")
	get(t, server, "/api/poison/contents?id="+page.Messages[1].ID, bearer(testToken)).want(t, http.StatusUnprocessableEntity, "neither TaskData nor EFDI")
	get(t, server, "/api/poison/contents?id=4711", bearer(testToken)).want(t, http.StatusNotFound)
	get(t, server, "/api/poison/contents", bearer(testToken)).want(t, http.StatusNotFound)
	get(t, serve(t, admin.Config{}, b), path, bearer(testToken)).want(t, http.StatusForbidden)
	get(t, serve(t, admin.Config{Token: testToken}, &plainSource{}), path, bearer(testToken)).want(t, http.StatusNotFound)
}
