package repair

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// garbage_test.go writes random garbage into the keys of limiters, and then calls their methods.
// The expected results come from an independent script in the server, the onlooker. It implements
// README and DESIGN, and shares no code with lua/.

var (
	messes   = flag.Int("garbage.cases", 0, "states of random garbage; 0: 20,000, 2,000 with the race detector")
	messSeed = flag.Uint64("garbage.seed", 0, "what they are drawn from; 0: another one each time")
)

// A mess is a state, given by the commands that write it, and the deeds done to the limiter
// afterwards. Each command and each deed can be left out, so a mess that finds a fault is reduced
// before it is reported.
type mess struct {
	options int   // in messOptions
	start   int64 // time of the clock, in ms
	writes  [][]any
	steps   []deed
	well    deed // how the limiter is repaired at the end
}

type deed struct {
	method string
	n      int64
}

var messOptions = []struct {
	name string
	opts []rratelimiter.LimiterOption
	rate bool // its own
	late bool // the clock runs: the keys hold nothing that expires during the mess
}{
	{name: "no options"},
	{name: "granularity", opts: []rratelimiter.LimiterOption{rratelimiter.WithGranularity(time.Second)}},
	{
		name: "own rate",
		opts: []rratelimiter.LimiterOption{rratelimiter.WithRate(rratelimiter.PerMinute(10))},
		rate: true,
	},
	{name: "a record for each request", opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest(),
		rratelimiter.WithRecordFormat(rratelimiter.Redisson321)}},
	{
		name: "the oldest format, own rate",
		opts: []rratelimiter.LimiterOption{
			rratelimiter.WithRecordFormat(rratelimiter.Redisson313), rratelimiter.WithRate(rratelimiter.PerMinute(10)),
		},
		rate: true,
	},
	{name: "an old format", opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordFormat(rratelimiter.Redisson316),
		rratelimiter.WithGranularity(5 * time.Second)}},
	{name: "the server's clock", opts: []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}, late: true},
	{name: "the server's clock, granularity, own rate", rate: true, late: true,
		opts: []rratelimiter.LimiterOption{rratelimiter.WithServerTime(), rratelimiter.WithGranularity(time.Second),
			rratelimiter.WithRate(rratelimiter.PerMinute(10))}},
}

func (m mess) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n", messOptions[m.options].name)
	for _, w := range m.writes {
		for _, word := range w {
			text := fmt.Sprint(word)
			if len(text) > 60 {
				text = fmt.Sprintf("%s... %d bytes", text[:60], len(text))
			}
			fmt.Fprintf(&b, " %q", text)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "then %v, then %v", m.steps, m.well)
	return b.String()
}

// A messer makes one mess after another, on limiters with one name.
type messer struct {
	rdb        rratelimiter.Redis
	now, later *rratelimiter.Client
	name       string
	random     *rand.Rand
	begun      int64        // start of the test, in ms
	start      int64        // time of the latest mess, in ms
	clock      atomic.Int64 // the same, for the clients' clock
	keys       []any
	sha        string
	// without garbage; the first can be used in one script with the limiter under test
	beside [2]*rratelimiter.Limiter
	took   [2]int64 // permits granted by these
}

// exchange returns the state of the keys, and the state after writing a mess, if there is one.
func (g *messer) exchange(ctx context.Context, m *mess) (before, after view, err error) {
	args := append([]any{"evalsha", g.sha, len(g.keys)}, g.keys...)
	args = append(args, g.clock.Load())
	if m != nil {
		for g.recounting() { // it would go on in this mess, by the clock of the one before
			time.Sleep(time.Millisecond)
		}
		g.clock.Store(m.start)
		args = append(args, m.start, 1, "PING") // a mess may have no commands
		for _, w := range m.writes {
			args = append(append(args, len(w)), w...)
		}
	}
	cmd := redis.NewSliceCmd(ctx, args...)
	if err := g.rdb.Process(ctx, cmd); err != nil {
		return view{}, view{}, fmt.Errorf("look: %w", err)
	}
	return readView(cmd.Val()[0].([]any)), readView(cmd.Val()[1].([]any)), nil
}

