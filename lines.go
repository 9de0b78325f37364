package rratelimiter

import "sync"

// lines.go knows the lines of a client: which limiters somebody uses now, and a few that somebody used just before. Of all
// other names nothing is kept.

// spareLines is how many lines nobody uses are kept at most, since whoever asks once mostly asks again.
const spareLines = 256

// lines are the lines of a client. A line's own lock comes after this one.
type lines struct {
	mu    sync.Mutex
	all   map[lineKey]*line
	spare [spareLines]*line // parked here, each once, and mostly not used any more
	next  int               // the place of the next one
}

// lineKey tells limiters apart.
type lineKey struct {
	name     string // of the configuration key
	settings settings
}

// enter gives the line of a limiter, and locks it.
func (c *Client) enter(l *Limiter) *line {
	if ln := l.line.Load(); ln != nil {
		if ln.mu.Lock(); !ln.dropped {
			return ln
		}
		ln.mu.Unlock()
	}
	key := lineKey{l.keyNames[keyConfig], l.settings}
	c.lines.mu.Lock()
	ln := c.lines.all[key]
	if ln == nil {
		ln = newLine(l)
		c.lines.all[key] = ln
	}
	ln.mu.Lock()
	c.lines.mu.Unlock()
	l.line.Store(ln)
	return ln
}

// exit unlocks a line. One that nobody uses any more is parked, and forgotten once so many others were parked after it.
func (ln *line) exit() {
	park := !ln.parked && ln.idle()
	ln.parked = ln.parked || park
	ln.mu.Unlock()
	if park {
		ln.client.lines.park(ln)
	}
}

// park keeps a line for a while, in the place of another one: that is forgotten unless it is in use again.
func (ls *lines) park(ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	out := ls.spare[ls.next]
	ls.spare[ls.next] = ln
	ls.next = (ls.next + 1) % spareLines
	if out == nil {
		return
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if !out.idle() {
		out.parked = false // it parks again
		return
	}
	out.dropped = true
	out.limiter.line.CompareAndSwap(out, nil)
	delete(ls.all, lineKey{out.limiter.keyNames[keyConfig], out.limiter.settings})
}

// list gives the lines of the limiters that are chosen.
func (ls *lines) list(chosen func(*Limiter) bool) []*line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var found []*line
	for _, ln := range ls.all {
		if chosen(ln.limiter) {
			found = append(found, ln)
		}
	}
	return found
}
