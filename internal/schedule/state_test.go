package schedule

import (
	"slices"
	"testing"
)

// A copy of a queue behaves like the queue, its numbers are the same, and nothing that happens to
// the queue changes them.
func TestClone(t *testing.T) {
	for seed := range uint64(500) {
		w, copied := newWorld(t, seed, false), newWorld(t, seed, false)
		for range 60 {
			before := copied.state()
			old := copied.clone()
			if now := copied.state(); !slices.Equal(now, before) {
				t.Fatalf("seed %d: a copy is %v, not %v\n%v", seed, now, before, copied.log)
			}
			old.spoil()
			if now := copied.state(); !slices.Equal(now, before) {
				t.Fatalf("seed %d: a copy becomes %v, from %v\n%v", seed, now, before, copied.log)
			}
			w.step()
			copied.step()
			if !slices.Equal(w.log, copied.log) || !slices.Equal(w.state(), copied.state()) {
				t.Fatalf("seed %d: %v\n%v", seed, w.log, copied.log)
			}
		}
	}
}

// clone puts copies in the place of the queue, its batches and its requests, and returns a world
// with the originals.
func (w *world) clone() *world {
	old := *w
	var batches []*Batch
	for _, f := range w.flying {
		batches = append(batches, f.b)
	}
	w.q, batches, w.requests = w.q.Clone(batches, w.requests)
	w.flying = slices.Clone(w.flying)
	for i, b := range batches {
		w.flying[i].b = b
	}
	return &old
}

// state returns the numbers of all that is not settled.
func (w *world) state() []int64 {
	var batches []*Batch
	for _, f := range w.flying {
		batches = append(batches, f.b)
	}
	return w.q.AppendState(nil, w.m, batches, w.requests, Known{})
}

// spoil ends all batches and requests.
func (w *world) spoil() {
	for _, f := range w.flying {
		w.q.Settle(w.m, f.b, &f.reply)
	}
	for _, r := range w.requests {
		if !r.state.Final() {
			w.q.Leave(r)
		}
	}
}
