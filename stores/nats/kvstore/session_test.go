package kvstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// process is a store in a bubble with its own connection through its own proxy.
type process struct {
	*kvstore.Store
	t     *testing.T
	proxy *natstest.Proxy
	log   *testkit.Log
	owner router.Owner
}

func newProcess(t *testing.T, server *natstest.Server, owner router.Owner) *process {
	t.Helper()
	p := &process{t: t, proxy: natstest.NewLine(t, server), log: testkit.NewLog(), owner: owner}
	p.Store = open(t, kvstore.Config{Conn: connect(t, p.proxy), TTL: natstest.Ever, SessionTTL: sessionTTL, Timeout: time.Second, Logger: p.log})
	t.Cleanup(p.proxy.Resume)
	return p
}

func (p *process) claim(name string) router.Claim {
	return router.Claim{Keys: router.Keys{Delivery: router.KeyOf(name)}, Owner: p.owner}
}

// reserve reserves for an hour.
func (p *process) reserve(name string) router.Reservation {
	p.t.Helper()
	got := testkit.Must(p.Reserve(p.t.Context(), p.claim(name), time.Hour))(p.t)
	return got
}

func (p *process) want(name string, state router.ReserveState) router.Token {
	p.t.Helper()
	got := p.reserve(name)
	if got.State != state {
		p.t.Fatalf("Reserve = %+v, want state %d", got, state)
	}
	return got.Token
}

// whatever tries until the server answers.
func (p *process) eventually(name string, state router.ReserveState) (token router.Token) {
	p.t.Helper()
	testkit.Eventually(p.t, "the answer", func() bool {
		got, err := p.Reserve(p.t.Context(), p.claim(name), time.Hour)
		token = got.Token
		return err == nil && got.State == state
	})
	return token
}

// stays checks the answer for much longer than a session.
func (p *process) stays(name string, state router.ReserveState) {
	p.t.Helper()
	tick := time.NewTicker(sessionTTL / 20)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 3*sessionTTL; <-tick.C {
		p.want(name, state)
	}
}

func (p *process) logged(level watermill.LogLevel, text string) bool {
	return slices.ContainsFunc(p.log.Lines(level), func(line watermill.CapturedMessage) bool { return strings.Contains(line.Msg, text) })
}

var mill, barn = router.Owner{Instance: "mill", Session: "1"}, router.Owner{Instance: "barn", Session: "2"}

// A reservation that the server stored after the client had given up waiting is one's
// own: the message does not wait for it, nor do others.
func TestTimedOutReservationIsOnesOwn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		p, peer := newProcess(t, server, mill), newProcess(t, server, barn)
		p.want("before", router.Reserved)
		for _, name := range []string{"a", "b"} {
			p.proxy.LoseReplies()
			var reserving sync.WaitGroup
			reserving.Go(func() { // ends after Timeout
				if got, err := p.Reserve(t.Context(), p.claim(name), time.Hour); err == nil {
					t.Errorf("Reserve = %+v without an answer", got)
				}
			})
			synctest.Wait()
			peer.want(name, router.Busy)
			reserving.Wait()
			p.proxy.Cut()
			if name == "a" {
				p.eventually(name, router.Reserved)
				p.want(name, router.Busy) // now it is held
			} else {
				peer.eventually(name, router.Reserved) // nobody asks for it here any more
			}
		}
		peer.stays("before", router.Busy)
	})
}

// What could not be recorded, or released, is made up for.
func TestCommitAndReleaseThatFailed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		p, peer := newProcess(t, server, mill), newProcess(t, server, barn)
		handled, failed := p.want("handled", router.Reserved), p.want("failed", router.Reserved)
		p.proxy.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := p.Commit(ctx, p.claim("handled"), handled, time.Hour); err == nil {
			t.Error("Commit without an answer succeeded")
		}
		if err := p.Release(ctx, p.claim("failed"), failed); err == nil {
			t.Error("Release without an answer succeeded")
		}
		p.want("handled", router.Committed) // without asking the server
		p.proxy.Cut()
		peer.eventually("handled", router.Committed)
		peer.eventually("failed", router.Reserved)
	})
}

// A pause of the server that is longer than a session ends nobody's reservations.
func TestServerPausedForLongerThanASession(t *testing.T) {
	for name, pause := range map[string]func(*natstest.Server, ...*process){
		"hangs": func(_ *natstest.Server, all ...*process) {
			for _, p := range all {
				p.proxy.Hang()
			}
			<-time.After(2 * sessionTTL)
			for _, p := range all {
				p.proxy.Resume()
			}
		},
		// The one that is first back is not to declare the other dead.
		"back one after the other": func(_ *natstest.Server, all ...*process) {
			for _, p := range all {
				p.proxy.Hang()
			}
			<-time.After(2 * sessionTTL)
			all[1].proxy.Resume()
			tick := time.NewTicker(sessionTTL / 20)
			defer tick.Stop()
			for began := time.Now(); time.Since(began) < sessionTTL/2; <-tick.C {
				got, err := all[1].Reserve(all[1].t.Context(), all[1].claim("a"), time.Hour)
				if err == nil && got.State != router.Busy {
					all[1].t.Fatalf("Reserve = %+v while the holder is about to come back", got)
				}
			}
			all[0].proxy.Resume()
		},
		"down": func(server *natstest.Server, _ ...*process) {
			server.Stop()
			<-time.After(2 * sessionTTL)
			server.Restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
				p, peer := newProcess(t, server, mill), newProcess(t, server, barn)
				token := p.want("a", router.Reserved)
				peer.want("b", router.Reserved)
				<-time.After(2 * sessionTTL)
				peer.want("a", router.Busy)
				pause(server, p, peer)
				peer.eventually("a", router.Busy)
				peer.stays("a", router.Busy)
				testkit.NoError(t, p.Commit(t.Context(), p.claim("a"), token, time.Hour))
				peer.want("a", router.Committed)
			})
		})
	}
}

