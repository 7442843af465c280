package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// Verdict says whether all is right and, if not, what is wrong. The page, /readyz, the log, the metrics and agrimill status
// all have it from here, so that they agree.
type Verdict struct {
	// Sentence is for a person: whether all is right or what is wrong, for whom, for how long, what happens to the data, and
	// what to do.
	Sentence string `json:"sentence"`
	// Ready is what /readyz responds: messages move, or another instance moves them and this one stands by.
	Ready bool `json:"ready"`
	// Problems are the worst ones first.
	Problems []Problem `json:"problems"`
}

// Counting counts the problems that count, by kind; see [Problem.Stage].
func (v Verdict) Counting() map[ProblemKind]int {
	counts := make(map[ProblemKind]int)
	for _, p := range v.Problems {
		if p.Counts() {
			counts[p.Kind]++
		}
	}
	return counts
}

// ExitStatus is that of agrimill status: 0, 4 with problems that count, 5 if it is not ready.
func (v Verdict) ExitStatus() int {
	switch {
	case !v.Ready:
		return 5
	case len(v.Counting()) > 0:
		return 4
	}
	return 0
}

// Apply returns checks as /readyz shows them: what does not count yet is OK, and what recovered only just is not.
func (v Verdict) Apply(checks []Check) []Check {
	shown := slices.Clone(checks)
	for i := range shown {
		c := &shown[i]
		at := slices.IndexFunc(v.Problems, func(p Problem) bool { return p.Unready && slices.Contains(p.checks, c.Name) })
		switch {
		case at < 0: // it passes, or the state of the pipeline says it
		case !c.OK && v.Problems[at].Stage == StageRecent:
			c.OK, c.Message = true, "failing, within the grace period: "+c.Message
		case c.OK && v.Problems[at].Stage == StageRecovering:
			p := v.Problems[at]
			c.OK, c.Since, c.Message = false, p.Since, "recovered, within the grace period"
		}
	}
	return shown
}

// conclude sorts the problems and fills the rest.
func (v *Verdict) conclude(s *Snapshot, grace time.Duration) {
	slices.SortStableFunc(v.Problems, func(a, b Problem) int {
		return cmp.Or(a.rank()-b.rank(), slices.Index(kinds[:], a.Kind)-slices.Index(kinds[:], b.Kind), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	v.Ready = s.moves() && !slices.ContainsFunc(v.Problems, func(p Problem) bool { return p.Unready && p.counts() })
	for i := range v.Problems {
		v.Problems[i].Text = v.Problems[i].text(s.Time, grace)
	}
	v.Sentence = sentence(s, v.Problems)
}

func (s *Snapshot) moves() bool {
	return s.Error == "" && len(s.Checks) > 0 && s.State != StateStarting && s.State != StateDraining && s.State != StateStopped
}

func sentence(s *Snapshot, problems []Problem) string {
	switch {
	case s.Error != "":
		return fmt.Sprintf("agrimill has stopped: %s. What is not confirmed stays with the gateway and the brokers; nothing is lost. Repair that, and start agrimill again.", s.Error)
	case s.State == StateStopped:
		return "agrimill has stopped. What is not confirmed stays with the gateway and the brokers; nothing is lost."
	case s.State == StateDraining:
		return "agrimill is stopping: it finishes the messages in flight. The others stay with the gateway and the brokers; nothing is lost."
	case !s.moves():
		return "agrimill is starting."
	case len(problems) > 0:
		text := problems[0].Text
		if more := len(problems) - 1; more > 0 {
			text += fmt.Sprintf(" There %s %s.", verb(more, "is", "are"), plural(more, "more problem"))
		}
		return text
	case s.Gateway.State == GatewayStandby && s.Lease.Holder == "":
		return "All is right: this instance stands by, and takes over unless another one holds the lease."
	case s.Gateway.State == GatewayStandby:
		return fmt.Sprintf("All is right: %s holds the lease and works; this instance stands by.", s.Lease.Holder)
	case s.Gateway.State == GatewayUnused:
		return "All is right: the routes move messages" + s.exceptions()
	case s.Gateway.State == GatewayConnecting, s.Gateway.State == GatewayDisconnected: // since the last look
		return "agrimill is connecting to the gateway, which keeps the messages until then" + s.exceptions()
	}
	return "All is right: messages are received, stored and confirmed" + s.exceptions()
}

// exceptions are the messages since the start of which nobody can tell whether they are still a problem.
func (s *Snapshot) exceptions() (text string) {
	if n := int(s.Subscriber.Rejected); n > 0 {
		text = fmt.Sprintf(", but for %s since the start whose %s rejected for good: see the log", plural(n, "message"), verb(n, "confirmation was", "confirmations were"))
	}
	poisoned := int(s.Subscriber.Quarantined)
	for i := range s.Routes {
		poisoned += int(s.Routes[i].Poisoned)
	}
	if poisoned > 0 && s.Poison.Depth == nil {
		text += fmt.Sprintf(", but for %s since the start in the poison queue of the sink %q", plural(poisoned, "message"), s.Poison.Sink)
	}
	return text + "."
}

func (p *Problem) text(now time.Time, grace time.Duration) string {
	lasted := span(now.Sub(p.Since))
	if p.Stage == StageRecovering {
		return capital(fmt.Sprintf("%s recovered %s ago, after %s. This counts until it has lasted for %s.",
			p.Subject, span(now.Sub(p.Recovered)), span(p.Recovered.Sub(p.Since)), span(grace)))
	}
	var text strings.Builder
	if p.Stage == StageStarting {
		text.WriteString("agrimill is starting: ")
	}
	text.WriteString(p.Subject + " " + p.Trouble)
	if !p.Since.IsZero() {
		text.WriteString(" for " + lasted)
	}
	if p.Reason != "" {
		text.WriteString(": " + strings.TrimRight(strings.TrimPrefix(p.Reason, "gateway: "), ". "))
	}
	if !strings.HasSuffix(p.Reason, "?") {
		text.WriteString(".")
	}
	text.WriteString(" " + capital(p.Effect) + ".")
	if p.Stage == StageRecent {
		text.WriteString(" This counts once it has lasted for " + span(grace) + ".")
	}
	text.WriteString(" " + capital(p.Action) + ".")
	return capital(text.String())
}

// span writes a duration with its two largest units, as the page does.
func span(d time.Duration) string {
	s := int64(max(0, d).Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s%86400/3600)
}

func capital(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if strings.HasPrefix(text, "agrimill") {
		return text // the program's name is written so
	}
	return string(unicode.ToUpper(first)) + text[size:]
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return humanize.Comma(int64(n)) + " " + noun + "s"
}

// naming lists names of things of a kind: the route "a", or the routes "a" and "b".
func naming(noun string, names []string) string {
	const most = 3
	quoted := make([]string, 0, most+1)
	for _, name := range names[:min(len(names), most)] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	if more := len(names) - most; more > 0 {
		quoted = append(quoted, fmt.Sprintf("%s more", humanize.Comma(int64(more))))
	}
	last := len(quoted) - 1
	if last == 0 {
		return "the " + noun + " " + quoted[0]
	}
	return "the " + noun + "s " + strings.Join(quoted[:last], ", ") + " and " + quoted[last]
}
