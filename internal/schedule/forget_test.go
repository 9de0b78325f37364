package schedule

import (
	"regexp"
	"slices"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/deep"
)

// A copy of a queue from which all is dropped that has no effect decides like the queue, whatever
// becomes of the original.
func TestWhatAQueueForgetsHasNoEffect(t *testing.T) {
	for seed := range uint64(500) {
		w, forgetful := newWorld(t, seed, false), newWorld(t, seed, false)
		for range 60 {
			forgetful.forget()
			w.step()
			forgetful.step()
			if log, other := w.withoutNumbers(), forgetful.withoutNumbers(); !slices.Equal(log, other) {
				t.Fatalf("seed %d: %v\n%v", seed, log, other)
			}
		}
	}
}

// However often a queue forgets, a batch in flight still dates a reservation, unless the reply to a
// later one has dated it.
func TestAQueueThatForgetsKeepsTheOrderOfDates(t *testing.T) {
	for dated, heeded := range map[int64][2]bool{0: {true, true}, 5: {false, true}, 9: {false, false}} {
		s := newSetStory(t)
		res := &Reservation{dated: dated}
		r := waitBoth(1, 1)
		r.Reservations = []*Reservation{res, {}}
		s.q.Join(r)
		batches := []*Batch{{number: 3}, {number: 7}}
		for times := range 3 {
			s.q.Forget(s.m, batches)
			for i, b := range batches {
				if heeds := b.number >= res.dated; heeds != heeded[i] {
					t.Errorf("dated by batch %d, forgotten %d times: batch %d dates it: %v", dated, times+1, i, heeds)
				}
			}
		}
	}
}

// forget puts copies in the place of the queue, its batches and its requests, and ends the
// originals.
func (w *world) forget() {
	type state struct {
		q        *Queue
		flying   []flight
		requests []*Request
	}
	old := state{w.q, w.flying, w.requests}
	now := deep.Copy(&old)
	w.q, w.flying, w.requests = now.q, now.flying, now.requests
	for _, f := range old.flying {
		old.q.Settle(w.m, f.b, &f.reply)
	}
	for _, r := range old.requests {
		if !r.state.Final() {
			old.q.Leave(r)
		}
	}
	var batches []*Batch
	for _, f := range w.flying {
		batches = append(batches, f.b)
	}
	w.q.Forget(w.m, batches)
}

// withoutNumbers returns the log of the last step without the numbers of batches, and ends the log.
func (w *world) withoutNumbers() (log []string) {
	for _, line := range w.log {
		log = append(log, numbers.ReplaceAllString(line, "batch"))
	}
	w.log = nil
	return log
}

var numbers = regexp.MustCompile(`batch \d+`)
