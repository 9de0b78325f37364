package differential

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// differential_test.go makes the same calls through Redisson's scripts and this library, and
// compares.

// epoch is the start of the tests' clock, in ms since 1970.
const epoch = int64(1_700_000_000_000)

// A world is a server with one limiter for Java and one for Go, and the clock of both.
type world struct {
	wire
	rdb      *redis.Client
	javaName string
	goName   string
	now      int64
	ids      uint64
	hits     []atomic.Int64
	calls    *calls
}

// calls is a hook that knows what this library's calls did since the two values were last cleared.
type calls struct {
	checked atomic.Bool // a script was to add up the records of a limiter: flag s
	// no reply came, as where a busy machine answers after the time limit of an inline call
	lost atomic.Bool
}

func (*calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.look(cmd)
		err := next(ctx, cmd)
		c.judge(err)
		return err
	}
}

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.look(cmd)
		}
		err := next(ctx, cmds)
		c.judge(err)
		return err
	}
}

func (c *calls) judge(err error) {
	var reply redis.Error
	if err != nil && !errors.As(err, &reply) {
		c.lost.Store(true)
	}
}

// look finds flags by their form: they are the only script arguments that are strings with letters.
func (c *calls) look(cmd redis.Cmder) {
	const arguments = 8 // command, script, number of keys, keys
	if args := cmd.Args(); len(args) > arguments && strings.HasPrefix(cmd.Name(), "eval") {
		for _, arg := range args[arguments:] {
			if text, isText := arg.(string); isText && strings.Contains(text, "s") {
				c.checked.Store(true)
			}
		}
	}
}

func newWorld(t *testing.T, w wire, server *redistest.Server, name string) *world {
	t.Helper()
	rdb := server.Client()
	w.load(t, rdb)
	for _, text := range []string{readText, copyText} {
		if err := rdb.ScriptLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var seen calls
	rdb.AddHook(&seen)
	return &world{
		wire: w, rdb: rdb, javaName: "java:" + name, goName: "go:" + name, hits: make([]atomic.Int64, len(rules)),
		calls: &seen,
	}
}

// begin sets the clock to epoch and writes the state of Go's limiter.
func (w *world) begin(ctx context.Context, s state) (state, error) {
	w.now, w.ids = epoch, 0
	return w.put(ctx, s)
}

// put replaces the state of Go's limiter.
func (w *world) put(ctx context.Context, s state) (state, error) {
	p := w.rdb.Pipeline()
	s.write(ctx, p, w.goName)
	read := readInto(ctx, p, w.goName)
	if _, err := p.Exec(ctx); err != nil {
		return state{}, err
	}
	return parseState(read)
}

// copy copies the state of Go's limiter to Redisson's limiter.
func (w *world) copy(ctx context.Context) error {
	p := w.rdb.Pipeline()
	copyOver(ctx, p, w.goName, w.javaName)
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) { // the script replies nil
		return err
	}
	return nil
}

// askJava makes the call on Redisson's limiter. If a rule changed the state, it writes c.start
// first.
func (w *world) askJava(ctx context.Context, c *comparison, changed bool) (outcome, error) {
	w.ids++
	p := w.rdb.Pipeline()
	if changed {
		c.start.write(ctx, p, w.javaName)
	}
	reply := w.send(ctx, p, c.version, c.asked, w.javaName, c.now, w.ids)
	read := readInto(ctx, p, w.javaName)
	p.Exec(ctx) // errors of Redisson's scripts are part of the outcome
	s, err := parseState(read)
	return outcome{understand(c.asked, reply), s}, err
}

// A caller is one of the ways to call this library. The outcome must not depend on it.
type caller struct {
	limiter *rratelimiter.Limiter
	client  *rratelimiter.Client
	way     int
}

// The ways to ask for permits.
const (
	byAllow = iota
	byTryAcquire
	byAllowAll
)