// recounting tells whether records are added up in the background.
func (g *messer) recounting() (is bool) {
	for _, c := range []*rratelimiter.Client{g.now, g.later} {
		is = is || rig.Core(c).Inspect().Recounting
	}
	return is
}

// stateReaders are the methods that read the state.
var stateReaders = []string{
	"Allow", "TryAcquire", "TryAcquireTimeout", "Acquire", "AcquireUpTo", "Release", "AllowAll", "AllowAllN",
	"AvailablePermits",
	"State",
}

// do does one deed, and returns how many permits were granted; a negative number was given back.
func (g *messer) do(ctx context.Context, l *rratelimiter.Limiter, d deed) (got int64, err error) {
	granted := func(ok bool) int64 {
		if ok {
			return d.n
		}
		return 0
	}
	plausible := func(r rratelimiter.Result) error {
		if err == nil &&
			(r.Limit < 0 || r.Remaining < 0 || r.Remaining > r.Limit || r.RetryAfter < 0 || r.ResetAfter < 0 ||
				r.Allowed == (r.RetryAfter > 0)) {
			return fmt.Errorf("the result can't be: %+v", r)
		}
		return err
	}
	switch d.method {
	case "Allow":
		var r rratelimiter.Result
		r, err = l.Allow(ctx, d.n)
		return granted(r.Allowed), plausible(r)
	case "TryAcquire":
		var ok bool
		ok, err = l.TryAcquire(ctx, d.n)
		return granted(ok), err
	case "TryAcquireTimeout":
		var ok bool
		ok, err = l.TryAcquireTimeout(ctx, d.n, time.Nanosecond)
		return granted(ok), err
	case "Acquire":
		ok, err := asksOnce(ctx, l, d.n)
		return granted(ok), err
	case "AcquireUpTo":
		return l.AcquireUpTo(ctx, d.n)
	case "Release":
		got, err = l.Release(ctx, d.n)
		return -got, err
	case "AllowAll":
		var r []rratelimiter.Result
		if r, err = l.Client().AllowAll(ctx, d.n, l); err != nil {
			return 0, err
		}
		return granted(r[0].Allowed), plausible(r[0])
	case "AllowAllN":
		which, first := d.n%2, int(d.n/2%2)
		permits, limiters := []int64{d.n, d.n}, []*rratelimiter.Limiter{l, l}
		permits[1-first], limiters[1-first] = 1+d.n%3, g.beside[which]
		r, err := l.Client().AllowAllN(ctx, permits, limiters...)
		if err != nil {
			return 0, err
		}
		if r[first].Allowed {
			g.took[which] += permits[1-first]
		}
		if r[0].Allowed != r[1].Allowed {
			return 0, fmt.Errorf("one of both allows: %+v", r)
		}
		return granted(r[first].Allowed), plausible(r[first])
	case "AvailablePermits":
		var free int64
		if free, err = l.AvailablePermits(ctx); free < 0 {
			err = fmt.Errorf("%d are free", free)
		}
	case "State":
		var s rratelimiter.State
		if s, err = l.State(ctx); s.Available < 0 || s.Used < 0 ||
			s.Available > s.Rate.Permits && s.Rate != (rratelimiter.Rate{}) {
			err = fmt.Errorf("the state can't be: %+v", s)
		}
	case "Config":
		_, err = l.Config(ctx)
	case "Exists":
		_, err = l.Exists(ctx)
	case "TTL":
		_, err = l.TTL(ctx)
	case "Clients":
		_, err = l.Clients(ctx)
	case "Expire":
		_, err = l.Expire(ctx, time.Hour, rratelimiter.ExpireCondition(1+d.n%4))
	case "ExpireAt":
		_, err = l.ExpireAt(ctx, time.UnixMilli(g.start).Add(time.Hour), rratelimiter.ExpireCondition(1+d.n%4))
	case "ClearExpire":
		_, err = l.ClearExpire(ctx)
	case "Rename":
		if err = l.Rename(ctx, g.name+"{"); err == nil {
			err = g.now.RateLimiter(g.name+"{").Rename(ctx, g.name)
		}
	case "RenameNX":
		var done bool
		if done, err = l.RenameNX(ctx, g.name+"{"); err == nil && !done {
			err = errors.New("the new name was taken")
		} else if err == nil {
			err = g.now.RateLimiter(g.name+"{").Rename(ctx, g.name)
		}
	default:
		err = fmt.Errorf("no method %q", d.method)
	}
	return 0, err
}

