package lease

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// The comment on Ledger names the methods that a nil one does not have.
func TestNilLedger(t *testing.T) {
	var panics []string
	ledger := reflect.ValueOf((*Ledger)(nil))
	for i := range ledger.NumMethod() {
		name, method := ledger.Type().Method(i).Name, ledger.Method(i)
		var args []reflect.Value
		for at := range method.Type().NumIn() {
			args = append(args, reflect.Zero(method.Type().In(at)))
		}
		func() {
			defer func() {
				if recover() != nil {
					panics = append(panics, name)
				}
			}()
			method.Call(args)
		}()
	}
	if want := []string{
		"Brought", "Change", "Done", "Grant", "Returning", "Start", "Sweep", "Take", "Void",
	}; !slices.Equal(
		panics, want,
	) {
		t.Errorf("%v panic, expected %v", panics, want)
	}
}

// A book is a Ledger with a clock that the test moves, for leases of a second of a limiter of 1,000
// permits in 10 s.
type book struct {
	*Ledger
	t       *testing.T
	holding atomic.Int64
	now     Moment
}

func newBook(t *testing.T) *book {
	start := time.Now()
	b := &book{t: t, now: Moment{start.Truncate(time.Microsecond), start}} // records are dated in µs
	b.Ledger = NewLedger(time.Second, false, rand.N, &b.holding)
	b.Saw(10 * time.Second)
	return b
}

func (b *book) pass(d time.Duration) { b.now = b.now.add(d) }

// brought stores a lease of n permits that ends after some time.
func (b *book) brought(ticket Ticket, n int64, ends time.Duration) {
	b.Brought(b.delivery(ticket, n, ends), b.now)
}

func (b *book) delivery(ticket Ticket, n int64, ends time.Duration) Delivery {
	return Delivery{Ticket: ticket, Lease: &Lease{
		Rate: 1000, Interval: 10 * time.Second, At: b.now.Clock.Add(ends).UnixMicro(), Began: b.now.Mono, Lasts: ends,
		Permits: n,
	}}
}

func (b *book) held(what string, want int64) {
	b.t.Helper()
	if got := b.Held(b.now); got != want {
		b.t.Errorf("%s: %d permits are held, expected %d", what, got, want)
	}
}

// back checks how many permits wait to be given back, and forgets them.
func (b *book) back(what string, want ...int64) {
	b.t.Helper()
	got := b.Leftovers()
	if len(got) != len(want) {
		b.t.Fatalf("%s: %d leases are given back, expected %d", what, len(got), len(want))
	}
	for i, back := range got {
		if back.Permits != want[i] {
			b.t.Errorf("%s: %d permits are given back, expected %d", what, back.Permits, want[i])
		}
	}
}

func TestThereIsNoLeaseWhileACallerWaits(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.Take(30, b.now)
	b.End()
	b.held("a caller waits", 0)
	b.back("a caller waits", 70)
	if n := b.TakeAhead(Draft{Callers: 5, Asked: 5}, b.now); n != 0 {
		t.Errorf("a batch takes %d permits ahead while a caller waits", n)
	}
	late := b.delivery(b.Ticket(), 100, time.Second)
	late.Unwanted = true
	b.Brought(late, b.now)
	b.held("a late lease", 0)
	b.back("a late lease", 100)
	if n := b.TakeAhead(Draft{Callers: 5, Asked: 5, May: true}, b.now); n == 0 {
		t.Error("a batch takes no permits ahead, though nobody waits")
	}
	b.brought(b.Ticket(), 100, time.Second)
	b.held("a lease, once nobody waits", 100)
}

// The permits of a lease whose reply came after its end are given back at once, not when the next
// request finds it.
func TestALeaseThatComesTooLateIsNotHeld(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, 0)
	if b.Holds() {
		t.Error("the ledger has a lease that was over when it came")
	}
	b.back("a lease that is over", 100)
}

// Offers tells what Take would give, without the permits of a lease that is over.
func TestOffers(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.pass(900 * time.Millisecond)
	b.brought(b.Ticket(), 50, time.Second)
	offers := func(n, want int64) {
		t.Helper()
		if from, left := b.Offers(n, b.now); (from != nil) != (want >= 0) || from != nil && left != want {
			t.Errorf("for %d permits it offers %v with %d left, expected %d", n, from, left, want)
		}
	}
	offers(100, 0)
	offers(101, -1)
	b.pass(100 * time.Millisecond) // the first lease is over, and nobody has noticed it
	offers(50, 0)
	offers(51, -1)
	b.pass(time.Second)
	offers(1, -1)
}