// askGo makes the call on this library's limiter. A call whose reply was lost is made again in the
// same state: this library repeated it, and a script that runs twice removes twice as many expired
// records.
func (w *world) askGo(ctx context.Context, c *comparison, by caller) (outcome, error) {
	a, result := w.answer(ctx, c, by)
	for w.calls.lost.Load() {
		if _, err := w.put(ctx, c.before); err != nil {
			return outcome{}, err
		}
		a, result = w.answer(ctx, c, by)
	}
	c.checked = w.calls.checked.Load()
	read := w.rdb.EvalSha(ctx, readSHA, keysOf(w.goName, clientID))
	s, err := parseState(read)
	if a.failure == "" && result != nil {
		wanted := resultOf(&s, a, c.now, *result)
		if s.endsIn(result.ResetAfter) {
			wanted.ResetAfter = result.ResetAfter
		}
		if s.endsIn(result.NextAfter) {
			wanted.NextAfter = result.NextAfter
		}
		if *result != wanted {
			a.failure = fmt.Sprintf("the result is %+v, by the state %+v", *result, wanted)
		}
		if !a.granted && s.endsIn(result.RetryAfter) {
			a.wait = unknown
		}
	}
	return outcome{a, s}, err
}

func (w *world) answer(ctx context.Context, c *comparison, by caller) (answer, *rratelimiter.Result) {
	w.calls.checked.Store(false)
	w.calls.lost.Store(false)
	return by.answer(ctx, c)
}

// endsIn reports whether the limiter's TTL is about d. RetryAfter, NextAfter and ResetAfter never
// exceed that TTL.
func (s *state) endsIn(d time.Duration) bool {
	return s.end > 0 && (time.Until(time.UnixMilli(s.end))-d).Abs() < 5*time.Second
}

// resultOf returns the Result that a call must have, given the state after it. After a grant
// ResetAfter may be either the interval, or the time until the last record expires, which a client
// whose clock is ahead may have written. NextAfter is the time until the first record expires;
// after a grant that leaves more than half of the rate it may be ResetAfter.
func resultOf(s *state, a answer, now int64, told rratelimiter.Result) rratelimiter.Result {
	free, _ := s.pair().number()
	interval := s.number("interval")
	r := rratelimiter.Result{Allowed: a.granted, Limit: s.number("rate"), Remaining: max(0, free)}
	if records := s.pair().records; len(records) > 0 {
		r.ResetAfter = lasting(max(1, records[len(records)-1].at+interval-now))
	}
	if !a.granted {
		r.RetryAfter = lasting(a.wait)
	} else if simple := lasting(interval); told.ResetAfter == simple {
		r.ResetAfter = simple
	}
	if records := s.pair().records; len(records) > 0 {
		r.NextAfter = min(max(lasting(records[0].at+interval-now), time.Microsecond), r.ResetAfter)
	}
	if a.granted && 2*r.Remaining > r.Limit && told.NextAfter == r.ResetAfter {
		r.NextAfter = r.ResetAfter
	}
	return r
}

// lasting returns so many ms as a Result has them: the longest time.Duration in whole µs, if it
// does not hold them.
func lasting(ms int64) time.Duration {
	if ms >= longest {
		return protocol.Micros(math.MaxInt64)
	}
	return time.Duration(ms) * time.Millisecond
}

// longest is the longest time.Duration in ms.
const longest = int64(math.MaxInt64 / time.Millisecond)

// answer makes the call. It also returns the Result where the method has one.
func (by caller) answer(ctx context.Context, c *comparison) (answer, *rratelimiter.Result) {
	l := by.limiter
	var opts []rratelimiter.SetOption
	if c.call.keep {
		opts = append(opts, rratelimiter.KeepState())
	}
	var a answer
	var result *rratelimiter.Result
	var err error
	switch c.call.kind {
	case trySetRate:
		a.granted, err = l.TrySetRate(ctx, c.call.rate.goRate())
	case setRate, setRateArgs:
		err = l.SetRate(ctx, c.call.rate.goRate(), opts...)
		a.granted = err == nil
	case updateRate:
		a.granted, err = l.UpdateRate(ctx, c.call.rate.goRate(), opts...)
	case available:
		a.amount, err = l.AvailablePermits(ctx)
	case release:
		a.amount, err = l.Release(ctx, c.call.n)
		a.granted = err == nil
	case look:
		var state rratelimiter.State
		state, err = l.State(ctx)
		a.amount = state.Available
	case acquireUpTo:
		a.amount, err = l.AcquireUpTo(ctx, c.call.n)
		a.wait = unknown
	case tryAcquire:
		switch by.way {
		case byTryAcquire:
			a.granted, err = l.TryAcquire(ctx, c.call.n)
			a.wait = unknown
		case byAllowAll:
			var all []rratelimiter.Result
			if all, err = by.client.AllowAll(ctx, c.call.n, l); err == nil {
				result = &all[0]
			}
		default:
			var r rratelimiter.Result
			r, err = l.Allow(ctx, c.call.n)
			result = &r
		}
		if result != nil {
			a.granted, a.wait = result.Allowed, result.RetryAfter.Milliseconds()
		}
	}
	switch {
	case err == nil:
		return a, result
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return answer{failure: uninitialized}, nil
	case errors.Is(err, rratelimiter.ErrExceedsRate):
		return answer{failure: exceeds}, nil
	}
	return answer{failure: err.Error()}, nil
}

