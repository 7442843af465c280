package admin_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

func replay(t *testing.T, server *admin.Server, changes []change, ids ...string) answer {
	t.Helper()
	body := testkit.Must(json.Marshal(admin.PoisonSelection{IDs: ids}))(t)
	return request(t, server, http.MethodPost, "/api/poison/replay", string(body), append([]change{asJSON()}, changes...)...)
}

// work has the server do something to the queue, and returns the job once it has ended.
func work(t *testing.T, server *admin.Server, action, selection string, changes ...change) admin.PoisonJob {
	t.Helper()
	changes = append([]change{asJSON(), bearer(testToken)}, changes...)
	request(t, server, http.MethodPost, "/api/poison/"+action, selection, changes...).want(t, http.StatusAccepted, `"action":"`+action+`"`)
	return ended(t, server)
}

// ended waits until the latest job has ended.
func ended(t *testing.T, server *admin.Server, changes ...change) (job admin.PoisonJob) {
	t.Helper()
	testkit.Eventually(t, "the job has ended", func() bool {
		job = *decode[admin.Status](t, get(t, server, "/api/status", changes...).want(t, http.StatusOK)).Job
		return !job.Ended.IsZero()
	})
	return job
}

// left returns the IDs of the messages in the queue, the first 100.
func left(t *testing.T, server *admin.Server, query string) (ids []string) {
	t.Helper()
	for _, m := range decode[admin.PoisonPage](t, get(t, server, "/api/poison?limit=100&"+query).want(t, http.StatusOK)).Messages {
		ids = append(ids, m.ID)
	}
	return ids
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

// memoryQueue is a queue whose messages can be deleted, unless it fails.
type memoryQueue struct {
	mu       sync.Mutex
	messages []router.Poisoned
	failing  atomic.Bool
}

func (q *memoryQueue) add(id string, meta message.Metadata) {
	q.mu.Lock()
	defer q.mu.Unlock()
	msg := message.NewMessage(id, []byte(secret))
	msg.Metadata = meta
	poisoned, _ := router.ParsePoisoned(msg)
	poisoned.ID = id
	q.messages = append(q.messages, poisoned)
}

func (q *memoryQueue) Messages(context.Context) iter.Seq2[router.Poisoned, error] {
	q.mu.Lock()
	list := slices.Clone(q.messages)
	q.mu.Unlock()
	return func(yield func(router.Poisoned, error) bool) {
		for _, p := range list {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func (q *memoryQueue) Get(_ context.Context, id string) (router.Poisoned, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.IndexFunc(q.messages, func(p router.Poisoned) bool { return p.ID == id }); i >= 0 {
		return q.messages[i], nil
	}
	return router.Poisoned{}, router.ErrNotInQueue
}

func (q *memoryQueue) Delete(_ context.Context, id string) error {
	if q.failing.Load() {
		return errors.New("no connection")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.messages)
	if q.messages = slices.DeleteFunc(q.messages, func(p router.Poisoned) bool { return p.ID == id }); len(q.messages) == n {
		return router.ErrNotInQueue
	}
	return nil
}

// many is a queue with messages of two reasons, one of which differs in texts and numbers, and
// one message that no router wrote.
func many(n int) *memoryQueue {
	queue := &memoryQueue{}
	queue.add("foreign", message.Metadata{})
	for i := range n {
		meta := message.Metadata{
			gateway.KeyMessageType: taskData, gateway.KeyFilename: fmt.Sprintf("Field %d.zip", i),
			router.KeyPoisonRoute: "tasks", router.KeyPoisonClass: "handler", router.KeyPoisonAttempts: "3", router.KeyPoisonCount: "1",
			router.KeyPoisonFirst: "2026-11-20T08:00:00Z", router.KeyPoisonLast: "2026-11-20T08:00:01Z",
			router.KeyPoisonReason: fmt.Sprintf("cannot read %q: byte %d", uuid.NewString(), i),
		}
		if i%4 == 0 {
			meta[router.KeyPoisonReason] = "no such field"
		}
		queue.add(fmt.Sprint("m", i), meta)
	}
	return queue
}

// Groups have what differs only in numbers, IDs and quoted texts; a group and a text select
// messages.
func TestPoisonGroups(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{queue: many(100)})
	groups := decode[admin.PoisonGroups](t, get(t, server, "/api/poison/groups").want(t, http.StatusOK))
	if len(groups.Groups) != 3 || groups.Messages != 101 || groups.Partial {
		t.Fatalf("%+v", groups)
	}
	first, second, foreign := groups.Groups[0], groups.Groups[1], groups.Groups[2]
	if first.Count != 75 || first.Reason != "cannot read …: byte …" || first.Route != "tasks" || first.Class != "handler" || first.MessageType != taskData ||
		second.Count != 25 || second.Reason != "no such field" || foreign.Count != 1 || !foreign.Foreign {
		t.Errorf("%+v", groups)
	}
	for query, want := range map[string]int{
		"group=" + first.ID: 75, "group=" + second.ID: 25, "group=" + foreign.ID: 1, "group=nobody": 0,
		"q=FIELD+7": 11, "q=no+such": 25, "q=m99": 1, "group=" + first.ID + "&q=field+7": 9, "q=tasks": 100,
	} {
		ids := left(t, server, query)
		if len(ids) != want {
			t.Errorf("%s: %d messages, want %d", query, len(ids), want)
		}
		page := decode[admin.PoisonPage](t, get(t, server, "/api/poison?offset=1&limit=5&"+query).want(t, http.StatusOK))
		if len(page.Messages) != max(0, min(5, want-1)) || page.More != (want > 6) {
			t.Errorf("%s: %d messages, more is %t, of %d", query, len(page.Messages), page.More, want)
		}
		for i, m := range page.Messages {
			if m.ID != ids[i+1] {
				t.Errorf("%s: place %d has %s, want %s", query, i+1, m.ID, ids[i+1])
			}
		}
	}
}

// An event in the quarantine says what is wrong with it, whose it is and when it came. It is grouped like what a route poisoned, and is not replayed.
func TestQuarantineIsShown(t *testing.T) {
	queue := many(2)
	for i := range 3 {
		queue.add(fmt.Sprint("q", i), message.Metadata{
			subscriber.KeyQuarantineReason: fmt.Sprintf("payload: no JSON at byte %d", 7*i), subscriber.KeyQuarantineClass: subscriber.QuarantineMalformed,
			subscriber.KeyQuarantineReceived: fmt.Sprintf("2026-11-20T08:00:0%dZ", i), subscriber.KeyQuarantineEventType: "MESSAGE_RECEIVED",
			subscriber.KeyQuarantineTenantID: "tenant-1", subscriber.KeyQuarantineEndpointID: "endpoint-1",
		})
	}
	server := serve(t, admin.Config{Token: testToken}, &plainSource{queue: queue})
	groups := decode[admin.PoisonGroups](t, get(t, server, "/api/poison/groups?endpoint=ENDPOINT-1").want(t, http.StatusOK)).Groups
	first, last := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC), time.Date(2026, 11, 20, 8, 0, 2, 0, time.UTC)
	want := admin.PoisonGroup{Count: 3, Class: "malformed", Reason: "payload: no JSON at byte …", MessageType: "MESSAGE_RECEIVED", First: first, Last: last, Foreign: true}
	if len(groups) != 1 || groups[0].ID == "" {
		t.Fatalf("%+v", groups)
	}
	want.ID = groups[0].ID
	if groups[0] != want {
		t.Errorf("got  %+v\nwant %+v", groups[0], want)
	}
	page := decode[admin.PoisonPage](t, get(t, server, "/api/poison?q=JSON&tenant=TENANT-1").want(t, http.StatusOK)).Messages
	if len(page) != 3 || page[1].Class != "malformed" || page[1].Endpoint != "endpoint-1" || !page[1].First.Equal(first.Add(time.Second)) || page[1].Attempts != 0 {
		t.Errorf("%+v", page)
	}
	if job := work(t, server, "replay", `{"group":"`+want.ID+`"}`); job.Selected != 0 {
		t.Errorf("%+v", job)
	}
	if job := work(t, server, "drop", `{"group":"`+want.ID+`"}`); job.Dropped != 3 {
		t.Errorf("%+v", job)
	}
}

// A drop needs the token, tells what became of each message, and leaves a line in the log when it begins and when it ends, as a replay does.
func TestDrop(t *testing.T) {
	var log safeBuffer
	queue := many(3)
	source := &plainSource{queue: queue, replay: func(context.Context, []string) (router.ReplayReport, error) {
		return router.ReplayReport{Sent: 1}, nil
	}}
	server := serve(t, admin.Config{Token: testToken, Logger: slog.New(slog.NewTextHandler(&log, nil))}, source)
	request(t, server, http.MethodPost, "/api/poison/drop", `{"ids":["m1"]}`, asJSON()).want(t, http.StatusUnauthorized)
	job := work(t, server, "drop", `{"ids":["m1","nobody","m2"]}`, header("X-Forwarded-For", "192.0.2.7"))
	want := admin.ReplayCounts{Selected: 3, Dropped: 2, Gone: 1}
	if job.ReplayCounts != want || job.Error != "" || !slices.Equal(job.Results, []admin.ReplayResult{{ID: "nobody", Outcome: admin.ReplayGone}}) {
		t.Errorf("%+v", job)
	}
	if ids := left(t, server, ""); !slices.Equal(ids, []string{"foreign", "m0"}) {
		t.Errorf("left: %v", ids)
	}
	work(t, server, "replay", `{"ids":["m0"]}`)
	for _, line := range []string{
		`msg="admin: a drop of poisoned messages begins" remote=127.0.0.1:`, `forwarded_for=192.0.2.7 asked="{\"ids\":[\"m1\",\"nobody\",\"m2\"]}"` + "\n",
		`msg="admin: a replay of poisoned messages begins" remote=127.0.0.1:`,
		`msg="admin: poisoned messages dropped" remote=127.0.0.1:`,
		`forwarded_for=192.0.2.7 asked="{\"ids\":[\"m1\",\"nobody\",\"m2\"]}" selected=3 tried=3 delivered=0 duplicate=0 poisoned=0 kept=0 gone=1 dropped=2 duration=`,
		`msg="admin: poisoned messages replayed" remote=127.0.0.1:`, `asked="{\"ids\":[\"m0\"]}" selected=1 tried=1 delivered=1`,
	} {
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("not once %s in\n%s", line, log.String())
		}
	}

	queue.failing.Store(true)
	if job := work(t, server, "drop", `{"ids":["m0","m1"]}`); job.Tried() != 0 || job.Error == "" {
		t.Errorf("of a queue that fails: %+v", job)
	}
}

// A job takes what is selected, the first ones of it if so wanted, and no message twice: one that fails again is at the end of the
// queue under another ID.
func TestJobSelects(t *testing.T) {
	queue := many(8)
	source := &plainSource{queue: queue, replay: func(ctx context.Context, ids []string) (router.ReplayReport, error) {
		found, err := queue.Get(ctx, ids[0])
		if err != nil {
			return router.ReplayReport{}, err
		}
		queue.add(ids[0]+"'", found.Message.Metadata)
		return router.ReplayReport{Poisoned: 1, Reason: "as before"}, queue.Delete(ctx, ids[0])
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	group := decode[admin.PoisonGroups](t, get(t, server, "/api/poison/groups?q=such").want(t, http.StatusOK)).Groups[0].ID
	for _, test := range []struct {
		action, selection, left string
		want                    admin.ReplayCounts
	}{
		{"replay", `{"all":true,"first":2}`, "foreign m2 m3 m4 m5 m6 m7 m0' m1'", admin.ReplayCounts{Selected: 2, Poisoned: 2}},
		{"replay", `{"all":true}`, "foreign m2' m3' m4' m5' m6' m7' m0'' m1''", admin.ReplayCounts{Selected: 8, Poisoned: 8}},
		{"drop", `{"group":"` + group + `","first":1}`, "foreign m2' m3' m5' m6' m7' m0'' m1''", admin.ReplayCounts{Selected: 1, Dropped: 1}},
		{"drop", `{"q":"M5'"}`, "foreign m2' m3' m6' m7' m0'' m1''", admin.ReplayCounts{Selected: 1, Dropped: 1}},
		{"drop", `{"all":true,"tenant":"another"}`, "foreign m2' m3' m6' m7' m0'' m1''", admin.ReplayCounts{}},
		{"drop", `{"all":true}`, "", admin.ReplayCounts{Selected: 7, Dropped: 7}},
	} {
		queued := work(t, server, test.action, test.selection)
		if got := strings.Join(left(t, server, ""), " "); got != test.left || queued.ReplayCounts != test.want || queued.Error != "" {
			t.Errorf("%s %s: left %s: %+v", test.action, test.selection, got, queued)
		}
	}
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
	for _, without := range []change{header("Authorization", ""), header("Authorization", "Basic "+testToken), header("Authorization", "Bearer"), header("Cookie", "token="+testToken)} {
		replay(t, server, []change{without}, "1").want(t, http.StatusUnauthorized)
	}
	request(t, server, http.MethodPost, "/api/poison/replay?token="+testToken, `{"ids":["1"]}`, asJSON()).want(t, http.StatusUnauthorized)
	a := replay(t, server, []change{bearer(testToken[:5])}, "1").want(t, http.StatusUnauthorized)
	if a.header.Get("WWW-Authenticate") == "" {
		t.Error("the answer does not say what is required")
	}
	replay(t, server, []change{bearer(testToken + "x")}, "1").want(t, http.StatusUnauthorized)
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusAccepted, `"action":"replay"`)
	if job := ended(t, server); job.Delivered != 1 {
		t.Errorf("%+v", job)
	}
	replay(t, server, []change{header("Authorization", "bearer "+testToken)}, "1").want(t, http.StatusAccepted)
	ended(t, server)

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
	replay(t, server, []change{bearer(testToken)}, "1").want(t, http.StatusAccepted)
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
		a := request(t, server, http.MethodPost, "/api/poison/replay", body, append([]change{asJSON(), bearer(testToken)}, changes...)...)
		if a.status == http.StatusAccepted {
			ended(t, server)
		}
		return a
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint(i))
	}
	for body, status := range map[string]int{
		`{"ids":["1"]}`: http.StatusAccepted,
		`{"ids":[` + strings.Join(many[:100], ",") + `]}`: http.StatusAccepted,
		`{"all":true}`:                              http.StatusAccepted,
		`{"endpoint":"1","first":3}`:                http.StatusAccepted,
		`{"first":3}`:                               http.StatusBadRequest,
		`{"all":true,"first":-1}`:                   http.StatusBadRequest,
		`{"ids":["1"],"first":1}`:                   http.StatusBadRequest,
		`{"ids":["1"],"q":"1"}`:                     http.StatusBadRequest,
		`{"ids":["1"],"alle":true}`:                 http.StatusBadRequest,
		`{"ids":[` + strings.Join(many, ",") + `]}`: http.StatusBadRequest,
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
	post(`{"ids":["1"]}`, header("Origin", "http://"+server.Addr()), header("Sec-Fetch-Site", "same-origin")).want(t, http.StatusAccepted)
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
		case "partial":
			return router.ReplayReport{Kept: 1, Partial: 1}, nil
		case "gone":
			return router.ReplayReport{}, fmt.Errorf("poisoned message: %w", router.ErrNotInQueue)
		case "kept":
			return router.ReplayReport{}, router.Permanent(errors.New("no such route, see https://farm.example/?token=" + secret))
		}
		return router.ReplayReport{}, errors.New("the queue does not answer, see https://farm.example/?token=" + secret)
	}}
	server := serve(t, admin.Config{Token: testToken}, source)
	job := work(t, server, "replay", `{"ids":["delivered","duplicate","poisoned","foreign","partial","gone","kept","broken","delivered again"]}`)
	if want := (admin.ReplayCounts{Selected: 9, Delivered: 1, Duplicate: 1, Poisoned: 1, Kept: 3, Gone: 1}); job.ReplayCounts != want || !strings.Contains(job.Error, "does not answer") {
		t.Fatalf("got  %+v\nwant %+v", job, want)
	}
	outcomes := []admin.ReplayOutcome{admin.ReplayPoisoned, admin.ReplayKept, admin.ReplayKept, admin.ReplayGone, admin.ReplayKept}
	for i, result := range job.Results {
		if result.Outcome != outcomes[i] {
			t.Errorf("%s: %s", result.ID, result.Outcome)
		}
		if partial := result.ID == "partial"; strings.Contains(result.Reason, "some of its recipients have it") != partial {
			t.Errorf("%s: got reason %q", result.ID, result.Reason)
		}
	}
}

