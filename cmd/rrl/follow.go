package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/feed"
)

// follow.go polls limiters for watch and serve, which show the same: free permits over time, and the grants of each
// second by client.

// A followed is a limiter that is polled.
type followed struct {
	feed *feed.Feed // used by the polling goroutine only

	mu    sync.Mutex
	known sight
}

// longestLook is the time of a poll after which Redis counts as not responding.
const longestLook = 2 * time.Second

// A sight is the known state of a followed limiter.
type sight struct {
	feed.Look
	frees   []feed.Free   // of the last two minutes
	seconds []feed.Second // of the same time; seconds without a grant are left out
	failed  error
}

// follow polls a limiter until ctx ends. changed is called after each poll.
func follow(ctx context.Context, s *session, l *rratelimiter.Limiter, changed func()) *followed {
	f := &followed{feed: feed.New(l, s.client != ""), known: sight{Look: feed.Look{Name: l.Name()}}}
	go func() {
		for ctx.Err() == nil {
			f.look(ctx, s)
			changed()
			select {
			case <-ctx.Done():
			case <-time.After(f.feed.Every()):
			}
		}
	}()
	return f
}

func (f *followed) look(ctx context.Context, s *session) {
	bounded, cancel := context.WithTimeoutCause(ctx, longestLook, fmt.Errorf("no answer within %v", longestLook))
	defer cancel()
	look, err := f.feed.Look(bounded)
	if ctx.Err() != nil {
		return
	}
	if err != nil && bounded.Err() != nil {
		err = fmt.Errorf("%s: %w", s.Where, context.Cause(bounded))
	}
	if err == nil && look.Rate.Type == rratelimiter.PerClient && look.Client == "" {
		err = errors.New("a PER_CLIENT limiter: --client says whose permits to show")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.failed = s.Explain(err)
	if err == nil {
		since := look.At.Add(-feed.Length)
		f.known.Look, f.known.frees, f.known.seconds = look, f.feed.Frees(since), f.feed.Seconds(since)
	}
}

// sight returns the known state.
func (f *followed) sight() sight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known
}

// lastSecond returns the grants of the last whole second.
func (v sight) lastSecond() feed.Second {
	at := v.At.Unix() - 1
	for _, second := range v.seconds {
		if second.At.Unix() == at {
			return second
		}
	}
	return feed.Second{At: time.Unix(at, 0)}
}

// mean returns the mean of permits granted a second, over a number of whole seconds before now.
func (v sight) mean(seconds int) float64 {
	var sum int64
	now := v.At.Unix()
	for _, second := range v.seconds {
		if at := second.At.Unix(); at < now && at >= now-int64(seconds) {
			sum += second.Permits
		}
	}
	return float64(sum) / float64(seconds)
}

// columns returns the figures of n seconds up to the one before now: the fewest permits free, and the permits granted.
func (v sight) columns(n int) (free, granted []int64) {
	free, granted = make([]int64, n), make([]int64, n)
	for i := range free {
		free[i] = -1 // no poll in that second
	}
	first := v.At.Unix() - int64(n)
	for _, p := range v.frees {
		if i := p.At.Unix() - first; i >= 0 && i < int64(n) && (free[i] < 0 || p.Free < free[i]) {
			free[i] = p.Free
		}
	}
	for _, second := range v.seconds {
		if i := second.At.Unix() - first; i >= 0 && i < int64(n) {
			granted[i] = second.Permits
		}
	}
	return free, granted
}

// followable returns the limiters to follow under a name: those of each client, if these are requested. A limiter that
// does not exist yet is included.
func (s *session) followable(ctx context.Context, name string) ([]*rratelimiter.Limiter, error) {
	limiters, err := s.states(ctx, name)
	if errors.Is(err, rratelimiter.ErrNotInitialized) && s.client == "" {
		return []*rratelimiter.Limiter{s.Limiter(name, "")}, nil
	}
	return limiters, err
}