var errUnsure = errors.New("it went away without an answer")

// asksOnce is Acquire that gives up after a refusal. Its clock stands still, so a queue that yields
// to others would do so forever: then it gives up without a reply.
func asksOnce(ctx context.Context, l *rratelimiter.Limiter, n int64) (bool, error) {
	started, answered := time.Now(), false
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.Acquire(ctx, n) }()
	for {
		select {
		case err := <-ended:
			switch {
			case errors.Is(err, context.Canceled) && (!answered || errors.Is(err, rratelimiter.ErrOutcomeUnknown)):
				return false, errUnsure
			case errors.Is(err, context.Canceled):
				return false, nil
			}
			return err == nil, err
		case <-time.After(time.Millisecond):
			calls := rig.Core(l.Client()).Look(l.Name())
			if calls.Waiting > 0 && !calls.InFlight && (calls.Next > 0 || time.Since(started) > 100*time.Millisecond) {
				answered = answered || calls.Next > 0
				cancel()
			}
		}
	}
}

// An aftermath is the effect of a mess, as far as the replies show it.
type aftermath struct {
	m       *mess
	before  view
	live    int64 // according to the replies
	refused bool  // for a wrong type
	unsure  bool  // a reply did not arrive
	mended  bool  // value and records now add up to the rate
}

// run makes the mess and returns an error if a result was wrong.
func (g *messer) run(ctx context.Context, m *mess) error {
	_, before, err := g.exchange(ctx, m)
	if err != nil {
		return err
	}
	o, err := g.deal(ctx, m, before)
	if err != nil {
		return err
	}
	after, _, err := g.exchange(ctx, nil)
	if err == nil {
		err = o.check(after)
	}
	if err == nil {
		o.mended, err = g.first(ctx, o, after)
	}
	if err == nil {
		err = g.end(ctx, o, after)
	}
	return err
}

// first makes the first call of a new process, which mends the state. State and Glance say before
// what it will find. It returns whether the state was one that a single call mends.
func (g *messer) first(ctx context.Context, o aftermath, found view) (mended bool, err error) {
	options := messOptions[o.m.options]
	found.judge(options.rate)
	if o.unsure || found.wrong != 0 || found.fault || found.incomplete || found.living > 256 || found.entries >= 2000 {
		return false, nil // there is no state, or more of it than one call checks
	}
	l := rratelimiter.NewClient(
		g.rdb, rratelimiter.WithClientID("me"), rig.Patient,
		rratelimiter.WithClock(func() time.Time { return time.UnixMilli(g.clock.Load()) }),
	).RateLimiter(g.name, options.opts...)
	want := max(0, found.free())
	if s, err := l.State(ctx); err != nil || s.Available != want {
		return false, fmt.Errorf("State is %+v, %v, not with %d free, before the first call on %+v",
			s, err, want, found)
	}
	if s, _, err := l.Glance(ctx); err != nil || s.Available != want {
		return false, fmt.Errorf("Glance is %+v, %v, not with %d free, before the first call on %+v",
			s, err, want, found)
	}
	if free, err := l.AvailablePermits(ctx); err != nil || free != want {
		return false, fmt.Errorf("the first call says that %d are free, %v, not %d of %+v", free, err, want, found)
	}
	left, _, err := g.exchange(ctx, nil)
	if err == nil && !left.adds(found.permits) {
		err = fmt.Errorf("the first call made %+v of %+v", left, found)
	}
	if err != nil {
		return false, err
	}
	if s, err := l.State(ctx); err != nil || s.Available != want || !s.Consistent {
		return false, fmt.Errorf("State after the first call is %+v, %v, not with %d free", s, err, want)
	}
	return true, nil
}

