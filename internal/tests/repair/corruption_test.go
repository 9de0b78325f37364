package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A broken state is what a manual change, a crash, another version or an eviction may leave in the
// keys. The rate is 10 per minute unless fields has another one.
type broken struct {
	name string
	// of the configuration: alternating names and values, which replace the usual ones
	fields []string
	drop   []string          // fields to remove
	value  string            // "": none
	add    map[string]string // member: ms from now, or a score as text
	want   string            // part of the ErrNotInitialized that most methods return; "": they work
	free   int64             // otherwise, the result of AvailablePermits
	real   bool              // possible only on a real Redis
}

// brokenStates are the states that every method must handle.
func brokenStates() []broken {
	two := map[string]string{rig.MemberOf("aaaaaaaa", 3): "-1000", rig.MemberOf("bbbbbbbb", 2): "0"}
	states := []broken{
		{name: "value missing with records", add: two, free: 5},
		{name: "value without records, nothing left", value: "0", free: 10}, // Redisson never recovers from it: #2987
		{name: "value without records, something left", value: "4", free: 10},
		{name: "neither value nor records", free: 10},
		{name: "value negative", value: "-5", add: two, free: 5},
		{name: "value negative, no records", value: "-5", free: 10},
		{name: "value above the rate", value: "11", add: two, free: 5},
		{name: "value above the rate, no records", value: "11", free: 10},
		{name: "value too low", value: "1", add: two, free: 5},
		{name: "value too high", value: "7", add: two, free: 7},
		{name: "value and expired above the rate", value: "7", free: 8,
			add: map[string]string{rig.MemberOf("expired1", 9): "-60000", rig.MemberOf("aaaaaaaa", 2): "0"}},
		{
			name:  "expired alone, drifted",
			value: "7",
			add:   map[string]string{rig.MemberOf("expired1", 9): "-60000"},
			free:  10,
		},
		{name: "expired alone, value missing", add: map[string]string{rig.MemberOf("expired1", 9): "-60000"}, free: 10},
		{
			name:  "more granted than the rate",
			value: "0",
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 4000000000): "0"},
			free:  0,
		},
		{
			name: "more granted than the rate, value missing",
			add:  map[string]string{rig.MemberOf("aaaaaaaa", 4000000000): "0"},
			free: 0,
		},
		{name: "short members", value: "5", free: 5,
			add: map[string]string{rig.MemberOf("aaaaaaaa", 5): "-500", "": "-3000", "x": "-2000", "xyz": "-1000"}},
		{name: "short members, value missing", free: 5,
			add: map[string]string{rig.MemberOf("aaaaaaaa", 5): "-500", "": "-3000", "x": "-2000", "xyz": "-1000"}},
		{
			name:  "short members alone",
			value: "0",
			add:   map[string]string{"": "-3000", "x": "-2000", "xyz": "-1000"},
			free:  10,
		},
		{name: "short members, expired", value: "3", add: map[string]string{"": "-70000", "xyz": "-60000"}, free: 10},
		{
			name: "permits alone", value: "5", free: 5,
			add: map[string]string{"\x03\x00\x00\x00": "-2000", "\x02\x00\x00\x00": "-1000"},
		},
		{name: "members of other formats", value: "1", free: 1, add: map[string]string{
			"\xf4\x1e\x87\x5c\x02\x00\x00\x00":                         "-4000",
			"\x08\x00\x00\x00\x00\x00\x00\x0012345678\x03\x00\x00\x00": "-3000",
			"\x10" + strings.Repeat("i", 16) + "\x04\x00\x00\x00":      "-2000",
		}},
		{
			name: "members of text", value: "5", free: 5,
			add: map[string]string{"hello, world": "-2000", "{\"permits\":5}": "-1000"},
		},
		{name: "members of nothing", value: "5", free: 5,
			add: map[string]string{strings.Repeat("\x00", 13): "-2000", strings.Repeat("\xff", 13): "-1000"}},
		{name: "scores of fractions", value: "5", free: 5,
			add: map[string]string{rig.MemberOf("aaaaaaaa", 3): "-1000.625", rig.MemberOf("bbbbbbbb", 2): "-0.5"}},
		{
			name:  "scores below zero",
			value: "5",
			free:  10,
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 5): "=-5000"},
		},
		{name: "scores of zero", value: "5", free: 10, add: map[string]string{rig.MemberOf("aaaaaaaa", 5): "=0"}},
		{name: "scores to come", value: "5", free: 5, add: map[string]string{rig.MemberOf("aaaaaaaa", 5): "3600000"}},
		{
			name:  "scores far to come",
			value: "5",
			free:  5,
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 5): "=1e300"},
			real:  true,
		},
		{
			name:  "scores long ago",
			value: "5",
			free:  10,
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 5): "=-1e300"},
			real:  true,
		},
		{
			name:  "score inf",
			value: "5",
			free:  5,
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 5): "=+inf"},
			real:  true,
		},
		{
			name: "score inf, value missing",
			free: 5,
			add:  map[string]string{rig.MemberOf("aaaaaaaa", 5): "=+inf"},
			real: true,
		},
		{
			name:  "score -inf",
			value: "5",
			free:  10,
			add:   map[string]string{rig.MemberOf("aaaaaaaa", 5): "=-inf"},
			real:  true,
		},
		{name: "scores inf and -inf", value: "5", free: 7,
			add:  map[string]string{rig.MemberOf("aaaaaaaa", 3): "=+inf", rig.MemberOf("bbbbbbbb", 2): "=-inf"},
			real: true,
		},
		{name: "type missing", drop: []string{"type"}, value: "5", add: two, want: "its type is missing"},
		{name: "interval missing", drop: []string{"interval"}, value: "5", add: two, want: "its interval is missing"},
		{name: "rate missing", drop: []string{"rate"}, value: "5", add: two, want: "its rate is missing"},
		{
			name: "configuration missing", drop: []string{"rate", "interval", "type"}, value: "5", add: two,
			want: "it has no rate",
		},
		{
			name:   "configuration foreign",
			drop:   []string{"rate", "interval", "type"},
			fields: []string{"colour", "red"},
			want:   "it has no rate",
		},
		{name: "rate 0", fields: []string{"rate", "0"}, free: 0},
		{
			name: "rate 007", fields: []string{"rate", "007"}, value: "3",
			add: map[string]string{rig.MemberOf("aaaaaaaa", 4): "0"}, free: 3,
		},
		{name: "rate of 19 digits", fields: []string{"rate", "9223372036854775807"}, free: 1e15},
		{
			name:   "rate of 30 digits",
			fields: []string{"rate", strings.Repeat("9", 30)},
			value:  strings.Repeat("9", 30),
			free:   1e15,
		},
	}
	for _, kind := range []string{"2", "", "-1", "00", "0 ", "OVERALL", "nan"} {
		states = append(
			states,
			broken{name: fmt.Sprintf("type %q", kind), fields: []string{"type", kind}, value: "5", add: two,
				want: "its type is neither 0 nor 1"},
		)
	}
	garbage := []string{
		"nan",
		"-nan",
		"inf",
		"-inf",
		"1e3",
		"0x10",
		"",
		"text",
		" 5",
		"5 ",
		"5.0",
		"+5",
		"--5",
		"5-",
		"\x00",
		"5\x00",
		"５",
	}
	for _, text := range garbage {
		states = append(
			states,
			broken{name: fmt.Sprintf("value %q", text), value: text + "|", add: two, free: 5},
			broken{name: fmt.Sprintf("value %q, no records", text), value: text + "|", free: 10},
			broken{
				name: fmt.Sprintf("rate %q", text), fields: []string{"rate", text}, value: "5", add: two,
				want: "its rate is no whole number",
			},
			broken{name: fmt.Sprintf("interval %q", text), fields: []string{"interval", text}, value: "5", add: two,
				want: "its interval is no positive whole number"},
			broken{
				name:   fmt.Sprintf("keep-alive %q", text),
				fields: []string{"keepAliveTime", text},
				value:  "5",
				add:    two,
				free:   5,
			},
		)
	}
	for _, text := range []string{
		"007",
		"-0",
		"9223372036854775807",
		"-9223372036854775808",
		"9223372036854775808",
		strings.Repeat("9", 400),
	} {
		states = append(states,
			broken{name: fmt.Sprintf("value %.30q", text), value: text, add: two, free: 5},
			broken{name: fmt.Sprintf("value %.30q, no records", text), value: text, free: 10})
	}
	// Java can set a negative rate; it refuses all requests, as 0 does
	for _, text := range []string{"-5", "-0", "-9223372036854775808"} {
		states = append(states, broken{name: fmt.Sprintf("rate %q", text), fields: []string{"rate", text}, free: 0})
	}
	for _, text := range []string{"0", "-1", "-60000"} {
		states = append(states, broken{name: fmt.Sprintf("interval %q", text), fields: []string{"interval", text},
			want: "its interval is no positive whole number"})
	}
	for _, text := range []string{"999999999999999", "1000000000000000", "1234567890123456", "9223372036854775807"} {
		states = append(
			states,
			broken{
				name:   fmt.Sprintf("interval %q", text),
				fields: []string{"interval", text},
				value:  "5",
				add:    two,
				free:   5,
			},
		)
	}
	for _, text := range []string{
		"-5",
		"999999999999999",
		"1000000000000000",
		"100000000000000000",
		"9223372036854775807",
	} {
		states = append(
			states,
			broken{
				name:   fmt.Sprintf("keep-alive %q", text),
				fields: []string{"keepAliveTime", text},
				value:  "5",
				add:    two,
				free:   5,
			},
		)
	}
	return states
}

