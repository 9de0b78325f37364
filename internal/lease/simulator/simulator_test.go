// Package simulator simulates processes that share a limiter and take leases (package lease),
// without a server. Time is simulated and the seed is fixed. Only the time at which a lease is
// renewed differs a little from run to run.
package simulator

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A scenario is one simulation.
type scenario struct {
	rate      int64
	interval  time.Duration
	lease     time.Duration // 0: without leases, as a plain limiter
	processes int
	demand    float64 // times the rate
	bursts    bool    // requests come at five times the pace, a fifth of the time
	java      int     // threads of a client like Redisson, which wait for permits
	intervals int     // how long
}

// A result is what callers got in a simulation, after the first two intervals.
type result struct {
	requests, denied int64
	granted, java    int64 // permits
	calls            int64
	largest          int64 // permits in any window
	used             float64
}

func (r result) deniedPart() float64 { return float64(r.denied) / float64(max(r.requests, 1)) }

// trip is the time of a call to Redis. It is executed in the middle.
const trip = time.Millisecond

// An event happens at a time.
type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// A simulation has the clock, the limiter's records and the log of grants.
type simulation struct {
	scenario
	now     time.Duration
	agenda  events
	order   int
	free    int64
	records []entry // in the order of their times
	log     *window.Checker
	result  result
}

// An entry is a record.
type entry struct {
	at    time.Duration
	owner int
	n     int64
}

var epoch = time.UnixMilli(1_700_000_000_000)

func (s *simulation) time() time.Time { return epoch.Add(s.now) }

func (s *simulation) after(wait time.Duration, do func()) {
	s.order++
	heap.Push(&s.agenda, event{s.now + wait, s.order, do})
}

// simulate runs a scenario.
func simulate(of scenario) result {
	s := &simulation{scenario: of, free: of.rate, log: window.NewChecker(of.interval)}
	random := rand.New(rand.NewPCG(1, uint64(of.processes)))
	// The limiter is in use at the same demand, evenly over the last interval.
	const parts = 1000
	sum := int64(0)
	for i := range int64(parts) {
		n := int64(min(of.demand, 1)*float64(of.rate)*float64(i+1)/parts) - sum
		sum += n
		at := of.interval*time.Duration(i+1)/parts - of.interval
		if n > 0 {
			s.records = append(s.records, entry{at, -1, n})
			s.free -= n
			s.log.Add(window.Grant{Permits: n, Start: epoch.Add(at), End: epoch.Add(at)})
		}
	}
	end := of.interval * time.Duration(of.intervals)
	pace := of.demand * float64(of.rate) / of.interval.Seconds() / float64(of.processes)
	for i := range of.processes {
		p := s.process(i)
		phase := time.Duration(random.Int64N(int64(of.interval)))
		var next func()
		next = func() {
			p.request()
			s.after(s.gap(random, pace, phase), next)
		}
		s.after(s.gap(random, pace, phase), next)
	}
	for i := range of.java {
		s.after(time.Duration(i)*time.Millisecond, func() { s.javaThread(of.processes + 1) })
	}
	for len(s.agenda) > 0 && s.agenda[0].at < end {
		e := heap.Pop(&s.agenda).(event)
		s.now = e.at
		e.do()
	}
	s.result.largest, _ = s.log.Largest()
	s.result.used = float64(s.result.granted+s.result.java) / float64(of.rate) / float64(of.intervals-warm)
	return s.result
}

// warm is how many intervals do not count.
const warm = 2

func (s *simulation) counts() bool { return s.now >= warm*s.interval }

// gap returns the time until the next request of a process.
func (s *simulation) gap(random *rand.Rand, pace float64, phase time.Duration) time.Duration {
	wait := time.Duration(-math.Log(1-random.Float64()) / pace * float64(time.Second))
	if !s.bursts {
		return wait
	}
	// no part of the interval, so that bursts do not fall on the expiry of earlier ones
	period := s.interval * 37 / 100
	burst := period / 5
	in := (s.now + phase) % period
	if in >= burst {
		return period - in + wait/5
	}
	if wait /= 5; in+wait > burst {
		wait += period - burst
	}
	return wait
}