// deal does the deeds of the mess.
func (g *messer) deal(ctx context.Context, m *mess, before view) (o aftermath, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	options := messOptions[m.options]
	l := g.now.RateLimiter(g.name, options.opts...)
	before.judge(options.rate)
	most := max(before.permits, before.live)
	said, sure := before.said()
	if sure {
		// above the rate only if the value is above it, as after Redisson's release
		most = max(most, before.live+said)
	}
	live, refused, touched := before.live, false, false
	for _, d := range m.steps {
		got, err := g.do(ctx, l, d)
		what := fmt.Sprintf("%v of %d gave %d, %v", d.method, d.n, got, err)
		reads := slices.Contains(stateReaders, d.method)
		if d.method == "TryAcquireTimeout" && got == 0 && err == nil {
			continue // its timeout may have ended before the call
		}
		var answer redis.Error
		switch {
		case err == nil:
		case errors.Is(err, errUnsure):
			return aftermath{m: m, before: before, unsure: true}, nil
		case errors.Is(err, rratelimiter.ErrOutcomeUnknown):
			return o, fmt.Errorf("%s: the outcome is unknown", what)
		case errors.Is(err, rratelimiter.ErrNotInitialized):
			if strings.HasPrefix(d.method, "Rename") || d.method == "TTL" {
				if before.types[0] != "none" {
					return o, fmt.Errorf("%s: there is a configuration", what)
				}
			} else if looks := d.method == "State" || d.method == "Config" ||
				d.method == "Release"; // these set no rate of their own
			before.wrong == 1 || !before.fault && !(looks && before.incomplete) {
				return o, fmt.Errorf("%s: but it is initialized", what)
			}
		case errors.Is(err, rratelimiter.ErrExceedsRate):
			if before.wrong != 0 || before.fault || d.n <= before.permits {
				return o, fmt.Errorf("%s: but the rate is %d", what, before.permits)
			}
		case errors.As(err, &answer) && redis.HasErrorPrefix(err, "WRONGTYPE"):
			if strings.HasPrefix(d.method, "Rename") {
				// It also moves the keys of the other rate type, which are not in the view.
			} else if before.wrong == 0 || before.wrong == 2 && (!reads || before.fault) {
				return o, fmt.Errorf("%s: but the types are right: %v", what, before.types)
			}
		default:
			return o, fmt.Errorf("%s: what error is this?", what)
		}
		switch {
		case err != nil && got != 0:
			return o, errors.New(what)
		case err == nil && reads && (before.wrong == 1 || before.fault && d.n > 0):
			return o, fmt.Errorf("%s: there is no rate: %+v", what, before)
		case err == nil && reads && before.wrong == 2:
			return o, fmt.Errorf("%s: and nothing of %v", what, before.types)
		case got > before.permits, got > d.n, -got > d.n:
			return o, fmt.Errorf("%s: at a rate of %d", what, before.permits)
		}
		if d.method == "AcquireUpTo" && !touched && err == nil {
			free := [2]int64{before.permits - before.live, before.permits - before.live}
			if sure {
				free[0], free[1] = min(said, free[0]), max(said, free[1])
			}
			if before.living == 0 {
				free = [2]int64{before.permits, before.permits}
			}
			if got < min(d.n, max(0, free[0])) || got > min(d.n, max(0, free[1])) {
				return o, fmt.Errorf("%s: %d to %d are free of %+v", what, free[0], free[1], before)
			}
		}
		touched = touched || got != 0 || err == nil && reads
		refused = refused || before.wrong != 0 && reads && err != nil
		if live += got; live > most && before.wrong == 0 && !before.fault {
			return o, fmt.Errorf("%s: %d live at once at a rate of %d, at first %+v",
				what, live, before.permits, before)
		}
	}
	return aftermath{m: m, before: before, live: live, refused: refused}, nil
}

// check compares the state of the keys with the replies.
func (o aftermath) check(after view) error {
	after.judge(messOptions[o.m.options].rate)
	touching := func(d deed) bool { return strings.Contains(d.method, "Expire") }
	var surplus int64 // which a check removes from the records
	if said, sure := o.before.said(); sure {
		surplus = max(0, min(o.before.live, o.before.live+said-o.before.permits))
	} else if o.before.living >= 1000 { // what one call of AllowAllN adds up of two limiters
		surplus = o.before.live // while they are added up, expired permits are returned
	}
	switch {
	case o.unsure:
	case o.before.wrong == 0 && !o.before.fault && (after.live > o.live || after.live < o.live-surplus):
		return fmt.Errorf("%d were live, by what was answered it should be %d, it is %d",
			o.before.live, o.live, after.live)
	case o.refused && after.digest != o.before.digest && !messOptions[o.m.options].rate &&
		!slices.ContainsFunc(o.m.steps, touching):
		return errors.New("a wrong type was refused, yet something changed")
	}
	return nil
}