func TestTheNextLeaseFollows(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.pass(900 * time.Millisecond)
	b.brought(b.Ticket(), 50, time.Second)
	b.held("two leases", 150)
	if from, left, _ := b.Take(60, b.now); from == nil || left != 40 {
		t.Errorf("a request gets permits of %v, which has %d left", from, left)
	}
	if from, _, _ := b.Take(60, b.now); from != nil {
		t.Error("a request gets permits that no lease has")
	}
	b.held("a request for too many", 90)
	if from, left, _ := b.Take(45, b.now); from == nil || left != 5 {
		t.Errorf("a request for what only the next lease has gets permits of %v, which has %d left", from, left)
	}
	b.back("the first lease", 40)
}

func TestALeaseOfALimiterThatWasChangedIsNotUsed(t *testing.T) {
	b := newBook(t)
	before := b.Ticket()
	b.brought(before, 100, time.Second)
	unused := b.Change()
	if len(unused) != 1 || unused[0].Permits != 100 || !b.Returning() {
		t.Fatalf("a change gives back %v", unused)
	}
	b.brought(before, 50, time.Second)
	b.held("a lease from before the change", 0)
	b.back("a lease from before the change")
	if !b.Returning() {
		t.Error("the change does not wait")
	}
	if b.Done(unused[0], 90); !b.Idle() || b.Returning() {
		t.Error("the ledger is not idle")
	}
	if returned, void := b.Tell(); returned != 90 || void != 60 {
		t.Errorf("%d permits came back, and %d did not, expected 90 and 60", returned, void)
	}
	b.brought(b.Ticket(), 70, time.Second)
	b.held("a lease from after the change", 70)
}

// A change ends the lease that follows the current one, too.
func TestAChangeEndsTheNextLease(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.pass(900 * time.Millisecond)
	b.brought(b.Ticket(), 50, time.Second)
	if unused := b.Change(); len(unused) != 2 || unused[0].Permits != 100 || unused[1].Permits != 50 {
		t.Errorf("a change gives back %v, expected 100 and 50 permits", unused)
	}
	b.held("leases after a change", 0)
}

func TestAChangeForgetsWhatWaitsToBeGivenBack(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	b.End()
	waiting := b.Leftovers()[0]
	if unused := b.Change(); len(unused) != 0 || b.Returning() {
		t.Errorf("a change gives back %v", unused)
	}
	if b.Start(waiting, false) {
		t.Error("permits are given back that the change has forgotten")
	}
	if _, void := b.Tell(); void != 100 {
		t.Errorf("%d permits did not come back, expected 100", void)
	}
}

func TestSweepEndsWhatIsOver(t *testing.T) {
	b := newBook(t)
	b.brought(b.Ticket(), 100, time.Second)
	for _, step := range []struct {
		pass, wait time.Duration // wait: until the next sweep
		back       []int64
	}{
		{wait: time.Second},
		{pass: 400 * time.Millisecond, wait: 600 * time.Millisecond},
		{pass: 600 * time.Millisecond, wait: time.Second, back: []int64{100}}, // its ledger is kept
		{pass: time.Second},
	} {
		b.pass(step.pass)
		b.Sweep(b.now)
		if at := b.SweepAt(); step.wait > 0 && at.Sub(b.now.Mono) != step.wait || at.IsZero() != (step.wait == 0) {
			t.Errorf("the next sweep is due at %v, expected after %v", at, step.wait)
		}
		b.back("a sweep", step.back...)
	}
	if b.Holds() || b.holding.Load() != 0 {
		t.Error("there is a lease after its end")
	}
}

func TestLimitersWithLeasesAreFew(t *testing.T) {
	b := newBook(t)
	b.holding.Store(MaxLeases)
	if n := b.TakeAhead(Draft{Callers: 5, Asked: 5, May: true}, b.now); n != 0 {
		t.Errorf("a batch takes %d permits ahead", n)
	}
}

func TestALimiterWithoutLeases(t *testing.T) {
	var none *Ledger
	none.End()
	none.Granted(1)
	none.Refused(time.Now())
	none.Saw(time.Second)
	if none.Holds() || none.ConfirmRefill() || none.JointCall(1, false, time.Now()) ||
		none.TakeAhead(Draft{Callers: 1, Asked: 1, May: true}, Moment{}) != 0 {
		t.Error("it has leases")
	}
	if returned, void := none.Tell(); !none.Idle() || none.Held(Moment{}) != 0 || none.Ticket() != 0 ||
		returned+void != 0 {
		t.Error("it has leases")
	}
}