// take takes n permits of count requests, and up to ahead permits more, as acquire.lua does. It
// returns how many requests are granted, how many permits are ahead, how many stay free, and the
// time of the record.
func (s *simulation) take(owner int, count, ahead int64) (granted, more, free int64, at time.Duration) {
	s.expire()
	granted = min(count, s.free)
	at = s.now
	s.free -= granted
	if granted == count {
		tenth := (s.rate + 9) / 10
		if more = min(ahead, s.free/4, s.free-tenth); more*8 < min(ahead, tenth) {
			more = 0
		}
		s.free -= more
	}
	if more > 0 {
		at = s.now + lease.Rest(s.time(), s.lease)
	}
	s.add(entry{at, owner, granted + more})
	return granted, more, s.free, at
}

func (s *simulation) expire() {
	for len(s.records) > 0 && s.records[0].at <= s.now-s.interval {
		s.free += s.records[0].n
		s.records = s.records[1:]
	}
}

// add adds a record, or joins one of the same owner and time, which acquire.lua does not do for
// leases: the sum is the same.
func (s *simulation) add(e entry) {
	if e.n == 0 {
		return
	}
	i := len(s.records)
	for ; i > 0 && s.records[i-1].at >= e.at; i-- {
		if old := &s.records[i-1]; old.at == e.at && old.owner == e.owner {
			old.n += e.n
			return
		}
	}
	s.records = slices.Insert(s.records, i, e)
}

// giveBack gives back n permits of a record. It returns how many came back.
func (s *simulation) giveBack(owner int, n int64, at time.Duration) (returned int64) {
	s.expire()
	for i := range s.records {
		if r := &s.records[i]; r.at == at && r.owner == owner {
			returned = min(n, r.n)
			r.n -= returned
			s.free += returned
		}
	}
	return returned
}

// grant notes that callers got n permits now.
func (s *simulation) grant(n int64) {
	if n == 0 {
		return
	}
	s.log.Add(window.Grant{Permits: n, Start: s.time(), End: s.time()})
	if s.counts() {
		s.result.granted += n
	}
}

// javaThread asks for one permit again and again. If it is refused, it waits until the oldest
// record expires, and then for a tick of its timer.
func (s *simulation) javaThread(owner int) {
	const tick = 100 * time.Millisecond
	s.after(trip/2, func() {
		s.expire()
		if s.free > 0 {
			s.free--
			s.add(entry{s.now, owner, 1})
			s.after(trip/2, func() {
				s.log.Add(window.Grant{Permits: 1, Start: s.time(), End: s.time()})
				if s.counts() {
					s.result.java++
				}
				s.javaThread(owner)
			})
			return
		}
		wait := s.records[0].at + s.interval - s.now
		s.after(wait/tick*tick+tick, func() { s.javaThread(owner) })
	})
}

// A process answers requests as package dispatch does: from its leases, else by a call that
// requests share.
type process struct {
	s        *simulation
	number   int
	ledger   *lease.Ledger // nil: it has no leases
	sweeps   bool
	inFlight bool
	trying   int64
}

func (s *simulation) process(number int) *process {
	p := &process{s: s, number: number}
	if s.lease > 0 {
		p.ledger = lease.NewLedger(s.lease, false, rand.N, new(atomic.Int64))
	}
	return p
}

func (p *process) now() lease.Moment { return lease.Moment{Clock: p.s.time(), Mono: p.s.time()} }

func (p *process) request() {
	if p.s.counts() {
		p.s.result.requests++
	}
	if p.ledger.Holds() {
		if held, _, refill := p.ledger.Take(1, p.now()); held != nil {
			p.s.grant(1)
			p.giveBack()
			if refill {
				p.send()
			}
			return
		}
	}
	p.trying++
	p.send()
}

func (p *process) send() {
	if p.inFlight || p.trying == 0 && !p.ledger.ConfirmRefill() {
		return
	}
	asked := p.trying
	want := p.ledger.TakeAhead(lease.Draft{Callers: int(asked), Asked: asked, May: true}, p.now())
	if asked == 0 && want == 0 {
		return
	}
	p.inFlight, p.trying = true, 0
	if p.s.counts() {
		p.s.result.calls++
	}
	began := p.s.time()
	p.s.after(trip/2, func() {
		granted, ahead, free, at := p.s.take(p.number, asked, want)
		p.s.after(trip/2, func() { p.complete(began, asked, granted, ahead, free, at) })
	})
}