// window takes all that can be had within an interval, once the state is mended.
func (g *messer) window(ctx context.Context, o aftermath) error {
	defer g.clock.Store(o.m.start)
	l := g.now.RateLimiter(g.name, messOptions[o.m.options].opts...)
	var got int64
	for _, after := range []int64{0, 20_000, 40_000, 59_999} {
		g.clock.Store(o.m.start + after)
		n, err := l.AcquireUpTo(ctx, 100)
		if got += n; err != nil || got > o.before.permits {
			return fmt.Errorf("%d were granted within an interval, at a rate of %d: %v", got, o.before.permits, err)
		}
	}
	return nil
}

// end lets the window pass, and repairs the limiter.
func (g *messer) end(ctx context.Context, o aftermath, after view) error {
	if o.before.wrong != 0 || o.before.fault || messOptions[o.m.options].late || o.before.every != 60_000 ||
		o.before.living >= 1000 {
		// no rate, or one whose window does not pass here
	} else if o.mended && o.m.well.n < 32 {
		if err := g.window(ctx, o); err != nil {
			return err
		}
	} else if after.ahead == 0 {
		l := g.later.RateLimiter(g.name, messOptions[o.m.options].opts...)
		if free, err := l.AvailablePermits(ctx); err != nil || free != o.before.permits {
			return fmt.Errorf("once all expired, %d are free of %d: %v", free, o.before.permits, err)
		}
	}
	return g.well(ctx, o.m)
}

// well repairs the limiter, and checks that it works.
func (g *messer) well(ctx context.Context, m *mess) error {
	l := g.now.RateLimiter(g.name) // the rate is set manually
	rate := rratelimiter.Rate{Permits: 8, Interval: time.Minute, Type: rratelimiter.RateType(m.well.n % 2)}
	set := l.SetRate
	var opts []rratelimiter.SetOption
	var err error
	switch m.well.method {
	case "SetRate":
	case "SetRate, KeepState":
		opts = append(opts, rratelimiter.KeepState())
	case "UpdateRate":
		set = func(ctx context.Context, r rratelimiter.Rate, opts ...rratelimiter.SetOption) error {
			done, err := l.UpdateRate(ctx, r, opts...)
			if err == nil && !done {
				return l.SetRate(ctx, r, opts...)
			}
			return err
		}
	case "Delete":
		_, err = l.Delete(ctx)
		set = func(ctx context.Context, r rratelimiter.Rate, _ ...rratelimiter.SetOption) error {
			done, err := l.TrySetRate(ctx, r)
			if err == nil && !done {
				return errors.New("deleted, and there is a rate")
			}
			return err
		}
	}
	if err == nil {
		err = set(ctx, rate, opts...)
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // keys of another program stay until they are removed manually
		if err = g.rdb.Process(ctx, redis.NewIntCmd(ctx, append([]any{"del"}, g.keys...)...)); err == nil {
			err = l.SetRate(ctx, rate)
		}
	}
	if err != nil {
		return fmt.Errorf("%v: %w", m.well, err)
	}
	got, err := l.AcquireUpTo(ctx, 100)
	if err != nil {
		return fmt.Errorf("after %v: %w", m.well, err)
	}
	if len(opts) == 0 && got != 8 {
		return fmt.Errorf("after %v %d were granted of 8", m.well, got)
	}
	if len(opts) == 0 && m.well.n%8 != 0 {
		return nil
	}
	v, _, err := g.exchange(ctx, nil)
	if err != nil {
		return err
	}
	v.judge(false)
	if v.live != 8 && (got != 0 || v.live < 8) {
		return fmt.Errorf("after %v %d were granted, and %d are live of 8", m.well, got, v.live)
	}
	s, err := l.State(ctx)
	if err != nil || s.Rate != rate || s.Used != v.live || s.Available != 0 || !s.Consistent {
		return fmt.Errorf("after %v the state is %+v, %v, with %d live", m.well, s, err, v.live)
	}
	return nil
}