// unknown is the wait of an answer that does not contain it.
const unknown = -1

// compare makes the call on both sides. It returns the state after it, and the differences that no
// rule allows.
func (w *world) compare(ctx context.Context, c *comparison, by caller) (after state, differences []string, err error) {
	c.now, c.start, c.asked = w.now, c.before.clone(), c.call
	began := time.Now()
	if err := w.copy(ctx); err != nil {
		return state{}, nil, err
	}
	got, err := w.askGo(ctx, c, by)
	if err != nil {
		return state{}, nil, err
	}
	_, _, living := c.start.pair().sums(c.edge())
	c.living = len(living)
	changed := false
	for i, r := range rules {
		if r.repairs != nil && r.repairs(c) {
			w.hits[i].Add(1)
			changed = true
		}
	}
	if c.wanted, err = w.askJava(ctx, c, changed); err != nil {
		return state{}, nil, err
	}
	c.took, c.ended = time.Since(began), time.Now().UnixMilli()
	javas := c.wanted
	javas.state = javas.state.clone()
	for i, r := range rules {
		if r.expects != nil && r.expects(c) {
			w.hits[i].Add(1)
		}
	}
	if got.wait == unknown {
		c.wanted.wait = unknown
	}
	if c.wanted.granted {
		c.wanted.wait = got.wait
	}
	if c.wanted.failure != got.failure || c.wanted.answer != got.answer && got.failure == "" {
		differences = append(differences, fmt.Sprintf("answer: %v, %v", c.wanted.answer, got.answer))
	}
	// The two sides set their TTLs at different moments of the comparison.
	differences = append(differences, c.wanted.differences(&got.state, c.took+10*time.Millisecond)...)
	if len(differences) > 0 {
		differences = append(
			differences,
			fmt.Sprintf("before:  %v\nrepaired: %v\nJava:    %v; %v\nwanted:  %v; %v\nGo:      %v; %v",
				c.before, c.start, javas.answer, javas.state, c.wanted.answer, c.wanted.state, got.answer, got.state),
		)
	}
	return got.state, differences, nil
}

// javaAlone makes a Redisson call on Go's limiter, so that later calls of Go find what Redisson
// leaves.
func (w *world) javaAlone(ctx context.Context, version string, c call) (state, error) {
	w.ids++
	p := w.rdb.Pipeline()
	w.send(ctx, p, version, c, w.goName, w.now, w.ids)
	read := readInto(ctx, p, w.goName)
	p.Exec(ctx)
	return parseState(read)
}

// memberOf packs the member of a record.
func memberOf(f rratelimiter.RecordFormat, id uint64, permits int64) string {
	length := map[rratelimiter.RecordFormat]int{
		rratelimiter.Redisson313: 4,
		rratelimiter.Redisson316: 8,
		rratelimiter.Redisson317: 8,
		rratelimiter.Redisson321: 16,
	}[f]
	text := fmt.Sprintf("%016x", id)
	member, err := rratelimiter.PackRecord(f, []byte(text[len(text)-length:]), uint32(permits))
	if err != nil {
		panic(err)
	}
	return string(member)
}

