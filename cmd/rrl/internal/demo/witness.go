package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/span"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// witness.go checks a limiter from outside. It does not use results of the library: it reads the
// records in Redis, many times an interval, and passes them to the checker of package window.
//
// What that proves: a record lives for an interval, so a faster reader sees each one, of Go and
// Java. Its score is the caller's clock, read before its call; the poll that found it ended after
// the call was executed. So the grant was made between the two, and grants that the checker counts
// in one window were made in one. The sum of the callers' results is compared with the records: a
// permit without a record would be outside the limit. The callers' own log also goes through the
// checker. It is sharp for pollers, and weak for workers: a blocked caller's grant lies anywhere
// between the beginning of Acquire and its return.
//
// The scores alone are also counted, and the larger figure is shown. They cannot prove a violation:
// the calls of two processes overtake each other on the way to Redis, so the one that read its
// clock a ms earlier is executed later, and takes permits that the other one's ms has freed. Nor
// can they exclude one if the hosts' clocks differ, which is not visible here.

// A witness checks one limiter.
type witness struct {
	rdb             redis.UniversalClient
	config, permits string       // keys
	own             func() int64 // upper bound of the permits of this process's callers

	mu       sync.Mutex
	rate     rratelimiter.Rate
	began    time.Time
	seen     map[string]sighting
	newest   int64 // highest score, at most this host's time
	recent   []moment
	samples  []sample
	sampled  time.Time       // of the last sample
	checker  *window.Checker // grants between score and poll
	scores   *window.Checker // grants at their scores
	recorded int64           // permits in records since the start
	earlier  int64           // the same at the previous poll
	others   int64           // lower bound of the permits of other clients
	last     time.Time       // beginning of the last poll
	read     time.Time       // end of the last poll
	ended    time.Time       // the callers were told to stop; zero before
	missed   time.Time       // records from before it may have expired unseen; zero: none
	live     *liveRecords    // of a limiter with leases (leases.go); nil without
	broken   string          // the first violation before a restart of the checker
	changed  string          // change of the rate by another client
	told     func(Grant)     // of new records, with mu held; may be nil
}

type sighting struct{ at, permits int64 }

// A moment has the permits that were granted at one ms, and how many of them to Java.
type moment struct{ at, permits, java int64 }

// A sample has the permits in records that were live at one time: those of Go, and those of Java.
type sample struct{ inGo, inJava int64 }

const (
	sampledEvery = 100 * time.Millisecond
	samplesKept  = 500
)

// byGo reports whether a record with an id was written by this library: see docs/rrl.md, "by
// writer".
func byGo(id []byte) bool { return len(id) >= 5 && string(id[:2]) == "Go" }

// A look is the result of one poll.
type look struct {
	from, until time.Time
	rate        string // rate, interval and type as stored
	records     []redis.Z
}

// permitsKey returns the key of the records of a limiter, as Redisson names it.
func permitsKey(name string, r rratelimiter.Rate, client string) string {
	key := "{" + name + "}:permits"
	if strings.Contains(name, "{") {
		key = name + ":permits"
	}
	if r.Type == rratelimiter.PerClient {
		key += ":" + client
	}
	return key
}

func stored(r rratelimiter.Rate) string {
	return fmt.Sprintf("%d %d %d", r.Permits, r.Interval.Milliseconds(), r.Type)
}

func newWitness(rdb redis.UniversalClient, name string, r rratelimiter.Rate, client string, own func() int64) *witness {
	return &witness{
		rdb: rdb, config: name, permits: permitsKey(name, r, client), own: own,
		rate:    r,
		seen:    map[string]sighting{},
		checker: window.NewChecker(r.Interval),
		scores:  window.NewChecker(r.Interval),
	}
}

// cadence returns the time between two polls, a small part of the interval.
func cadence(interval time.Duration) time.Duration {
	return min(max(interval/8, time.Millisecond), 10*time.Millisecond)
}

