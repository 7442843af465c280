package gateway

import (
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// forbiddenProof is how long the success of an operation proves that a 403 concerns only its own request, and
	// maxForbiddenRow for how many in a row.
	forbiddenProof  = time.Minute
	maxForbiddenRow = 10
	// intermediaryMemory is how long an intermediary's response counts; longer than every default backoff.
	intermediaryMemory = 10 * time.Minute
)

// IntermediaryState reports what intermediaries have answered; see [ErrIntermediary].
type IntermediaryState struct {
	// Answers counts such answers since the client was created.
	Answers int64
	// Now lists the operations whose latest answer, at most ten minutes old, came
	// from an intermediary, sorted by name. It is empty if the service itself answers.
	Now []IntermediaryAnswer
}

// IntermediaryAnswer is an operation that an intermediary currently answers.
type IntermediaryAnswer struct {
	// Operation is [Error.Op], or "get access token".
	Operation string `json:"operation"`
	// Since is the time of the first such answer in a row, and Last that of the latest.
	Since time.Time `json:"since"`
	Last  time.Time `json:"-"`
	// StatusCode and ContentType are those of the latest, as in [Error].
	StatusCode  int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
}

// Intermediaries reports whether an intermediary answers instead of the service. It never blocks for long.
func (c *Client) Intermediaries() IntermediaryState { return c.answers.state(time.Now()) }

// answers records, by operation, what the client needs to judge the next answer.
type answers struct {
	mu         sync.Mutex
	total      int64
	last       CallState
	operations map[string]*operationAnswers
}

type operationAnswers struct {
	succeeded    time.Time
	forbidden    int                // 403 responses since then
	intermediary IntermediaryAnswer // Since is zero if the service answers
}

// CallState is the outcome of the latest attempt of a call.
type CallState struct {
	// At is when the attempt ended; zero before the first one.
	At time.Time
	// Err is nil if the service did what was requested, or explained with a 4xx of its own, other than 401, why not.
	Err error
}

// LastCall reports whether the service answers calls other than the event stream, which may await its head,
// and payload downloads. It never blocks for long.
func (c *Client) LastCall() CallState {
	c.answers.mu.Lock()
	defer c.answers.mu.Unlock()
	return c.answers.last
}

// attempted records what an attempt reveals about who answers the operation; failure is nil for a success. The
// token source does that for the token endpoint, and payload hosts are not part of the service.
func (a *answers) attempted(op string, streaming bool, failure *Error, now time.Time) {
	if !streaming {
		a.called(failure, now)
	}
	switch {
	case op == opPayload:
	case failure == nil:
		a.take(op, nil, now)
	case !errors.Is(failure, ErrToken):
		a.take(op, failure, now)
	}
}

// called records the outcome of an attempt; failure is nil for a success.
func (a *answers) called(failure *Error, now time.Time) {
	state := CallState{At: now}
	switch {
	case failure == nil:
	case failure.ErrorResponse && failure.StatusCode < 500 && failure.StatusCode != http.StatusUnauthorized && !failure.intermediary():
	case failure.StatusCode == 0 && !errors.Is(failure, ErrUnavailable) && !errors.Is(failure, ErrToken):
		return // an error of the caller says nothing about the service
	default:
		state.Err = failure
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = state
}

// take records the outcome of an attempt; failure is nil for a success. Outcomes that
// do not reveal who answered, such as a broken connection, change nothing.
func (a *answers) take(op string, failure error, now time.Time) {
	var (
		status       int
		contentType  string
		intermediary bool
	)
	if failure != nil {
		status, contentType = answerOf(failure)
		intermediary = errors.Is(failure, ErrIntermediary)
		if !intermediary && (status < 400 || status > 499) {
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.operations[op]
	if o == nil {
		o = &operationAnswers{}
		if a.operations == nil {
			a.operations = make(map[string]*operationAnswers)
		}
		a.operations[op] = o
	}
	if !intermediary {
		o.intermediary = IntermediaryAnswer{}
		if failure == nil {
			o.succeeded, o.forbidden = now, 0
		}
		return
	}
	a.total++
	since := o.intermediary.Since
	if since.IsZero() || now.Sub(o.intermediary.Last) > intermediaryMemory {
		since = now
	}
	o.intermediary = IntermediaryAnswer{Operation: op, Since: since, Last: now, StatusCode: status, ContentType: contentType}
}

// proven records a 403 for a request sent at the given time and reports whether
// another request proves that the 403 concerns only this one: it succeeded recently,
// before this one was sent. One that succeeded since may be the first after an outage.
func (a *answers) proven(op string, sent, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.operations[op]
	if o == nil || o.succeeded.IsZero() || o.succeeded.After(sent) || now.Sub(o.succeeded) > forbiddenProof {
		return false
	}
	o.forbidden++
	return o.forbidden <= maxForbiddenRow
}

func (a *answers) state(now time.Time) IntermediaryState {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := IntermediaryState{Answers: a.total}
	for _, o := range a.operations {
		if !o.intermediary.Since.IsZero() && now.Sub(o.intermediary.Last) <= intermediaryMemory {
			state.Now = append(state.Now, o.intermediary)
		}
	}
	slices.SortFunc(state.Now, func(x, y IntermediaryAnswer) int { return strings.Compare(x.Operation, y.Operation) })
	return state
}

// answerOf returns status and content type of the response behind an error.
func answerOf(err error) (status int, contentType string) {
	if token, ok := errors.AsType[*tokenError](err); ok {
		return token.status, token.media
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.StatusCode, e.ContentType
	}
	return 0, ""
}

// mediaType returns the media type of a response; empty if it has no valid one.
func mediaType(h http.Header) string {
	value, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	if value == "" {
		return ""
	}
	media, _, err := mime.ParseMediaType(value)
	if err != nil || len(media) > 100 {
		return ""
	}
	return media
}

// isWebPage reports whether a response is meant for people. The service never sends one.
func isWebPage(media string) bool { return media == "text/html" || media == "application/xhtml+xml" }

// sniffWebPage is isWebPage for a body that begins with head and may have no media type.
func sniffWebPage(media string, head []byte) bool {
	if media == "" {
		media = http.DetectContentType(head)
		media, _, _ = strings.Cut(media, ";")
	}
	return isWebPage(media)
}

// errWebPage is the error for a 2xx response that is a web page.
func errWebPage() *ResponseError { return &ResponseError{Reason: "a web page", intermediary: true} }
