package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/feed"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// events.go sends what changes to the readers of the page, as server-sent events.

// event is sent to the page for one limiter after a poll: the whole known state at first, then the
// changes.
type event struct {
	entry
	Client     string `json:"client,omitempty"`
	ClientText string `json:"client_text,omitempty"` // as it is shown
	At         int64  `json:"at"`                    // ms since the epoch, by the server's clock
	Rate       string `json:"rate,omitempty"`
	Type       string `json:"type,omitempty"`
	Permits    int64  `json:"permits"`
	IntervalMs int64  `json:"interval_ms"`
	Available  int64  `json:"available"`
	Used       int64  `json:"used"`
	Records    int    `json:"records"`
	TTLMs      int64  `json:"ttl_ms"`
	Consistent *bool  `json:"consistent,omitempty"` // nil: not known
	Partial    bool   `json:"partial,omitempty"`
	Fault      string `json:"fault,omitempty"`
	Error      string `json:"error,omitempty"` // if Redis is away: the cause, in short
	// ms since the epoch: since when Redis has not answered
	Away   int64       `json:"away,omitempty"`
	Free   [][2]int64  `json:"free"`   // time in ms, permits free
	Grants []secondRow `json:"grants"` // replace earlier grants of the same seconds
}

type secondRow struct {
	At int64            `json:"at"` // ms
	By map[string]int64 `json:"by"` // by the tag of the Go client; "java" for Java or unknown
}

func eventOf(v feed.Sight, since time.Time) event {
	e := event{
		entry:     entryOf(v.Name),
		Client:    v.Client,
		At:        v.At.UnixMilli(),
		Available: v.Free,
		Used:      v.Used,
		Records:   v.Records,
		TTLMs:     v.TTL.Milliseconds(), Partial: v.Partial, Fault: v.Fault,
		Free: [][2]int64{}, Grants: []secondRow{},
	}
	if !v.At.IsZero() && v.Fault == "" { // it was read
		e.Consistent = &v.Consistent
	}
	if v.Rate.Interval > 0 {
		e.Rate, e.Type = v.Rate.String(), v.Rate.Type.String()
		e.Permits, e.IntervalMs = v.Rate.Permits, v.Rate.Interval.Milliseconds()
	}
	if v.Client != "" {
		e.ClientText = render.Printable(v.Client)
	}
	if v.Failed != nil && !errors.Is(v.Failed, feed.ErrWhose) { // the page offers the clients
		e.Error = v.Failed.Error()
	}
	for _, p := range v.Frees {
		if p.At.After(since) {
			e.Free = append(e.Free, [2]int64{p.At.UnixMilli(), p.Free})
		}
	}
	for _, second := range v.Seconds {
		if second.At.After(since.Add(-5 * time.Second)) { // counts of these seconds may have grown
			e.Grants = append(e.Grants, secondRow{second.At.UnixMilli(), feed.ByWriter(second)})
		}
	}
	return e
}

// mostOpen is the maximum of limiters that one reader has open.
const mostOpen = 24

// A view is a limiter, and the client whose permits are shown of a PER_CLIENT limiter; "" is none.
type view struct{ name, client string }

// views returns what a request asks for: its names, each with the client at the same place.
func (w *Site) views(in *http.Request) (all []view) {
	query := in.URL.Query()
	for i, name := range query["name"] {
		v := view{name: nameOf(name), client: w.client}
		if clients := query["client"]; w.client == "" && i < len(clients) {
			v.client = clients[i]
		}
		if len(all) <= mostOpen && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// events sends the events of the named limiters while the reader is connected.
func (w *Site) events(out http.ResponseWriter, in *http.Request) {
	views := w.views(in)
	if len(views) == 0 || len(views) > mostOpen {
		http.Error(out, fmt.Sprintf("name 1 to %d limiters", mostOpen), http.StatusBadRequest)
		return
	}
	told := make(chan struct{}, 1)
	var all []*shown
	for _, v := range views {
		n := w.show(v, told)
		defer w.hide(v, n, told)
		all = append(all, n)
	}
	out.Header().Set("Content-Type", "text/event-stream")
	out.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(out)
	type mark struct {
		at    time.Time // of the poll
		error string
		away  int64
	}
	sent := make([]mark, len(all)) // of the last event
	for {
		for i, n := range all {
			v := n.Sight()
			e := eventOf(v, sent[i].at)
			if v.Away != "" {
				e.Away, e.Error = w.away().UnixMilli(), v.Away
			}
			now := mark{v.At, e.Error, e.Away}
			if now == sent[i] {
				continue
			}
			sent[i] = now
			text, err := render.JSON(e)
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(out, "data: %s\n\n", text); err != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-in.Context().Done():
			return
		case <-told:
		}
	}
}

// show starts polling a limiter for one more reader.
func (w *Site) show(v view, reader chan struct{}) *shown {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.open[v]
	if n == nil {
		ctx, stop := context.WithCancel(w.ctx)
		n = &shown{readers: map[chan struct{}]bool{}, stop: stop}
		n.Followed = feed.Follow(ctx, w.server, w.server.Limiter(v.name, v.client), v.client != "", func() {
			w.tell(n)
		})
		w.open[v] = n
	}
	n.readers[reader] = true
	return n
}

// hide removes a reader, and the limiter with its last one.
func (w *Site) hide(v view, n *shown, reader chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(n.readers, reader)
	if len(n.readers) == 0 {
		n.stop()
		delete(w.open, v)
	}
}

func (w *Site) tell(n *shown) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for reader := range n.readers {
		select {
		case reader <- struct{}{}:
		default: // a signal is pending already
		}
	}
}

// shown is a limiter that is open on a page.
type shown struct {
	*feed.Followed
	readers map[chan struct{}]bool // each gets a signal after a poll
	stop    context.CancelFunc
}