// chance returns true once in n times on average.
func chance(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

var (
	rateGen = rapid.OneOf(
		rapid.Int64Range(0, 12), rapid.Int64Range(1, 12), rapid.Int64Range(1, 300), rapid.Just(int64(1_000_000)),
		rapid.Just(int64(4_294_967_295)),
	)
	spanGen = rapid.OneOf(rapid.Int64Range(1, 50), rapid.SampledFrom([]int64{1000, 60_000, 3_600_000}))
)

// drawConfig draws a rate, with a keep-alive only if wanted. TTLs run in real time, so they are
// minutes.
func drawConfig(t *rapid.T, keepAlive bool) config {
	c := config{rateGen.Draw(t, "rate"), spanGen.Draw(t, "interval"), int64(rapid.IntRange(0, 1).Draw(t, "type")), 0}
	if keepAlive && chance(t, 3, "keep-alive") {
		c.keepAlive = c.interval + rapid.SampledFrom([]int64{600_000, 7_200_000}).Draw(t, "keep-alive, ms")
	}
	return c
}

// drawEnd draws when a key expires. Most keys have no TTL.
func drawEnd(t *rapid.T, minutes int, label string) int64 {
	if !chance(t, 5, label) {
		return 0
	}
	return time.Now().
		Add(time.Duration(minutes+rapid.IntRange(0, 100).Draw(t, label+", minutes")) * time.Minute).
		UnixMilli()
}

// drawState draws a state, including ones that neither side would leave.
func drawState(t *rapid.T) state {
	c := drawConfig(t, true)
	s := state{fields: map[string]string{
		"rate": fmt.Sprint(c.rate), "interval": fmt.Sprint(c.interval), "type": fmt.Sprint(c.kind),
	}}
	if c.keepAlive > 0 || chance(t, 4, "a keep-alive of 0") {
		s.fields["keepAliveTime"] = fmt.Sprint(c.keepAlive)
	}
	if chance(t, 20, "an interval that no time.Duration holds") {
		s.fields["interval"] = rapid.SampledFrom([]string{"1000000000000000", "9223372036854775807"}).Draw(t,
			"interval, ms")
	}
	if chance(t, 20, "a negative rate") {
		s.fields["rate"] = "-3"
	}
	switch rapid.IntRange(0, 12).Draw(t, "part of the configuration") {
	case 10:
		s.fields = map[string]string{}
	case 11:
		for _, field := range []string{"rate", "interval", "type"} {
			if chance(t, 2, "no "+field) {
				delete(s.fields, field)
			}
		}
	}
	if len(s.fields) > 0 {
		s.end = drawEnd(t, 30, "TTL")
	}
	for kind := range s.pairs {
		s.pairs[kind] = drawPair(t, c)
	}
	return s
}

// drawPair draws free permits and records, most of them consistent.
func drawPair(t *rapid.T, c config) pair {
	var p pair
	var all int64
	count := rapid.IntRange(0, 8).Draw(t, "records")
	format := rratelimiter.Redisson317
	if chance(t, 20, "other formats") {
		format = rapid.SampledFrom([]rratelimiter.RecordFormat{rratelimiter.Redisson313, rratelimiter.Redisson316}).
			Draw(t, "format")
	}
	for i := range count {
		r := record{
			at:      epoch + 3 - rapid.Int64Range(0, c.interval*3/2+3).Draw(t, "age"),
			permits: rapid.Int64Range(1, max(1, c.rate/3)).Draw(t, "permits"),
		}
		r.member = memberOf(format, 0xe000_0000+uint64(i), r.permits)
		all += r.permits
		p.records = append(p.records, r)
	}
	if count > 0 {
		p.recordsEnd = drawEnd(t, 200, "TTL of records")
	}
	p.set(c.rate - all)
	switch rapid.IntRange(0, 12).Draw(t, "value") {
	case 7:
		p.value = ""
	case 8:
		p.set(max(0, c.rate-all-rapid.Int64Range(1, 3).Draw(t, "too few")))
	case 9:
		p.set(c.rate - all + rapid.Int64Range(1, 5).Draw(t, "too many"))
	case 10:
		p.set(rapid.Int64Range(-5, c.rate+5).Draw(t, "any value"))
	case 11:
		p.value = rapid.SampledFrom([]string{"nan", "1.5", "-", "007", " 3", "0x10", "1e3"}).Draw(t, "no number")
	case 12:
		p = pair{}
	}
	if p.value != "" {
		p.valueEnd = drawEnd(t, 400, "TTL of value")
	}
	return p
}

// disturb changes a state as an eviction, another program or a manual change might.
func disturb(t *rapid.T, s *state, now int64) {
	p := s.pair()
	value, _ := p.number()
	switch rapid.IntRange(0, 8).Draw(t, "disturbance") {
	case 0:
		p.value, p.valueEnd = "", 0
	case 1:
		p.records, p.recordsEnd = nil, 0
	case 2:
		p.set(value - rapid.Int64Range(1, 5).Draw(t, "less"))
	case 3:
		p.set(value + rapid.Int64Range(1, 5).Draw(t, "more"))
	case 4:
		p.value = "no number"
	case 5:
		if s.initialized() {
			s.fields["rate"] = fmt.Sprint(rateGen.Draw(t, "another rate"))
		}
	case 6:
		if len(s.fields) > 0 {
			s.end = drawEnd(t, 30, "another TTL")
		}
	case 7:
		delete(s.fields, rapid.SampledFrom([]string{"rate", "type"}).Draw(t, "missing field"))
		if len(s.fields) == 0 {
			s.end = 0
		}
	case 8:
		if s.initialized() {
			crowd(t, s, now)
		}
	}
}

// flood gives a limiter at least batch expired records, and a few live ones. It draws a call that
// meets them and that asks for no more than the rate, because a request above the rate removes the
// first batch only. Few expired records remain, so later calls, after a possible foreign change of
// the state, meet no flood.
func flood(t *rapid.T, version string, s *state, now int64) call {
	p := s.pair()
	*p = pair{}
	expired := rapid.SampledFrom([]int{batch, batch + 1, batch + 500}).Draw(t, "expired")
	live := rapid.IntRange(0, 3).Draw(t, "live")
	interval := s.number("interval")
	if interval > 3_600_000 { // Redisson counts no record from before 1970
		interval = 1000
		s.fields["interval"] = "1000"
	}
	for i := range expired + live {
		at := now - interval - int64(i%7)
		if i >= expired {
			at = now
		}
		p.records = append(p.records, record{at, 1, memberOf(rratelimiter.Redisson317, 0xf000_0000+uint64(i), 1)})
	}
	free := rapid.IntRange(0, 3).Draw(t, "free")
	rate := int64(expired + live + free)
	s.fields["rate"] = fmt.Sprint(rate)
	p.set(int64(free))
	if chance(t, 4, "a bad value") {
		p.value = rapid.SampledFrom([]string{"", "1.5"}).Draw(t, "value")
	}
	// No Filter: if it finds no value, rapid abandons the step, but the state has already changed
	// here and not in Redis.
	kinds := []kind{tryAcquire, tryAcquire, tryAcquire, available, acquireUpTo, release}
	kinds = slices.DeleteFunc(kinds, func(k kind) bool { return !has(version, k) })
	c := call{kind: rapid.SampledFrom(kinds).Draw(t, "call")}
	if c.kind != available {
		c.n = rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, rate), rapid.Int64Range(batch-1, batch),
			rapid.Int64Range(rate-4, rate)).
			Draw(t, "permits")
	}
	return c
}