// A job outlives the request that began it, and there is one at a time. It can be stopped, ends with the server, and tells how far it was.
func TestJobIsOneThatCanBeStopped(t *testing.T) {
	started := make(chan struct{}, 2)
	source := &plainSource{queue: queueOf(1), replay: func(ctx context.Context, ids []string) (router.ReplayReport, error) {
		if ids[0] == "1" {
			return router.ReplayReport{Sent: 1}, nil
		}
		started <- struct{}{}
		<-ctx.Done()
		return router.ReplayReport{}, ctx.Err()
	}}
	var log safeBuffer
	server := testkit.Must(admin.New(admin.Config{Address: "127.0.0.1:0", Token: testToken, Logger: slog.New(slog.NewTextHandler(&log, nil))}, source))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	begin := func() {
		t.Helper()
		replay(t, server, []change{bearer(testToken)}, "1", "waits", "3").want(t, http.StatusAccepted, `"selected":`)
		<-started
		job := *decode[admin.Status](t, get(t, server, "/api/status").want(t, http.StatusOK)).Job
		if job.Selected != 3 || job.Delivered != 1 || !job.Ended.IsZero() {
			t.Errorf("%+v", job)
		}
	}
	request(t, server, http.MethodPost, "/api/poison/stop", "", bearer(testToken)).want(t, http.StatusAccepted, "null")
	begin()
	for _, action := range []string{"replay", "drop"} {
		request(t, server, http.MethodPost, "/api/poison/"+action, `{"all":true}`, asJSON(), bearer(testToken)).want(t, http.StatusConflict)
	}
	request(t, server, http.MethodPost, "/api/poison/stop", "").want(t, http.StatusUnauthorized)
	request(t, server, http.MethodPost, "/api/poison/stop", "", bearer(testToken)).want(t, http.StatusAccepted)
	if job := ended(t, server); job.Error != "stopped" || job.Tried() != 1 {
		t.Errorf("%+v", job)
	}
	begin()
	cancel()
	testkit.NoError(t, <-served)
	for _, line := range []string{`selected=3 tried=1 delivered=1`, `error=stopped`, `error="agrimill is stopping"`} {
		testkit.Contains(t, log.String(), line)
	}
}

