package deep

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

type node struct {
	n       int32
	big     bool
	name    string
	at      time.Time
	next    *node
	all     []*node
	rows    [2][]int64
	seen    map[uint32]int64
	count   atomic.Int64
	current atomic.Pointer[node]
	err     error
	call    func() int
}

var errFailure = errors.New("failure")

// ring returns two nodes that refer to each other.
func ring() *node {
	a, b := &node{n: 1, name: "a", err: errFailure, call: func() int { return 1 }},
		&node{n: 2, big: true, at: time.UnixMilli(5)}
	a.next, a.all, a.rows[1], a.seen = b, []*node{a, b}, []int64{7, 8}, map[uint32]int64{1: 2, 3: 4, 5: 6}
	b.count.Store(9)
	b.current.Store(a)
	return a
}

// A copy has the same bytes, refers to its own parts, and shares nothing with the original.
func TestCopy(t *testing.T) {
	original := ring()
	before := Append(nil, original)
	c := Copy(original)
	if c == original || c.all[0] != c || c.next.current.Load() != c || c.all[1] != c.next || c.err != errFailure ||
		c.call() != 1 {
		t.Errorf("a copy is %+v", c)
	}
	for name, change := range changes() {
		c := Copy(original)
		change(c)
		if now := Append(nil, original); !bytes.Equal(now, before) {
			t.Fatalf("%s: a change of the copy changes the original", name)
		}
		if bytes.Equal(Append(nil, c), before) {
			t.Errorf("%s: a changed copy has the same bytes", name)
		}
	}
	if !bytes.Equal(Append(nil, ring()), before) || !bytes.Equal(Append(nil, Copy(original)), before) {
		t.Error("equal values have other bytes")
	}
}

// changes returns a change of each field, of a value that was copied.
func changes() map[string]func(*node) {
	return map[string]func(*node){
		"a number":       func(c *node) { c.next.n++ },
		"a bool":         func(c *node) { c.next.big = false },
		"a text":         func(c *node) { c.name = "b" },
		"a time":         func(c *node) { c.next.at = c.next.at.Add(1) },
		"a pointer":      func(c *node) { c.next.next = c },
		"no pointer":     func(c *node) { c.next = nil },
		"one of a slice": func(c *node) { c.all[1] = c },
		"an array":       func(c *node) { c.rows[1][0]++ },
		"a longer slice": func(c *node) { c.rows[0] = append(c.rows[0], 1) },
		"a map":          func(c *node) { c.seen[3]++ },
		"a key":          func(c *node) { delete(c.seen, 3) },
		"an atomic":      func(c *node) { c.next.count.Add(1) },
		"what an atomic pointer points to": func(c *node) {
			c.next.current.Store(c.next)
		},
	}
}

// What cannot be copied or compared is refused.
func TestWhatIsRefused(t *testing.T) {
	defer func() {
		if text := fmt.Sprint(recover()); text != "deep: a value of type chan int" {
			t.Error(text)
		}
	}()
	Copy(&struct{ c chan int }{})
}
