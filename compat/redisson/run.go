package redisson

// Run: Java threads that acquire for a while, and the log of what they got. The threads are Java's
// (Run.java); here their log becomes Go values.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Work says what the threads of Run do.
type Work struct {
	// Blocked threads call acquire(n); others call tryAcquire(n) and pause after each refusal.
	Blocked bool
	// Threads is 1 when 0.
	Threads int
	// For is how long calls are begun; 1 s when 0.
	For time.Duration
	// Min and Max bound n, which is drawn anew for each grant; both are 1 when 0.
	Min, Max int64
	// At is when to begin, so that several processes begin together; at once when zero.
	At time.Time
	// Pause is how long a poller rests after a refusal; 2 ms when 0.
	Pause time.Duration
	// Grace is how long blocked threads may still wait when the time is up; 5 s when 0.
	Grace time.Duration
	// Seed makes the sizes repeatable; random when 0.
	Seed int64
	// OnGrant, where set, is told of each grant as it comes, one after the other.
	OnGrant func(Grant) `json:"-"`
}

func (w Work) words() []string {
	mode := "unblocked"
	if w.Blocked {
		mode = "blocked"
	}
	words := []string{mode}
	add := func(key string, value int64) {
		if value != 0 {
			words = append(words, key+"="+strconv.FormatInt(value, 10))
		}
	}
	add("threads", int64(w.Threads))
	add("for", w.For.Milliseconds())
	add("min", w.Min)
	add("max", w.Max)
	if !w.At.IsZero() {
		add("at", w.At.UnixMilli())
	}
	add("pause", w.Pause.Milliseconds())
	add("grace", w.Grace.Milliseconds())
	add("seed", w.Seed)
	return words
}

// bound is when Run is given up if its context does not say so.
func (w Work) bound() time.Duration {
	bound := callTimeout + max(w.For, time.Second) + max(w.Grace, 5*time.Second)
	if !w.At.IsZero() {
		bound += max(0, time.Until(w.At))
	}
	return bound
}

// A Grant is one successful acquire. The call that was granted began at Start and had returned by
// End, by the clock of this machine, in microseconds: the permits were taken in between. For
// blocked threads Start is when acquire was called, for others when the last tryAcquire was.
type Grant struct {
	Thread     int
	Permits    int64
	Start, End time.Time
}

// A RunResult is the log of a Run.
type RunResult struct {
	// Grants are in the order in which they were logged, about that of their ends.
	Grants []Grant
	// Permits is the sum of what was granted.
	Permits int64
	// Denied counts the refusals that pollers got.
	Denied int64
	// Faults are the calls that failed.
	Faults []error
	// Unfinished threads were still blocked when the grace was over. They may have taken permits
	// that are not in the log, or will take them yet: Redisson goes on behind an interrupted
	// acquire.
	Unfinished int64
	// Begin and End bound the run.
	Begin, End time.Time
}

// Run lets threads acquire for a while and returns when they are done. When the context ends
// before that, they are told to stop, and what has been logged so far comes with the error.
func (p *Process) Run(ctx context.Context, name string, work Work) (*RunResult, error) {
	word, err := escape(name)
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, work.bound())
		defer cancel()
	}
	var mu sync.Mutex
	result := &RunResult{Begin: time.Now()}
	over := false
	more := func(words []string) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		switch {
		case len(words) == 5 && words[0] == "grant":
			var n [4]int64
			for i := range n {
				n[i], _ = strconv.ParseInt(words[i+1], 10, 64)
			}
			grant := Grant{Thread: int(n[0]), Permits: n[1], Start: time.UnixMicro(n[2]), End: time.UnixMicro(n[3])}
			result.Grants = append(result.Grants, grant)
			result.Permits += grant.Permits
			if work.OnGrant != nil {
				work.OnGrant(grant)
			}
		case len(words) >= 3 && words[0] == "fault":
			result.Faults = append(result.Faults,
				&Error{Version: p.version, Class: words[2], Message: strings.Join(words[3:], " ")})
		}
	}
	answer, err := p.do(ctx, more, "run", append([]string{word}, work.words()...)...)

	mu.Lock()
	defer mu.Unlock()
	over = true
	result.End = time.Now()
	if err != nil {
		return result, err
	}
	summary := map[string]int64{}
	for _, word := range answer {
		key, value, _ := strings.Cut(word, "=")
		if summary[key], err = strconv.ParseInt(value, 10, 64); err != nil {
			return result, fmt.Errorf("redisson: run answered %q", answer)
		}
	}
	result.Denied = summary["denied"]
	result.Unfinished = summary["unfinished"]
	result.Begin = time.UnixMilli(summary["begin"])
	result.End = time.UnixMilli(summary["end"])
	// A thread that comes back in the very moment in which it is given up is in the sum or not.
	if summary["unfinished"] == 0 &&
		(summary["grants"] != int64(len(result.Grants)) || summary["permits"] != result.Permits) {
		return result, fmt.Errorf("redisson: run logged %d grants of %d permits, but says %q",
			len(result.Grants), result.Permits, answer)
	}
	return result, nil
}