// reloaded is a pipeline whose poison queue becomes another one.
type reloaded struct {
	plainSource
	now    atomic.Pointer[memoryQueue]
	before func() // each replay
}

func (s *reloaded) PoisonStore() router.PoisonStore { return s.now.Load() }

func (s *reloaded) Replay(ctx context.Context, queue router.PoisonStore, ids []string) (router.ReplayReport, error) {
	s.before()
	return router.ReplayReport{Sent: 1}, queue.Delete(ctx, ids[0])
}

// A job stays with the queue that its IDs are of: another one, which a reload has named, may have the same.
func TestJobAcrossAReload(t *testing.T) {
	first, second := many(3), many(3)
	source := &reloaded{}
	source.now.Store(first)
	source.before = func() { source.now.Store(second) }
	server := serve(t, admin.Config{Token: testToken}, source)
	if job := work(t, server, "replay", `{"all":true}`); job.Delivered != 3 || job.Error != "" {
		t.Errorf("%+v", job)
	}
	if len(first.messages) != 1 || len(second.messages) != 4 {
		t.Errorf("%d and %d messages are left, want 1 and 4", len(first.messages), len(second.messages))
	}
}

// TestReplayOverRealParts replays what a route poisoned: in vain at first, and for
// good when the route is repaired.
func TestReplayOverRealParts(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
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
	if job := work(t, server, "replay", `{"all":true,"first":1}`); job.Poisoned != 1 || job.Results[0].ID != before[0].ID {
		t.Errorf("%+v", job)
	}
	again := list()
	if len(again) != 2 || again[1].ID == before[1].ID || again[1].Count != 2 {
		t.Errorf("queue: %+v", again)
	}
	b.repair()
	if job := work(t, server, "replay", fmt.Sprintf(`{"ids":[%q,%q,%q]}`, again[0].ID, again[1].ID, before[0].ID)); job.Delivered != 2 || job.Gone != 1 {
		t.Errorf("%+v", job)
	}
	if depth := b.Snapshot().Poison.Depth; depth == nil || *depth != 0 {
		t.Error("the depth is not that of the end of the replay")
	}
	if left := list(); len(left) != 0 {
		t.Errorf("queue: %+v", left)
	}
	if n := b.stored(); n != 2 {
		t.Errorf("%d messages are stored", n)
	}
}