// crowd gives a limiter too few free permits, and about as many live records as a refusal adds up
// (checked) or walks (walked) at most.
func crowd(t *rapid.T, s *state, now int64) {
	p := s.pair()
	p.records = nil
	count := rapid.SampledFrom([]int{checked, checked - 1, checked + 1, walked, walked - 1, walked + 1}).Draw(t,
		"records")
	interval := min(s.number("interval"), 3_600_000)
	for i := range count {
		member := memberOf(rratelimiter.Redisson317, 0xf000_0000+uint64(i), 1)
		p.records = append(p.records, record{now - interval + 1 + int64(i)*interval/1000, 1, member})
	}
	s.fields["rate"] = fmt.Sprint(count + 4)
	p.set(rapid.Int64Range(-2, 4).Draw(t, "free"))
}

// drawCall draws a Redisson version and a call. Common calls are more likely.
func drawCall(t *rapid.T, of []string, s *state) (string, call) {
	kinds := []kind{
		tryAcquire, tryAcquire, tryAcquire, tryAcquire, tryAcquire, tryAcquire, tryAcquire, tryAcquire,
		available, available, acquireUpTo, look, release, release, setRate, setRateArgs, updateRate, trySetRate,
	}
	version := rapid.SampledFrom(of).Draw(t, "version")
	c := call{kind: rapid.SampledFrom(kinds).Filter(func(k kind) bool { return has(version, k) }).Draw(t, "call")}
	switch c.kind {
	case tryAcquire, release, acquireUpTo:
		rate := max(1, s.number("rate"))
		free, _ := s.pair().number()
		c.n = max(
			1,
			rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, rate+1), rapid.Int64Range(free-1, free+1),
				rapid.Int64Range(rate-4, rate)).
				Draw(t, "permits"),
		)
	case available, look:
	default:
		c.rate = drawConfig(t, knowsKeepAlive(version))
		c.keep = (c.kind == setRateArgs || c.kind == updateRate) && rapid.Bool().Draw(t, "keep the state")
		if c.kind == setRateArgs {
			c.keep = true // without it this would be setRate
		}
		if rapid.Bool().Draw(t, "the same type") {
			c.rate.kind = int64(s.kind())
		}
	}
	return version, c
}