func (p *process) complete(began time.Time, asked, granted, ahead, free int64, at time.Duration) {
	p.inFlight = false
	p.ledger.Saw(p.s.interval)
	if ahead > 0 {
		end := epoch.Add(at)
		p.ledger.Brought(lease.Delivery{Ticket: p.ledger.Ticket(), Lease: &lease.Lease{
			Rate:     p.s.rate,
			Interval: p.s.interval,
			Free:     free,
			At:       end.UnixMicro(),
			Began:    began,
			Lasts:    end.Sub(began),
			Permits:  ahead,
		}}, p.now())
		if !p.sweeps {
			p.sweeps = true
			p.s.after(p.s.lease, p.sweep)
		}
	}
	p.s.grant(granted)
	p.ledger.Granted(granted)
	if p.s.counts() {
		p.s.result.denied += asked - granted
	}
	if granted < asked || asked+ahead == 0 {
		p.ledger.Refused(p.s.time())
	}
	p.giveBack()
	p.send()
}

// sweep ends the leases that are over.
func (p *process) sweep() {
	p.ledger.Sweep(p.now())
	p.giveBack()
	at := p.ledger.SweepAt()
	if p.sweeps = !at.IsZero(); p.sweeps {
		p.s.after(at.Sub(p.s.time()), p.sweep)
	}
}

// giveBack gives back what is unused of leases that have ended.
func (p *process) giveBack() {
	for _, back := range p.ledger.Leftovers() {
		if p.s.counts() {
			p.s.result.calls++
		}
		p.s.after(trip/2, func() {
			if p.ledger.Start(back, false) {
				p.ledger.Done(back, p.s.giveBack(p.number, back.Permits, time.UnixMicro(back.At).Sub(epoch)))
			}
		})
	}
}

// The figures of docs/guide/serve-from-memory.md, as rows of its table: however many processes
// share a limiter, leases of a fiftieth of the interval refuse next to nothing that a limiter
// without leases grants, use nearly all of the rate where all of it is in demand, and keep every
// window within it.
func TestPolicyInSimulation(t *testing.T) {
	crowds := []int{1, 8, 64}
	if testing.Short() {
		crowds = crowds[:2]
	}
	for _, processes := range crowds {
		for _, demand := range []float64{.1, .5, .8, .9, 1, 1.2, 3} {
			for _, bursts := range []bool{false, true} {
				if bursts && demand != .5 && demand != .8 && demand != 1.2 {
					continue
				}
				of := scenario{
					rate:      10_000,
					interval:  10 * time.Second,
					processes: processes,
					demand:    demand,
					bursts:    bursts,
					intervals: 5,
				}
				plain := simulate(of)
				of.lease = of.interval / 50
				leased := simulate(of)
				falsely := leased.deniedPart() - plain.deniedPart()
				calls := float64(leased.calls) / float64(plain.calls)
				how := ""
				if bursts {
					how = ", in bursts"
				}
				t.Logf("| %d | %.0f %%%s | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %.0f %% |", processes, 100*demand,
					how,
					100*plain.deniedPart(), 100*leased.deniedPart(), 100*plain.used, 100*leased.used, 100*calls)
				if leased.largest > of.rate || plain.largest > of.rate {
					t.Errorf("%d permits in a window with leases, %d without", leased.largest, plain.largest)
				}
				switch {
				case demand <= .9 && falsely > .001:
					t.Errorf("%.3f %% are denied, and %.3f %% without leases",
						100*leased.deniedPart(), 100*plain.deniedPart())
				case demand > 1 && !bursts && leased.used < .97:
					t.Errorf("%.1f %% of the rate are used", 100*leased.used)
				case leased.used < plain.used-.03:
					t.Errorf("%.1f %% of the rate are used, and %.1f %% without leases",
						100*leased.used, 100*plain.used)
				}
				if calls > 1.1 || processes == 1 && demand < .9 && calls > .15 {
					t.Errorf("leases make %.0f %% of the calls", 100*calls)
				}
			}
		}
	}
}

// Threads of Redisson that wait for permits get no less beside leases than beside processes
// without.
func TestRedissonBesideLeasesInSimulation(t *testing.T) {
	for _, demand := range []float64{.8, 1.2, 3} {
		of := scenario{rate: 10_000, interval: 10 * time.Second, processes: 2, demand: demand, java: 50, intervals: 5}
		plain := simulate(of)
		of.lease = of.interval / 50
		leased := simulate(of)
		part := func(r result) float64 { return 100 * float64(r.java) / float64(r.java+r.granted) }
		t.Logf("demand %3.0f %%: Redisson gets %.1f %% (plain %.1f %%), %.1f %% of the rate are used (plain %.1f %%)",
			100*demand, part(leased), part(plain), 100*leased.used, 100*plain.used)
		if leased.java < plain.java || leased.used < .97 || leased.largest > of.rate {
			t.Errorf("%+v, and without leases %+v", leased, plain)
		}
	}
}