// What is in a payload is told to those with the token only.
// What is no farm data is shown as what it is, as far as it is not too large; nothing of it is run
// or unpacked.
func TestPreview(t *testing.T) {
	var picture, archive bytes.Buffer
	testkit.NoError(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 20, 10))))
	files := zip.NewWriter(&archive)
	for i := range 201 {
		w := testkit.Must(files.Create(fmt.Sprintf("../%d.shp", i)))(t)
		_ = testkit.Must(w.Write(make([]byte, i)))(t)
	}
	testkit.NoError(t, files.Close())
	bomb := bytes.Clone(picture.Bytes())
	copy(bomb[16:], []byte{0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff}) // width and height
	binary.BigEndian.PutUint32(bomb[29:], crc32.ChecksumIEEE(bomb[12:29]))
	for name, c := range map[string]struct {
		payload []byte
		kind    admin.PreviewKind
		text    string
		more    bool
	}{
		"empty":     {nil, admin.PreviewEmpty, "", false},
		"text":      {[]byte("Grüße\n"), admin.PreviewText, "Grüße\n", false},
		"long text": {[]byte("x" + strings.Repeat("ü", 40_000)), admin.PreviewText, "x" + strings.Repeat("ü", 32767), true},
		"JSON":      {[]byte(`{"a":[1]}`), admin.PreviewJSON, "{\n  \"a\": [\n    1\n  ]\n}", false},
		"script":    {[]byte("<script>alert(1)</script>"), admin.PreviewText, "<script>alert(1)</script>", false},
		"hex":       {bytes.Repeat([]byte{0, 1}, 300), admin.PreviewHex, "00000000  00 01", true},
		"image":     {picture.Bytes(), admin.PreviewImage, "", false},
		"bomb":      {bomb, admin.PreviewHex, "00000000  89 50", false},
		"archive":   {archive.Bytes(), admin.PreviewZip, "", true},
		"no zip":    {append([]byte("PK\x03\x04"), make([]byte, 30)...), admin.PreviewHex, "00000000  50 4b", false},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &memoryQueue{}
			queue.add("1", message.Metadata{})
			queue.messages[0].Message.Payload = c.payload
			server := serve(t, admin.Config{Token: testToken}, &plainSource{queue: queue})
			contents := decode[admin.PoisonContents](t, get(t, server, "/api/poison/contents?id=1", bearer(testToken)).want(t, http.StatusOK))
			p := contents.Preview
			if p == nil || p.Kind != c.kind || !strings.HasPrefix(p.Text, c.text) || p.More != c.more || c.kind != admin.PreviewHex && p.Text != c.text {
				t.Fatalf("%+v", p)
			}
			switch c.kind {
			case admin.PreviewImage:
				if !bytes.Equal(p.Image, c.payload) || p.ImageType != "image/png" {
					t.Errorf("%s, %d bytes", p.ImageType, len(p.Image))
				}
			case admin.PreviewZip:
				if len(p.Entries) != 200 || p.Entries[7] != (admin.PreviewEntry{Name: "../7.shp", Size: 7}) {
					t.Errorf("%d entries: %+v", len(p.Entries), p.Entries[:8])
				}
			}
		})
	}
}