// drawTime draws the time until the next call in ms: often until a record expires, give or take 1
// ms, and sometimes negative.
func drawTime(t *rapid.T, s *state, now int64) int64 {
	interval := min(max(1, s.number("interval")), 3_600_000)
	switch rapid.IntRange(0, 9).Draw(t, "time") {
	case 0, 1, 2:
		return 0
	case 3, 4, 5, 6:
		records := s.pair().records
		if len(records) == 0 {
			return 1
		}
		r := rapid.SampledFrom(records).Draw(t, "until one expires")
		return min(max(0, r.at+interval-now+int64(rapid.IntRange(-1, 1).Draw(t, "give or take"))), interval)
	case 7:
		return rapid.Int64Range(0, 2*interval).Draw(t, "ms later")
	case 8:
		return -rapid.Int64Range(1, interval).Draw(t, "ms earlier")
	}
	return interval
}

func TestDifferential(t *testing.T) {
	learnt := learn(t)
	groups := [][]string{{"3.17.5"}, {"3.35.0"}, {"4.7.0"}, versions}
	// sequences have random lengths, and steps of Java alone are not counted
	checks := *steps/len(groups)/perCheck*13/10 + 20
	setChecks(t, checks)
	server := redistest.Real(t)
	var compared, alone atomic.Int64
	hits := make([]atomic.Int64, len(rules))
	began := time.Now()
	t.Run("versions", func(t *testing.T) {
		for _, of := range groups {
			name := fmt.Sprint(of)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, learnt, server, name)
				w.hits = hits
				callers := newCallers(w)
				rapid.Check(t, func(t *rapid.T) { w.sequence(t, of, callers, &compared, &alone) })
			})
		}
	})
	t.Logf(
		"%d steps compared, %d by Java alone, in %v", compared.Load(), alone.Load(),
		time.Since(began).Round(time.Second),
	)
	for i, r := range rules {
		t.Logf("%8d times: %s", hits[i].Load(), r.name)
		if hits[i].Load() == 0 && *steps >= 50_000 && !t.Failed() {
			t.Errorf("no step met the rule %q", r.name)
		}
	}
	if n := compared.Load(); n < int64(*steps) && !t.Failed() {
		t.Errorf("%d steps were compared, not %d", n, *steps)
	}
}