// make writes the state, in one round trip.
func (b broken) make(r *rig.Rig, l *rratelimiter.Limiter) {
	r.T.Helper()
	ctx := r.T.Context()
	pipe := r.Redis.Pipeline()
	pipe.FlushDB(ctx)
	pipe.HSet(ctx, l.Name(), "rate", "10", "interval", "60000", "type", "0")
	if len(b.fields) > 0 {
		pipe.HSet(ctx, l.Name(), b.fields)
	}
	if len(b.drop) > 0 {
		pipe.HDel(ctx, l.Name(), b.drop...)
	}
	if b.value != "" {
		pipe.Set(ctx, rig.Keys(l)[keys.Value], strings.TrimSuffix(b.value, "|"), 0)
	}
	for member, at := range b.add {
		if score, absolute := strings.CutPrefix(at, "="); absolute {
			at = score
		} else {
			var offset float64
			_, err := fmt.Sscan(at, &offset)
			r.Must(err)
			at = fmt.Sprintf("%f", float64(r.Millis())+offset)
		}
		pipe.Do(ctx, "zadd", rig.Keys(l)[keys.Permits], at, member)
	}
	_, err := pipe.Exec(ctx)
	r.Must(err)
}

// live returns the sum of permits in live records, by their last four bytes alone.
func live(r *rig.Rig, l *rratelimiter.Limiter, interval int64) (sum int64) {
	r.T.Helper()
	for _, m := range r.Members(l) {
		if len(m.Member) >= 4 && m.Score > float64(r.Millis()-interval) {
			sum += rig.PermitsOf(m.Member)
		}
	}
	return sum
}

