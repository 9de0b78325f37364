// Package workers does jobs in the background: in a few goroutines, which end when no job is left.
package workers

import "sync"

// Workers do jobs. The fields are set before the first job.
type Workers[T any] struct {
	Most int                     // how many jobs are done at once
	Do   func(job T, behind int) // does a job, behind which so many wait

	mu      sync.Mutex // guards the fields below; no other lock is taken meanwhile
	waiting []T
	working int // goroutines
}

// Add lets a job be done, after those that were added before. It does not block.
func (w *Workers[T]) Add(job T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, job)
	if w.working < w.Most {
		w.working++
		go w.work()
	}
}

// work does what waits, until nothing does.
func (w *Workers[T]) work() {
	for {
		job, behind, ok := w.next()
		if !ok {
			return
		}
		w.Do(job, behind)
	}
}

// next returns the job that is to be done next, and how many wait behind it; not ok: the goroutine
// ends.
func (w *Workers[T]) next() (job T, behind int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		w.waiting = nil
		w.working--
		return job, 0, false
	}
	job = w.waiting[0]
	w.waiting = w.waiting[1:]
	return job, len(w.waiting), true
}