// smaller removes from a failing mess all that is not needed to make it fail.
func (g *messer) smaller(ctx context.Context, m mess) (mess, error) {
	err := g.run(ctx, &m)
	for again := true; again; {
		again = false
		try := func(less mess) {
			if failure := g.run(ctx, &less); failure != nil {
				m, err, again = less, failure, true
			}
		}
		for i := len(m.writes) - 1; i >= 0; i-- {
			if i < len(m.writes) {
				less := m
				less.writes = slices.Delete(slices.Clone(m.writes), i, i+1)
				try(less)
			}
		}
		for i := len(m.steps) - 1; i >= 0; i-- {
			less := m
			less.steps = slices.Delete(slices.Clone(m.steps), i, i+1)
			try(less)
		}
	}
	return m, err
}

func (g *messer) pick(from ...string) string { return from[g.random.IntN(len(from))] }
func (g *messer) once(in int) bool           { return g.random.IntN(in) == 0 }

func (g *messer) bytes(most int) string {
	bytes := make([]byte, g.random.IntN(most))
	for i := range bytes {
		bytes[i] = byte(g.random.IntN(256))
	}
	return string(bytes)
}

// number returns a number, usually a small one.
func (g *messer) number() string {
	switch g.random.IntN(14) {
	case 0:
		return g.pick(
			"nan", "-nan", "inf", "-inf", "1e3", "0x10", "", "text", " 5", "5 ", "007", "-0", "+1", "1.5", "-1", "--1",
			"5\x00",
			"\n5", "999999999999999", "1000000000000000", "1000000000000001", "9007199254740993", "9223372036854775807",
			"-9223372036854775808", "9223372036854775808", "-999999999999999", strings.Repeat("9", 40), "４",
		)
	case 1:
		return g.bytes(8)
	case 2:
		return strconv.FormatInt(g.random.Int64()>>g.random.IntN(64), 10)
	}
	return strconv.Itoa(g.random.IntN(50))
}

func (g *messer) member() string {
	small := string([]byte{byte(g.random.IntN(6)), 0, 0, 0})
	switch g.random.IntN(24) {
	case 0, 1:
		return g.bytes(24)
	case 2: // short ones that are close together, so that a shrunk one equals another
		return g.pick("", "a", "ab", "a\xff", "\xff\xff", "\x08\xff\xff\xff\xff\xff\xff\xff\xff") + small
	case 3, 4, 5: // this client's own
		return string(
			rig.Core(g.now).Identity().AppendPrefix(nil, record.Format(rig.Formats[g.random.IntN(len(rig.Formats))]),
				1),
		) + small
	case 6:
		return g.pick(
			"", "a", "abc", "\x00", "\xff\xff\xff\xff", "\x08\x00\x00\x00\x00\x00\x00\x00\x0012345678\x03\x00\x00\x00",
		)
	case 7:
		if g.once(100) {
			return strings.Repeat("x", 100_000) + small
		}
	case 8:
		return rig.MemberOf("big"+g.bytes(6), uint32(math.MaxUint32-g.random.IntN(3)))
	}
	return rig.MemberOf(fmt.Sprintf("%08d", g.random.IntN(9)), uint32(g.random.IntN(6)))
}

func permitsIn(member string) uint32 {
	if len(member) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
}

func (g *messer) score(late bool) string {
	switch g.random.IntN(14) {
	case 0:
		return g.pick(
			"inf", "-inf", "0", "-0", "-1", "1e308", "-1e308", "5e-324", "1e15", "1e16", "9007199254740993",
			"-9223372036854775808",
		)
	case 1: // at the start of the window
		if late {
			break
		}
		at := g.start - 60_000
		return g.pick(
			fmt.Sprint(at), fmt.Sprint(at+1), fmt.Sprint(at-1), fmt.Sprintf("%d.5", at), fmt.Sprint(g.start),
			fmt.Sprint(g.start+1),
		)
	}
	score := g.start + g.random.Int64N(100_000) - 90_000
	if late && score > g.start-62_000 && score < g.start-30_000 {
		score += 30_000
	}
	return strconv.FormatInt(score, 10)
}