// behind returns how far before the newest record the next poll begins, in ms, since clocks of
// hosts differ.
func (w *witness) behind() int64 { return min(w.rate.Interval, time.Second).Milliseconds() }

// begin reads the records from before the demo: they are shown as in use, but are not part of the
// check. It reads pages, newest first, so that a limiter with very many records does not block
// Redis.
func (w *witness) begin(ctx context.Context) error {
	if w.live != nil {
		return w.beginLive(ctx)
	}
	const page = 5000
	now := time.Now()
	edge := float64(now.Add(-w.rate.Interval).UnixMilli())
	for rank := int64(0); ; rank += page {
		records, err := w.rdb.ZRevRangeWithScores(ctx, w.permits, rank, rank+page-1).Result()
		if err != nil {
			return fmt.Errorf("read the records: %w", err)
		}
		w.mu.Lock()
		for _, z := range records {
			w.see(z, now)
		}
		w.began, w.last = now, time.Now()
		w.read = w.last
		w.recorded = 0
		w.mu.Unlock()
		if len(records) < page || records[len(records)-1].Score <= edge {
			return nil
		}
	}
}

// watch polls until ctx ends. On a busy server it polls less often, so that it is never a large
// part of the load.
func (w *witness) watch(ctx context.Context) error {
	for {
		started := time.Now()
		err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		timer := time.NewTimer(max(cadence(w.rateNow().Interval), 4*time.Since(started)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

func (w *witness) rateNow() rratelimiter.Rate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rate
}

// look reads the rate and the records since the last poll, in one step.
func (w *witness) look(ctx context.Context) error {
	w.mu.Lock()
	from := "-inf"
	if w.live != nil {
		from = strconv.FormatInt(time.Now().Add(-w.rate.Interval).UnixMilli(), 10)
	} else if w.newest > 0 {
		from = strconv.FormatInt(w.newest-w.behind(), 10)
	}
	w.mu.Unlock()
	l := look{from: time.Now()}
	var fields *redis.SliceCmd
	var records *redis.ZSliceCmd
	_, err := w.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		fields = p.HMGet(ctx, w.config, "rate", "interval", "type")
		records = p.ZRangeByScoreWithScores(ctx, w.permits, &redis.ZRangeBy{Min: from, Max: "+inf"})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the records: %w", err)
	}
	var parts []string
	for _, f := range fields.Val() {
		text, _ := f.(string)
		parts = append(parts, text)
	}
	l.until, l.rate, l.records = time.Now(), strings.Join(parts, " "), records.Val()
	w.take(l)
	return nil
}

// take passes the result of a poll to the checker. After another client has set another rate, the
// earlier grants were made under the old rate, so counting starts anew.
func (w *witness) take(l look) {
	own := w.own()
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := l.rate != stored(w.rate)
	if fresh {
		w.restart(l)
	}
	if l.until.Sub(w.last) > w.rate.Interval-w.rate.Interval/4 {
		w.missed = l.until
	}
	w.last, w.read = l.from, l.until
	defer w.sample()
	w.others = max(w.earlier-own, 0)
	if w.live != nil {
		w.takeLive(l)
		w.others = max(min(w.earlier, w.recorded)-own, 0) // what came back meanwhile is nobody's
		w.earlier = w.recorded
		return
	}
	for _, z := range l.records {
		if permits := w.see(z, l.until); permits > 0 && !fresh {
			at := time.UnixMilli(int64(z.Score))
			w.checker.Add(window.Grant{Permits: permits, Start: at, End: l.until})
			w.scores.Add(window.Grant{Permits: permits, Start: at, End: at})
		}
	}
	w.earlier = w.recorded
	w.forget()
}

// see stores a record, and returns how many of its permits are new.
func (w *witness) see(z redis.Z, now time.Time) int64 {
	member, _ := z.Member.(string)
	record, err := rratelimiter.UnpackRecord([]byte(member))
	if err != nil {
		return 0 // it is not counted
	}
	at, id := int64(z.Score), member[:len(member)-4]
	before := w.seen[id].permits
	w.seen[id] = sighting{at, max(before, int64(record.Permits))}
	w.newest = max(w.newest, min(at, now.UnixMilli()))
	permits := int64(record.Permits) - before
	if permits <= 0 {
		return 0
	}
	w.recorded += permits
	if last := len(w.recent) - 1; last < 0 || w.recent[last].at != at {
		w.recent = append(w.recent, moment{at: at})
	}
	m := &w.recent[len(w.recent)-1]
	m.permits += permits
	java := !byGo(record.ID)
	if java {
		m.java += permits
	}
	if w.told != nil {
		w.told(Grant{time.UnixMilli(at), permits, java})
	}
	return permits
}

// sample keeps what was in use at the end of the last poll, if the last sample is old enough. w.mu
// is held.
func (w *witness) sample() {
	if w.read.Sub(w.sampled) < sampledEvery {
		return
	}
	w.sampled = w.read
	var s sample
	for _, m := range w.recent {
		if w.read.UnixMilli()-m.at < w.rate.Interval.Milliseconds() {
			s.inGo += m.permits - m.java
			s.inJava += m.java
		}
	}
	w.samples = append(w.samples, s)
	w.samples = w.samples[max(0, len(w.samples)-samplesKept):]
}

// restart starts anew with the rate of a poll.
func (w *witness) restart(l look) {
	if broken := w.violation(); w.broken == "" && broken != "" {
		w.broken = broken
	}
	w.missed = l.until // setting a rate removes records
	var permits, interval int64
	var kind rratelimiter.RateType
	after := l.until.Sub(w.began).Round(100 * time.Millisecond)
	if _, err := fmt.Sscan(l.rate, &permits, &interval, &kind); err != nil || interval < 1 {
		w.changed = fmt.Sprintf("another client removed the rate after %v", after)
	} else {
		old := w.rate
		w.rate.Permits, w.rate.Interval = permits, time.Duration(interval)*time.Millisecond
		w.rate.Type = kind
		w.changed = fmt.Sprintf("another client changed the rate from %v to %v after %v", old, w.rate, after)
	}
	if w.live != nil {
		w.live = &liveRecords{holdings: map[string]holding{}, forgotten: w.recorded}
		return
	}
	w.checker, w.scores = window.NewChecker(w.rate.Interval), window.NewChecker(w.rate.Interval)
	w.recent, w.seen = nil, map[string]sighting{}
	recorded := w.recorded
	for _, z := range l.records {
		w.see(z, l.until)
	}
	w.recorded = recorded
}

// averaged is the number of intervals over which the throughput is measured.
const averaged = 5

// forget removes what no later poll or view needs.
func (w *witness) forget() {
	if len(w.seen) > 2*1024 {
		for id, s := range w.seen {
			if s.at < w.newest-w.behind() {
				delete(w.seen, id)
			}
		}
	}
	edge := w.last.Add(-(averaged + 1) * w.rate.Interval).UnixMilli()
	if len(w.recent) > 1024 && w.recent[len(w.recent)/2].at < edge {
		kept := w.recent[:0]
		for _, m := range w.recent {
			if m.at >= edge {
				kept = append(kept, m)
			}
		}
		w.recent = kept
	}
}

// A picture is the data of a witness for views.
type picture struct {
	rate     rratelimiter.Rate
	used     int64   // permits in records that were live at the end of the last poll
	columns  []int64 // the same by age, oldest first
	samples  []sample
	average  float64 // permits an interval, over whole intervals
	over     int     // number of these intervals; 0: the first is not over
	partial  bool    // records of these intervals may have expired unseen
	largest  int64   // permits in any window; above the rate only if proved
	recorded int64
	others   int64
	changed  string
}

// picture returns the data up to the last poll.
func (w *witness) picture(columns int) picture {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := picture{
		rate:     w.rate,
		recorded: w.recorded,
		others:   w.others,
		changed:  w.changed,
		columns:  make([]int64, columns),
		samples:  slices.Clone(w.samples),
	}
	p.largest, _ = w.largest()
	// Records that were live at the beginning of the poll may have expired during it, and their
	// permits may be in other records.
	now, interval := w.read.UnixMilli(), w.rate.Interval.Milliseconds()
	// A limiter is often used in bursts, an interval and a little apart. So that a burst falls into
	// each, intervals are counted from the beginning.
	until := w.last
	if !w.ended.IsZero() && w.ended.Before(until) {
		until = w.ended
	}
	whole := int64(until.Sub(w.began) / w.rate.Interval)
	p.over = int(min(whole, averaged))
	end := w.began.UnixMilli() + whole*interval
	start := end - int64(p.over)*interval
	p.partial = w.missed.UnixMilli() > start
	var sum int64
	for _, m := range w.recent {
		if m.at >= start && m.at < end {
			sum += m.permits
		}
		if age := now - m.at; age < interval {
			p.used += m.permits
			if columns > 0 {
				p.columns[columns-1-int(max(age, 0)*int64(columns)/interval)] += m.permits
			}
		}
	}
	if p.over > 0 {
		p.average = float64(sum) / float64(p.over)
	}
	return p
}

// largest returns the largest window: by scores if these are within the rate, else the proved one.
func (w *witness) largest() (permits, scores int64) {
	if w.live != nil {
		return w.live.most, w.live.most
	}
	permits, _ = w.checker.Largest()
	scores, _ = w.scores.Largest()
	return max(permits, min(scores, w.rate.Permits)), scores
}

// violation describes a window with more permits than the rate; "" without one.
func (w *witness) violation() string {
	if w.live != nil {
		return w.liveViolation()
	}
	largest, at := w.checker.Largest()
	if largest <= w.rate.Permits {
		return ""
	}
	return fmt.Sprintf("the window of %s that began at %s holds %d permits by their records, and the rate is %v",
		span.Text(w.rate.Interval), at.Format("15:04:05.000"), largest, w.rate)
}

// A verdict is the result of a witness.
type verdict struct {
	largest  int64 // by records
	scores   int64 // by their scores alone
	log      int64 // by the callers' log: the proved part
	recorded int64 // permits
	others   int64 // of these, permits of other clients
	doubt    int64 // permits that may have been granted to callers that had stopped
	complete bool  // no record can have been missed
	faults   []string
}

func (v verdict) err() error {
	if len(v.faults) == 0 {
		return nil
	}
	return errors.New("the limit was not kept: " + strings.Join(v.faults, "; "))
}

// end ends the time over which the throughput is measured.
func (w *witness) end(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = at
}

// judge compares the callers' log with the records, after all callers have stopped and a last poll
// was made.
func (w *witness) judge(log *window.Checker, least, most int64) verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := verdict{
		recorded: w.recorded,
		others:   max(w.recorded-most, 0),
		doubt:    most - least,
		complete: w.missed.IsZero(),
	}
	v.largest, v.scores = w.largest()
	var at time.Time
	v.log, at = log.Largest()
	for _, fault := range []string{w.broken, w.violation()} {
		if fault != "" {
			v.faults = append(v.faults, fault)
		}
	}
	if w.changed == "" && v.log > w.rate.Permits {
		v.faults = append(
			v.faults,
			fmt.Sprintf("callers got %d permits in the window of %s that began at %s, and the rate is %v",
				v.log, span.Text(w.rate.Interval), at.Format("15:04:05.000"), w.rate),
		)
	}
	if v.complete && least > w.recorded {
		v.faults = append(v.faults, fmt.Sprintf("callers got %d permits, the records hold %d", least, w.recorded))
	}
	return v
}