// asked is rig.EveryMethod with methods that wait, but give up after a refusal, for states without
// free permits.
func asked(r *rig.Rig, l *rratelimiter.Limiter) map[string]func(context.Context) error {
	methods := rig.EveryMethod(r.Client, l)
	for _, name := range []string{"Acquire", "AcquireAll", "AcquireAllN"} {
		acquire := methods[name]
		methods[name] = func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			ended := make(chan error)
			go func() { ended <- acquire(ctx) }()
			for {
				select {
				case err := <-ended:
					if errors.Is(err, context.Canceled) {
						return nil // it may wait
					}
					return err
				case <-time.After(time.Millisecond):
					if calls := rig.Core(r.Client).Look(l.Name()); calls.Next > 0 && !calls.InFlight {
						cancel()
					}
				}
			}
		}
	}
	return methods
}

// neverFails are the methods that don't need a rate that can be used.
var neverFails = []string{
	"TrySetRate", "SetRate", "SetRate, KeepState", "UpdateRate", "Exists", "Delete", "Clients", "Expire", "ExpireAt",
	"ClearExpire",
	"TTL", "Rename", "RenameNX",
}

func TestNoMethodFailsOnABrokenState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at, state := range brokenStates() {
			if state.real && !s.IsReal() {
				continue
			}
			t.Run(state.name, func(t *testing.T) {
				r := rig.New(t, s)
				l := r.Limiter("rl")
				methods := asked(r, l)
				for turn, method := range slices.Sorted(maps.Keys(methods)) {
					// Each state meets some of the methods, each method some states; on the
					// embedded server, which runs scripts slowly, fewer.
					if part := (turn + at) % 6; part > 0 && !s.IsReal() || part > 2 {
						continue
					}
					call := methods[method]
					state.make(r, l)
					missing := r.Redis.Exists(t.Context(), "rl").Val() == 0
					err := call(t.Context())
					switch {
					case missing && strings.HasPrefix(method, "Rename"), missing && method == "TTL":
						if !errors.Is(err, rratelimiter.ErrNotInitialized) {
							t.Errorf("%s: %v, want ErrNotInitialized", method, err)
						}
					case slices.Contains(neverFails, method):
						if err != nil {
							t.Errorf("%s: %v", method, err)
						}
					case state.want != "":
						if !errors.Is(err, rratelimiter.ErrNotInitialized) ||
							!strings.Contains(err.Error(), state.want) {
							t.Errorf("%s: %v, want ErrNotInitialized and %q", method, err, state.want)
						}
					case state.free == 0 && len(state.fields) > 0 && state.fields[0] == "rate":
						if err != nil && !errors.Is(err, rratelimiter.ErrExceedsRate) &&
							!errors.Is(err, rratelimiter.ErrDebtBound) { // a rate of 0 allows no debt
							t.Errorf("%s: %v, want ErrExceedsRate or ErrDebtBound", method, err)
						}
					case err != nil:
						t.Errorf("%s: %v", method, err)
					}
				}
				if state.want == "" {
					state.repairs(t, r, l)
				}
				if s.IsReal() || at%4 == 0 {
					state.make(r, l)
					setsRate(r, l)
				}
			})
		}
	})
}