// mess makes a random mess: a valid state with some faults.
func (g *messer) mess() *mess {
	m := &mess{options: g.random.IntN(len(messOptions)), start: g.begun}
	late := messOptions[m.options].late
	if late {
		m.start = time.Now().UnixMilli() // the server's clock, too
	}
	g.start = m.start
	write := func(words ...any) { m.writes = append(m.writes, words) }
	config, value, permits := g.keys[keys.Config], g.keys[keys.Value], g.keys[keys.Permits]
	fields := [][2]string{{"rate", "10"}, {"interval", "60000"}, {"type", "0"}}
	if g.once(4) {
		fields[0][1] = strconv.Itoa(g.random.IntN(30))
	}
	if g.once(4) {
		fields[2][1] = "1"
		value, permits = g.keys[keys.ClientValue], g.keys[keys.ClientPermits]
	}
	if g.once(4) {
		fields = append(
			fields, [2]string{"keepAliveTime", g.pick("0", "600000", "90000000", "-5", "999999999999999", "nan", "")},
		)
	}
	for _, f := range fields {
		switch {
		case g.once(60):
			continue
		case g.once(25) && f[0] != "keepAliveTime" &&
			!(late && f[0] == "interval"): // small ones would remove the limiter
			f[1] = g.number()
		}
		write("HSET", config, f[0], f[1])
	}
	if !g.once(8) {
		write("SET", value, g.number())
	}
	if !late && g.once(1500) {
		many := []int{255, 258, 511, 600, 1999, 2001, 2600, 5100}[g.random.IntN(8)]
		spread := []int64{1, 1000, 50_000, 200_000}[g.random.IntN(4)]
		for from := 0; from < many; from += 500 {
			words := []any{"ZADD", permits}
			for i := from; i < min(many, from+500); i++ {
				words = append(
					words, g.start-spread*int64(i)/int64(many)-int64(g.random.IntN(2)*70_000),
					rig.MemberOf(fmt.Sprintf("m%07d", i), uint32(i%2)),
				)
			}
			write(words...)
		}
	}
	var held int64 // permits in the records below
	for range g.random.IntN(8) {
		member := g.member()
		held += int64(permitsIn(member))
		write("ZADD", permits, g.score(late), member)
	}
	// permits that no grant has, and a value off by them
	if rate, err := strconv.ParseInt(fields[0][1], 10, 32); err == nil && g.once(4) {
		var taken, stored int64
		for range 1 + g.random.IntN(3) {
			n := []int64{
				-1,
				-1 - g.random.Int64N(30),
				math.MinInt32,
				math.MaxInt32,
				rate + 1 + g.random.Int64N(30),
			}[g.random.IntN(5)]
			taken, stored = taken+n, stored+int64(uint32(n))
			write("ZADD", permits, g.score(late), rig.MemberOf("odd"+g.bytes(6), uint32(n)))
		}
		// Redisson's requests leave the first value, its repair the second one.
		write("SET", value, rate-held-[]int64{taken, stored, -taken, -stored}[g.random.IntN(4)])
	}
	if g.once(12) { // a wrong type, or one that no key has
		key := g.keys[g.random.IntN(keys.Count)]
		m.writes = slices.DeleteFunc(m.writes, func(w []any) bool { return w[1] == key })
		switch g.random.IntN(6) {
		case 0:
			write("SET", key, g.number())
		case 1:
			write("HSET", key, "rate", g.number())
		case 2:
			write("ZADD", key, g.score(late), g.member())
		case 3:
			write("RPUSH", key, "a", g.number())
		case 4:
			write("SADD", key, g.number())
		case 5:
			write("XADD", key, "*", "rate", "10")
		}
	}
	if g.once(10) {
		write("PEXPIRE", g.keys[g.random.IntN(keys.Count)], 600_000+g.random.IntN(1e9))
	}
	for range 1 + g.random.IntN(5)/2 {
		d := deed{n: 1 + g.random.Int64N(12), method: stateReaders[g.random.IntN(len(stateReaders))]}
		switch {
		case d.method == "Acquire" && !g.once(20): // it is slow
			d.method = "Allow"
		case g.once(6):
			d.method = g.pick("Config", "Exists", "TTL", "Expire", "ExpireAt", "ClearExpire", "Rename", "RenameNX")
		case g.once(100):
			d.method = "Clients"
		case g.once(30) && d.method != "Release":
			d.n = []int64{1 << 32, math.MaxInt64, 1e15 + 1}[g.random.IntN(3)]
			if d.method == "AcquireUpTo" {
				d.n = 1 << 32
			}
		}
		m.steps = append(m.steps, d)
	}
	m.well = deed{g.pick("SetRate", "SetRate, KeepState", "UpdateRate", "Delete"), g.random.Int64N(64)}
	return m
}