func TestPoisonContents(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken}, b)
	b.sendPayload(shapes, "acre.zip", farmdatatest.Archive(t, 3))
	b.waitConfirmed(1)
	b.sendPayload(shapes, "words", []byte("rows\tand words"))
	b.waitConfirmed(2)
	page := decode[admin.PoisonPage](t, get(t, server, "/api/poison").want(t, http.StatusOK))
	path := "/api/poison/contents?id=" + page.Messages[0].ID
	get(t, server, path).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer("wrong")).want(t, http.StatusUnauthorized)
	get(t, server, path, bearer(testToken)).want(t, http.StatusOK, "TaskData 4.2: 1 task", "Working width", `"records":3`, "u003csvg", "Mower")
	get(t, server, "/api/poison/contents?id="+page.Messages[1].ID, bearer(testToken)).want(t, http.StatusOK,
		"neither TaskData nor EFDI", `"preview":{"kind":"text","text":"rows\tand words"}`, `"x-router-filename":"words"`, `"x-router-poison-attempts":"`)
	get(t, server, "/api/poison/contents?id=4711", bearer(testToken)).want(t, http.StatusNotFound)
	get(t, server, "/api/poison/contents", bearer(testToken)).want(t, http.StatusNotFound)
	get(t, serve(t, admin.Config{}, b), path, bearer(testToken)).want(t, http.StatusForbidden)
	get(t, serve(t, admin.Config{Token: testToken}, &plainSource{}), path, bearer(testToken)).want(t, http.StatusNotFound)
}
