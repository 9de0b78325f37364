package rig

import (
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// A Log is an Observer that records calls.
type Log struct {
	mu    sync.Mutex
	calls []rratelimiter.CallInfo
}

// Call records a call.
func (l *Log) Call(f rratelimiter.CallInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, f)
}

// All returns the calls so far.
func (l *Log) All() []rratelimiter.CallInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]rratelimiter.CallInfo(nil), l.calls...)
}

// Last waits until there are as many calls as given, and returns the last one; more calls fail the
// test. An observer sees a call after its callers got their results, so the call may be late.
func (l *Log) Last(t *testing.T, calls int) rratelimiter.CallInfo {
	t.Helper()
	for range 5000 {
		l.mu.Lock()
		if len(l.calls) >= calls {
			defer l.mu.Unlock()
			if len(l.calls) > calls {
				t.Fatalf("%d calls were seen, want %d", len(l.calls), calls)
			}
			return l.calls[calls-1]
		}
		l.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d calls were seen, want %d", len(l.calls), calls)
	return rratelimiter.CallInfo{}
}