// A process that alone is cut off is taken for dead. Its commit counts when it goes on, and it
// does not release what others hold.
func TestProcessThatIsCutOff(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		p, peer := newProcess(t, server, mill), newProcess(t, server, barn)
		handled, failed := p.want("handled", router.Reserved), p.want("failed", router.Reserved)
		p.proxy.Hang()
		taken := peer.eventually("handled", router.Reserved)
		if got := peer.reserve("failed"); got.State != router.Reserved {
			t.Errorf("Reserve = %+v, want that it is taken over", got)
		}
		p.proxy.Resume()
		testkit.EventuallyNil(t, func() error { return p.Commit(t.Context(), p.claim("handled"), handled, time.Hour) })
		testkit.NoError(t, p.Release(t.Context(), p.claim("failed"), failed))
		if !p.logged(watermill.InfoLogLevel, "after its reservation had ended") {
			t.Errorf("nothing tells that it may be there twice: %v", p.log.Lines())
		}
		if !peer.logged(watermill.InfoLogLevel, "its reservations are taken over") {
			t.Errorf("the end of the session is not logged: %v", peer.log.Lines())
		}
		p.want("handled", router.Committed)
		p.want("failed", router.Busy)
		testkit.NoError(t, peer.Release(t.Context(), peer.claim("handled"), taken))
		peer.want("handled", router.Committed)
		// It lives on, with what it reserves from now on.
		p.want("new", router.Reserved)
		peer.stays("new", router.Busy)
	})
}

// Two processes with the same instance name: the one that is taken for dead notices, and
// goes on without the name.
func TestTwoProcessesOfOneInstance(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		first, second := newProcess(t, server, mill), newProcess(t, server, router.Owner{Instance: "mill", Session: "9"})
		first.want("a", router.Reserved)
		second.want("a", router.Reserved)
		testkit.Eventually(t, "the first one notices", func() bool { return first.logged(watermill.ErrorLogLevel, "the same dedup instance") })
		first.want("b", router.Reserved)
		second.stays("b", router.Busy)
		first.want("a", router.Busy)
		if second.logged(watermill.ErrorLogLevel, "the same dedup instance") {
			t.Error("the second one was ended too")
		}
	})
}

// A bucket that vanishes is there again with the next request, and everything goes on.
func TestBucketGone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		p, peer := newProcess(t, server, mill), newProcess(t, server, barn)
		js := testkit.Must(natstest.JetStream(connect(t, server)))(t)
		open, failed := p.want("open", router.Reserved), p.want("failed", router.Reserved)
		testkit.NoError(t, js.DeleteKeyValue(t.Context(), kvstore.DefaultBucket))
		testkit.EventuallyNil(t, func() error { return p.Commit(t.Context(), p.claim("open"), open, time.Hour) })
		testkit.NoError(t, p.Release(t.Context(), p.claim("failed"), failed))
		// The server may take the new bucket along with what is left of the old one, if
		// it comes that early; then it is made once more.
		round := 0
		testkit.Eventually(t, "dedup goes on", func() bool {
			round++
			name := fmt.Sprint("round ", round)
			token := p.eventually(name, router.Reserved)
			if err := p.Commit(t.Context(), p.claim(name), token, time.Hour); err != nil {
				return false
			}
			return peer.reserve(name).State == router.Committed
		})
		p.want("new", router.Reserved)
		peer.stays("new", router.Busy)
		if !p.logged(watermill.InfoLogLevel, "was created again") && !peer.logged(watermill.InfoLogLevel, "was created again") {
			t.Errorf("not logged: %v", p.log.Lines())
		}
		for _, request := range []func() error{
			func() error { return p.Health(t.Context()) },
			func() error { _, err := p.Reserve(t.Context(), p.claim("newer"), time.Hour); return err },
		} {
			testkit.NoError(t, js.DeleteKeyValue(t.Context(), kvstore.DefaultBucket))
			testkit.EventuallyNil(t, request)
		}
	})
}

func TestBucketGoneIsNotCreatedWithoutPermission(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		conn := connect(t, server)
		js := testkit.Must(natstest.JetStream(conn))(t)
		create := func() {
			t.Helper()
			testkit.Must(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "given", LimitMarkerTTL: time.Minute}))(t)
		}
		config := kvstore.Config{Conn: conn, Bucket: "given", Provision: kvstore.ProvisionNone, SessionTTL: sessionTTL}
		if _, err := kvstore.New(t.Context(), config); err == nil {
			t.Fatal("a store without a bucket")
		}
		create()
		store := open(t, config)
		testkit.NoError(t, js.DeleteKeyValue(t.Context(), "given"))
		if _, err := store.Reserve(t.Context(), deliveryOf("a"), time.Hour); err == nil {
			t.Fatal("a reservation without a bucket")
		}
		if err := store.Health(t.Context()); err == nil {
			t.Error("Health tells nothing")
		}
		create()
		if got, err := store.Reserve(t.Context(), deliveryOf("a"), time.Hour); err != nil || got.State != router.Reserved {
			t.Errorf("state %d, %v", got.State, err)
		}
	})
}