// repairs starts from a usable broken state and continues until the window is over.
func (b broken) repairs(t *testing.T, r *rig.Rig, l *rratelimiter.Limiter) {
	t.Helper()
	b.make(r, l)
	state, err := l.State(t.Context())
	r.Must(err)
	rate, interval := state.Rate.Permits, int64(60000)
	if i := slices.Index(b.fields, "interval"); i >= 0 {
		interval = 999999999999999 // longer ones count as 10^15 ms
	}
	before := live(r, l, interval)
	// a record that no rate allows counts as what the others leave
	if state.Used != before && state.Used+state.Available != rate {
		t.Errorf("%d permits live, State says %d", before, state.Used)
	}
	if state.Available != b.free {
		t.Errorf("State says that %d are free, want %d", state.Available, b.free)
	}
	if free := r.Free(l); free != b.free {
		t.Errorf("%d are free, want %d", free, b.free)
	}
	// Take all that is available: never more than the rate in a window, except with a value that
	// looks like a release by Redisson.
	const record = math.MaxUint32 // a call that takes 1e15 permits would write 200,000 records
	got, err := l.AcquireUpTo(t.Context(), record)
	r.Must(err)
	if got != min(b.free, record) {
		t.Errorf("%d were granted of %d", got, b.free)
	}
	for range 3 {
		for _, n := range []int64{3, 1} {
			if _, err := l.Allow(t.Context(), n); err != nil && !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Errorf("Allow: %v", err)
			}
		}
	}
	most := max(rate, before+b.free)
	if live := live(r, l, interval); live > most {
		t.Errorf("%d live at once of a rate of %d, %d before", live, rate, before)
	}
	if interval > 60000 || rate == 0 {
		return
	}
	ahead := false
	for _, m := range r.Members(l) {
		ahead = ahead || m.Score > float64(r.Millis())
	}
	r.Advance(time.Minute)
	free := r.Free(l)
	if !ahead && free != rate {
		t.Errorf("once all expired, %d are free of %d", free, rate)
	}
	if !ahead && !r.Try(l, min(rate, record)) {
		t.Errorf("once all expired, %d were not granted", rate)
	}
	if after, err := l.State(t.Context()); err != nil || !after.Consistent && !ahead {
		t.Errorf("once all expired, the state is %+v, %v", after, err)
	}
}

// setsRate sets a rate whatever is stored; after that everything must work.
func setsRate(r *rig.Rig, l *rratelimiter.Limiter) {
	r.T.Helper()
	for _, opts := range [][]rratelimiter.SetOption{{rratelimiter.KeepState()}, nil} {
		rate := rratelimiter.PerMinute(8)
		r.SetRate(l, rate, opts...)
		live := live(r, l, 60000)
		state, err := l.State(r.T.Context())
		r.Must(err)
		if !state.Consistent || state.Rate != rate || state.Used != live || state.Available != max(0, 8-live) {
			r.T.Errorf("after SetRate, %d options, the state is %+v with %d live", len(opts), state, live)
		}
		if got, err := l.AcquireUpTo(r.T.Context(), 100); err != nil || got != state.Available {
			r.T.Errorf("after SetRate %d were granted of %d: %v", got, state.Available, err)
		}
		if r.Try(l, 1) {
			r.T.Error("after SetRate more was granted than is free")
		}
	}
	if live := live(r, l, 60000); live != 8 {
		r.T.Errorf("after SetRate %d live of 8", live)
	}
}

