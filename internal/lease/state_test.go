package lease

import (
	"slices"
	"testing"
	"time"
)

// A copy of a ledger has the same numbers, and nothing that happens to the ledger changes them.
func TestClone(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.Take(95, b.now)
	b.pass(900 * time.Millisecond)
	b.brought(b.Ticket(), 50, time.Second)
	before := b.AppendState(nil)
	c := b.Clone()
	b.Take(3, b.now)
	b.End()
	b.Change()
	if now := c.AppendState(nil); !slices.Equal(now, before) || slices.Equal(b.AppendState(nil), before) {
		t.Errorf("a copy is %v, not %v", now, before)
	}
	if n := c.Held(b.now); n != 55 || c.Unused() != 55 {
		t.Errorf("a copy holds %d permits, expected 55", n)
	}
	c.End()
	if backs := c.Returns(); len(backs) != 2 || backs[0].Permits != 5 || backs[1].Permits != 50 {
		t.Errorf("a copy gives back %v", backs)
	}
	if !c.May(Draft{}) && c.Returning() {
		t.Error("a copy gives back permits before Start")
	}
}