// TestTooManyRecordsToAddUp: expired ones do not lift a negative value above the rate, and the
// record of a negative request stays. A request that waits for permits in neither value nor records
// waits until all records have expired, though a client whose clock is ahead wrote them.
func TestTooManyRecordsToAddUp(t *testing.T) {
	w := newWorld(t, learn(t), redistest.Shared(t), "many")
	by := newCallers(w)[0]
	for name, test := range map[string]struct {
		sketch
		permits int64
	}{
		"expired": {sketch{
			fields: "rate=2 interval=1000 type=0",
			shared: "-1" + strings.Repeat(" 1@-1000", 10) + strings.Repeat(" 1@-1", checked+1),
		}, 1},
		"a negative request": {sketch{
			fields: "rate=256 interval=1000 type=0", shared: "-1 4294967295@-2" + strings.Repeat(" 1@-1", checked),
		}, 1},
		"one, when checked": {sketch{
			fields: "rate=2 interval=1000 type=0", shared: "-5 4294967289@-2" + strings.Repeat(" 1@-1", checked),
		}, 1},
		"two permits are missing": {sketch{
			fields: "rate=259 interval=1000 type=0", shared: "0" + strings.Repeat(" 1@500", checked+1),
		}, 259},
	} {
		// the first one may check the records, the second does not
		for _, call := range []call{{kind: available}, {kind: tryAcquire, n: test.permits}} {
			before, err := w.begin(t.Context(), test.state())
			if err != nil {
				t.Fatal(err)
			}
			c := &comparison{version: newest, call: call, before: before}
			_, differences, err := w.compare(t.Context(), c, by)
			if err != nil || len(differences) > 0 || c.wanted.granted {
				t.Errorf("%s, %v: %v\n%s", name, call, err, strings.Join(differences, "\n"))
			}
		}
	}
}

// newCallers returns clients of this library that write records in different ways. The outcome must
// not depend on it.
func newCallers(w *world) []caller {
	var callers []caller
	for _, opts := range [][]rratelimiter.LimiterOption{
		nil, {rratelimiter.WithRecordFormat(rratelimiter.Redisson321)}, {rratelimiter.WithRecordPerRequest()},
	} {
		client := rratelimiter.NewClient(w.rdb, rratelimiter.WithClientID(clientID),
			rratelimiter.WithClock(func() time.Time { return time.UnixMilli(w.now) }),
			rratelimiter.WithCallTimeout(time.Minute))
		callers = append(callers, caller{limiter: client.RateLimiter(w.goName, opts...), client: client})
	}
	return callers
}

// sequence runs one test case: a state, then a sequence of calls.
func (w *world) sequence(t *rapid.T, of []string, callers []caller, compared, alone *atomic.Int64) {
	ctx := context.Background()
	start := drawState(t)
	current, err := w.begin(ctx, start)
	if err != nil {
		t.Fatal(err)
	}
	t.Repeat(map[string]func(*rapid.T){"step": func(t *rapid.T) {
		w.now += drawTime(t, &current, w.now)
		version, asked := drawCall(t, of, &current)
		if chance(t, 10, "a foreign change") {
			before := current.String()
			disturb(t, &current, w.now)
			t.Logf("at %d ms a foreign change of %s", w.now-epoch, before)
			if current, err = w.put(ctx, current); err != nil {
				t.Fatal("a call failed: ", err)
			}
		}
		if current.initialized() && chance(t, 800, "many have expired") && chance(t, 4, "really many") {
			asked = flood(t, version, &current, w.now)
			if current, err = w.put(ctx, current); err != nil {
				t.Fatal("a call failed: ", err)
			}
		} else if asked.kind != acquireUpTo && asked.kind != look && chance(t, 5, "Java alone") {
			t.Logf("at %d ms Redisson %s alone: %v", w.now-epoch, version, asked)
			if asked.kind == tryAcquire && chance(t, 10, "a negative request") {
				asked.n = rapid.SampledFrom([]int64{-1, -7}).Draw(t, "permits")
			}
			if current, err = w.javaAlone(ctx, version, asked); err != nil {
				t.Fatal("a call failed: ", err)
			}
			alone.Add(1)
			return
		}
		by := callers[rapid.IntRange(0, len(callers)-1).Draw(t, "caller")]
		by.way = rapid.IntRange(byAllow, byAllowAll).Draw(t, "way")
		c := &comparison{version: version, call: asked, before: current}
		var differences []string
		current, differences, err = w.compare(ctx, c, by)
		if err != nil {
			t.Fatal("a call failed: ", err)
		}
		compared.Add(1)
		t.Logf("at %d ms Redisson %s and Go: %v", w.now-epoch, version, asked)
		if len(differences) > 0 {
			t.Fatal("Redisson and this library differ, and no rule allows it\n", strings.Join(differences, "\n"))
		}
	}})
}