// TestWrongTypesAreReportedAndChangeNothing puts a value of another Redis type into each of the
// five keys.
func TestWrongTypesAreReportedAndChangeNothing(t *testing.T) {
	kinds := map[string]func(context.Context, *redis.Client, string) error{
		"string": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.Set(ctx, key, "text", 0).Err()
		},
		"list": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.RPush(ctx, key, "a", "b").Err()
		},
		"set": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.SAdd(ctx, key, "a", "b").Err()
		},
		"hash": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.HSet(ctx, key, "a", "b").Err()
		},
		"zset": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}).Err()
		},
	}
	right := [keys.Count]string{"hash", "string", "string", "zset", "zset"}
	// Delete removes the keys of the right type; all others change nothing.
	counting := []string{
		"Allow", "Peek", "Take", "TakeUpTo", "TakeAll", "TryAcquire", "TryAcquireTimeout", "Acquire", "AcquireUpTo",
		"Release", "Charge", "ChargeAll", "AllowAll", "AllowAllN",
		"AcquireAll", "AcquireAllN", "TryAcquireAllTimeout", "AvailablePermits", "State", "Glance", "Repair", "Reset",
		"Delete", "Rename",
		"RenameNX",
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at, used := range map[int][]string{ // methods that must return WRONGTYPE; the others must not fail
			keys.Config: append(slices.Clone(counting), "Config", "TrySetRate", "SetRate", "SetRate, KeepState",
				"UpdateRate"),
			keys.Value:         append(slices.Clone(counting), "SetRate", "SetRate, KeepState", "UpdateRate"),
			keys.Permits:       append(slices.Clone(counting), "SetRate", "SetRate, KeepState", "UpdateRate"),
			keys.ClientValue:   append(slices.Clone(counting), "SetRate", "SetRate, KeepState", "UpdateRate"),
			keys.ClientPermits: append(slices.Clone(counting), "SetRate", "SetRate, KeepState", "UpdateRate"),
		} {
			for nth, kind := range slices.Sorted(maps.Keys(kinds)) {
				if kind == right[at] {
					continue
				}
				r := rig.New(t, s)
				l := r.Limiter("rl")
				rate := rratelimiter.Rate{Permits: 10, Interval: time.Minute}
				if at == keys.ClientValue || at == keys.ClientPermits {
					rate.Type = rratelimiter.PerClient
				}
				methods := asked(r, l)
				if rate.Type == rratelimiter.PerClient { // a rate of another type has other keys
					methods["SetRate, KeepState"] = func(ctx context.Context) error {
						return l.SetRate(ctx, rate, rratelimiter.KeepState())
					}
				}
				for turn, method := range slices.Sorted(maps.Keys(methods)) {
					// The embedded server runs scripts slowly: each kind meets some of the methods,
					// each method some kinds.
					if !s.IsReal() && (turn+nth)%len(kinds) != 0 {
						continue
					}
					call := methods[method]
					r.Wipe()
					r.SetRate(l, rate)
					r.Try(l, 3)
					r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[at]).Err())
					r.Must(kinds[kind](t.Context(), r.Redis, rig.Keys(l)[at]))
					before := r.Dump()
					err := call(t.Context())
					what := fmt.Sprintf("%s with a %s in %s", method, kind, rig.Keys(l)[at])
					if key := rig.Keys(l)[at]; r.Dump()[key] != before[key] {
						t.Errorf("%s changed that key: from %s to %s", what, before[key], r.Dump()[key])
					}
					var answer redis.Error
					switch {
					case !slices.Contains(used, method):
						if err != nil {
							t.Errorf("%s: %v", what, err)
						}
					case !errors.As(err, &answer) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
						!redis.HasErrorPrefix(err, "WRONGTYPE"):
						t.Errorf("%s: %v, want the error of Redis (WRONGTYPE)", what, err)
					case !strings.Contains(err.Error(), `"rl"`) && !strings.HasPrefix(method, "AllowAll") &&
						method != "TakeAll":
						t.Errorf("%s: %q does not name the limiter", what, err)
					case method == "Delete":
						for i, key := range rig.Keys(l) {
							if left := r.Redis.Exists(t.Context(), key).Val() == 1; left != (i == at) {
								t.Errorf("%s: %s is left: %v", what, key, left)
							}
						}
					default:
						r.Unchanged(before, what)
					}
				}
			}
		}
		// The keys of the other rate type do not matter.
		r := rig.New(t, s)
		r.Wipe()
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		r.Must(r.Redis.RPush(t.Context(), rig.Keys(l)[keys.ClientValue], "a").Err())
		r.Must(r.Redis.RPush(t.Context(), rig.Keys(l)[keys.ClientPermits], "a").Err())
		if !r.Try(l, 10) || r.Release(l, 4) != 4 || r.Free(l) != 4 {
			t.Error("wrong types in keys that are not used have an effect")
		}
	})
}
