package feed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// follow.go polls limiters for watch and serve, which show the same: free permits over time, and
// the grants of each second by client.

// A Followed is a limiter that is polled.
type Followed struct {
	feed *Feed // used by the polling goroutine only

	mu    sync.Mutex
	known Sight
}

// A Sight is the known state of a followed limiter.
type Sight struct {
	Look              // the last one with an answer
	Now     time.Time // of the last poll, by the server's clock; estimated if the poll failed
	Frees   []Free    // of the last two minutes
	Seconds []Second  // of the same time; seconds without a grant are left out
	Seen    []Span    // the part of that time of which grants are known
	Failed  error
	Away    string // why the server did not answer the last poll, in brief; "": it did
}

// ErrWhose is the error of a poll of a PER_CLIENT limiter without a client. Its rate is known.
var ErrWhose = errors.New("a PER_CLIENT limiter: --client says whose permits to show")

// Follow polls a limiter of a server until ctx ends. own says that its client's own state is meant.
// changed is called after each poll.
func Follow(ctx context.Context, s *connect.Server, l *connect.Limiter, own bool, changed func()) *Followed {
	f := &Followed{feed: New(l, own), known: Sight{Look: Look{Name: l.Name()}}}
	go func() {
		for {
			f.look(ctx, s)
			changed()
			select {
			case <-ctx.Done():
				return
			case <-time.After(f.feed.Every()):
			}
		}
	}()
	return f
}

func (f *Followed) look(ctx context.Context, s *connect.Server) {
	look, err := f.feed.Look(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil && look.Rate.Type == rratelimiter.PerClient && look.Client == "" {
		err = ErrWhose
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.Now, f.known.Failed, f.known.Away = f.feed.now(), s.Explain(err), ""
	if connect.Unanswered(err) && !errors.Is(err, ErrWhose) {
		f.known.Away = s.Brief(err)
	}
	if err == nil || errors.Is(err, ErrWhose) {
		since := look.At.Add(-Length)
		f.known.Look, f.known.Seen = look, f.feed.Seen()
		f.known.Frees, f.known.Seconds = f.feed.Frees(since), f.feed.Seconds(since)
	}
}

// Sight returns the known state.
func (f *Followed) Sight() Sight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known
}

// LastSecond returns the grants of the last whole second, and whether all of it was seen.
func (v Sight) LastSecond() (second Second, seen bool) { return v.Second(v.At.Unix() - 1) }

// Second is LastSecond for any second, given in Unix time.
func (v Sight) Second(at int64) (second Second, seen bool) {
	for _, second := range v.Seconds {
		if second.At.Unix() == at {
			return second, v.saw(at)
		}
	}
	return Second{At: time.Unix(at, 0)}, v.saw(at)
}

// saw reports whether the grants of a whole second are known.
func (v Sight) saw(second int64) bool {
	return slices.ContainsFunc(v.Seen, func(s Span) bool {
		return !s.From.After(time.Unix(second, 0)) && !s.To.Before(time.Unix(second+1, 0))
	})
}

// Mean returns the mean of permits granted a second, over those of the last n whole seconds that
// were seen. Without any it is not known.
func (v Sight) Mean(n int) (mean float64, known bool) {
	granted := map[int64]int64{}
	for _, second := range v.Seconds {
		granted[second.At.Unix()] = second.Permits
	}
	var sum, seconds int64
	for at := v.At.Unix() - int64(n); at < v.At.Unix(); at++ {
		if v.saw(at) {
			sum += granted[at]
			seconds++
		}
	}
	return float64(sum) / float64(max(seconds, 1)), seconds > 0
}

// Columns returns the figures of n seconds up to the one before now: the fewest permits free, and
// the permits granted.
func (v Sight) Columns(n int) (free, granted []int64) {
	free, granted = make([]int64, n), make([]int64, n)
	for i := range free {
		free[i] = -1 // no poll in that second
	}
	first := v.At.Unix() - int64(n)
	for _, p := range v.Frees {
		if i := p.At.Unix() - first; i >= 0 && i < int64(n) && (free[i] < 0 || p.Free < free[i]) {
			free[i] = p.Free
		}
	}
	for _, second := range v.Seconds {
		if i := second.At.Unix() - first; i >= 0 && i < int64(n) {
			granted[i] = second.Permits
		}
	}
	return free, granted
}

// ByWriter returns the permits of a second for programs: by the tag of the Go client, or "java".
func ByWriter(second Second) map[string]int64 {
	by := map[string]int64{}
	for tag, permits := range second.By {
		if tag == "" {
			tag = "java"
		}
		by[tag] = permits
	}
	return by
}