// TestRandomGarbageIsHandled: whatever the keys hold, no method panics or fails other than
// documented, nothing is granted above the rate, the first call of a process makes value and
// records add up to the rate, and SetRate or Delete repairs everything except keys of another type,
// which must be removed manually.
func TestRandomGarbageIsHandled(t *testing.T) {
	const messers = 128
	seed := *messSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	fmt.Fprintf(os.Stderr, "TestRandomGarbageIsHandled: -garbage.seed=%d\n", seed)
	rdb := rig.AutoPipelined(t, redistest.Real(t).Client())
	sha, err := rdb.ScriptLoad(t.Context(), onlooker).Result()
	if err != nil {
		t.Fatal(err)
	}
	cases := *messes
	if cases == 0 && rig.RaceDetector {
		cases = 2_000
	} else if cases == 0 {
		cases = 10_000
	}
	started := time.Now().Truncate(time.Millisecond)
	var once sync.Once
	var all sync.WaitGroup
	for i := range messers {
		g := &messer{
			rdb: rdb, name: fmt.Sprint("rl", i), sha: sha, begun: started.UnixMilli(),
			random: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		g.clock.Store(g.begun)
		client := func(later int64) *rratelimiter.Client {
			return rratelimiter.NewClient(rdb, rratelimiter.WithClientID("me"), rig.Patient,
				rratelimiter.WithClock(func() time.Time { return time.UnixMilli(g.clock.Load() + later) }))
		}
		g.now, g.later = client(0), client(time.Minute.Milliseconds())
		for i, name := range []string{"{" + g.name + "}beside", g.name + " beside"} {
			g.beside[i] = g.now.RateLimiter(
				name, rratelimiter.WithRate(rratelimiter.PerHour(1_000_000_000)),
				rratelimiter.WithGranularity(time.Minute),
			)
		}
		for _, name := range []string{g.name, g.name + "{"} {
			for _, key := range rig.Keys(g.now.RateLimiter(name)) {
				g.keys = append(g.keys, key)
			}
		}
		all.Go(func() {
			if m, err := g.work(t.Context(), cases/messers, t.Failed); err != nil {
				once.Do(func() {
					small, failure := g.smaller(t.Context(), *m)
					t.Errorf("%v\nat %d, %v\nmade smaller: %v\nfrom %v", err, m.start, small, failure, m)
				})
			}
		})
	}
	all.Wait()
	t.Logf("%d messes in %v", cases/messers*messers, time.Since(started).Round(time.Millisecond))
}

// work makes one mess after another, and returns the first one that finds a fault. One call writes
// a mess and reads the result of the one before. Only some of them are followed to the end of the
// window.
func (g *messer) work(ctx context.Context, cases int, over func() bool) (*mess, error) {
	var last aftermath
	for i := 0; i <= cases && !over(); i++ {
		var m *mess
		if i < cases {
			m = g.mess()
		}
		after, before, err := g.exchange(ctx, m)
		if err == nil && last.m != nil {
			err = last.check(after)
		}
		if err != nil {
			return last.m, err
		}
		last.m = nil
		switch {
		case m == nil:
		case g.once(8):
			err = g.run(ctx, m)
		default:
			last, err = g.deal(ctx, m, before)
		}
		if err != nil {
			return m, err
		}
	}
	for i, l := range g.beside {
		if s, err := l.State(ctx); !over() && g.took[i] > 0 && (err != nil || s.Used != g.took[i]) {
			return &mess{}, fmt.Errorf("%s granted %d, and says %+v, %v", l.Name(), g.took[i], s, err)
		}
	}
	return nil, nil
}
