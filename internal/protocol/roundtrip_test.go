package protocol

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// An echo is a script made of parts of another one. It reads its arguments as that script does, and returns what it read.
type echo struct {
	client *redis.Client
	text   string
	values []string // what it returns, as Lua expressions
}

// newEcho takes from a script its constants, some functions, and the top-level statements that assign ARGV to locals or
// match one of the patterns. After these it runs more, and returns the values. A value is a Lua expression, or a pattern
// of flagIn, which says whether a flag is set.
func newEcho(
	tb testing.TB, client *redis.Client, s *script.Script, functions, statements []string, more string, values ...string,
) echo {
	tb.Helper()
	e := echo{client: client}
	var spans [][]int // in the order of the script
	take := func(pattern string, n int) {
		found := regexp.MustCompile(pattern).FindAllStringIndex(s.Text, n)
		if found == nil {
			tb.Fatalf("the script has nothing like %s:\n%.60s", pattern, s.Text)
		}
		spans = append(spans, found...)
	}
	take(`(?m)^local (call|[A-Z])[\w, ]* = .+\n`, -1)
	if !slices.Contains(functions, "read_request") { // that reads ARGV itself
		take(`(?m)^local [a-z_, ]+ = .*ARGV.*\n`, -1)
	}
	for _, name := range functions {
		take(`(?ms)^local function `+name+`\(.*?^end\n`, 1)
	}
	for _, pattern := range statements {
		take(`(?m)^`+pattern+`\n`, 1)
	}
	slices.SortFunc(spans, func(a, b []int) int { return a[0] - b[0] })
	var text, shown strings.Builder
	for _, span := range spans {
		text.WriteString(s.Text[span[0]:span[1]])
	}
	text.WriteString(more)
	for _, value := range values {
		if strings.Contains(value, "FLAG") {
			value = flagIn(tb, s, value) + " ~= nil"
		}
		local := `local (function )?(\w+, )*` + regexp.MustCompile(`^\w+`).FindString(value) + `\b`
		if !regexp.MustCompile(local).MatchString(text.String()) {
			tb.Fatalf("the script has no local of %s:\n%.60s", value, s.Text)
		}
		fmt.Fprintf(&shown, "show(%s),\n", value)
		e.values = append(e.values, value)
	}
	text.WriteString(`
local function show(value)
  return type(value) == 'number' and string.format('%.17g', value + 0) or type(value) .. ' ' .. tostring(value)
end
return {` + shown.String() + "}")
	e.text = text.String()
	return e
}

// only returns the first group of the only match.
func only(tb testing.TB, text, pattern string) string {
	tb.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		tb.Fatalf("the script has %d matches of %s:\n%.60s", len(found), pattern, text)
	}
	return found[0][1]
}

// flagIn returns the expression with which a script looks for a flag. The pattern has FLAG for it, and OTHER for another.
func flagIn(tb testing.TB, s *script.Script, pattern string) string {
	tb.Helper()
	const looks = `find\([\w.]+, (?:'[a-z]'|[A-Z_]+), 1, true\)`
	escape := strings.NewReplacer("FLAG", "("+looks+")", "OTHER", looks, "(", `\(`, ")", `\)`, "[", `\[`, ".", `\.`)
	return only(tb, s.Text, escape.Replace(pattern))
}

// check runs e with arguments and compares what it read. Integers are compared as the doubles that Lua has.
func (e echo) check(t *testing.T, what string, keys []string, args []any, want ...any) {
	t.Helper()
	got, err := e.client.Eval(context.Background(), e.text, keys, args...).Slice()
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, e.text)
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d values for %d: %q", what, len(got), len(want), got)
	}
	for i, w := range want {
		text := ""
		switch w := w.(type) {
		case nil:
			text = "nil nil"
		case bool:
			text = fmt.Sprintf("boolean %v", w)
		case string:
			text = "string " + w
		case float64:
			text = fmt.Sprintf("%.17g", w)
		case int64:
			text = fmt.Sprintf("%.17g", float64(w))
		default:
			t.Fatalf("%s: %s is to be a %T", what, e.values[i], w)
		}
		if got[i] != text {
			t.Errorf("%s: %s is %q, want %q, of the arguments %q", what, e.values[i], got[i], text, args)
		}
	}
}

// within returns v, or, if that is out of bounds, a number that is not.
func within(v, low, high int64) int64 {
	if v < low || v > high {
		return low + int64(uint64(v)%uint64(high-low+1))
	}
	return v
}

const (
	latest = 1 << 51  // µs since the epoch: up to here a double of ms is exact to the µs
	figure = 1e15 - 1 // longer numbers are none in a configuration
)

// clockOf returns the time in µs that a script has of a clock: before 1970, in whole ms.
func clockOf(micros int64) int64 {
	if micros < 0 {
		return micros / 1000 * 1000
	}
	return micros
}

// orNil returns the number, or nil for 0.
func orNil(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// ownRate returns a rate that a limiter can have, or none.
func ownRate(permits, interval, keepAlive int64, own, ofClient bool) (r Rate) {
	if own {
		r = Rate{Permits: within(permits, 0, figure), Interval: within(interval, 1, figure), KeepAlive: within(keepAlive, 0, figure)}
		if ofClient {
			r.Type = 1
		}
	}
	return r
}

// limiterOf returns what read_config returns where no rate is set, for limiterValues and the caller's rate.
func limiterOf(r Rate) []any {
	if r == (Rate{}) {
		return []any{nil, nil, nil, nil, nil}
	}
	return []any{r.Permits, r.Interval, r.Type == 1, r.KeepAlive, r.text()}
}

var (
	configFunctions = []string{"choose_keys", "parse_number", "new_limiter", "forget_ended_state", "read_config"}
	timeFunctions   = []string{"read_clock", "to_micros"}
	limiterValues   = []string{"limiter.rate", "limiter.interval", "limiter.own", "limiter.keep_alive"}
)

func keysOf(limiters int) (keys []string) {
	for i := range 5 * limiters {
		keys = append(keys, "key"+strconv.Itoa(i))
	}
	return keys
}

func FuzzAcquire(f *testing.F) {
	client := redistest.Embedded(f).Client()
	functions := slices.Concat([]string{"read_groups", "permits_of", "client_prefix", "grant_score"}, configFunctions, timeFunctions)
	statements := []string{`wanted, configured_rate = .*`, `granularity, lease, lease_bucket, since = .*`, `local general = .*`, `local first_group = .*`, `local prefix = string\.sub\(record, .*`}
	more := `
local groups, strict = read_groups(first_group)
local listed = ''
for _, group in ipairs(groups) do
  listed = listed .. string.format('%.0fx%.0f ', group.size, group.count)
end
local limiter = read_config(0, configured_rate) or {}
local now = client_now ~= '' and read_clock(client_now) or nil
local score = now and limiter.interval and ` + only(f, AcquireScript.Text, `score, bucketed = (grant_score\(.*\))\n`) + `
local ends = now and limiter.interval and lease and ` + only(f, AcquireScript.Text, `local ends, is_bucket = (grant_score\(.*\))\n`) + "\n"
	values := slices.Concat([]string{
		"now and to_micros(now)", "prefix", "permits_of(record)", "wanted", "granularity",
		"granularity and permits_of(string.sub(prefix, 1, #client_prefix(prefix) + 4))", "listed", "strict",
		"lease", "lease_bucket", "score and now > 0 and to_micros(score) or nil",
		"ends and now > 0 and to_micros(ends) or nil",
		"local partly, queued = FLAG, OTHER", "local detail = FLAG", "load_state(limiter, now, FLAG, OTHER)",
		"load_state(limiter, now, OTHER, FLAG)", "local partly, queued = OTHER, FLAG", "if bucketed and not FLAG then",
		"local enforced = FLAG", "if groups and FLAG and not",
		"grant_score(now, limiter.interval, granularity, false, FLAG)",
		"local general = FLAG", "live and FLAG then", "FRACTIONS_BELOW or FLAG)", "local telling = flags ~= '' and FLAG and", // in the plain grant
	}, limiterValues, []string{"configured_rate"})
	// A retry also calls find_attempt, of which the echo has only the parameters and how it knows recent ids.
	search := `
local function find_attempt` + only(f, AcquireScript.Text, `local function find_attempt(\(.*\))`) + `
  local known = ''
  for i = 6, #KEYS do
    local a, b, c = string.byte(KEYS[i], 1, 3)
    known = known .. tostring(` + only(f, AcquireScript.Text, `others or not (find\(recent, .*, 1, true\))\n`) + ` ~= nil) .. ' '
  end
  return prefix, id_count, to_micros(since), whole, shared, known
end
limiter.records = KEYS[4]
` + only(f, AcquireScript.Text, `(local whole = .*)\n`) + `
local first, id_count, since, all, shared, known = ` + only(f, AcquireScript.Text, `(find_attempt\(limiter\.records, .*\))\n`) + "\n"
	attempt := newEcho(f, client, AcquireScript, functions, statements, more, values...)
	retry := newEcho(f, client, AcquireScript, functions, statements, more+search,
		append(values, "first", "id_count", "since", "all", "shared", "known")...)

	for _, s := range []struct {
		micros, served, size, count, second       int64
		strict                                    byte
		bits                                      uint16
		permits, interval, keepAlive, granularity int64
		recent                                    string
	}{
		{1_700_000_000_123_456, 0, 1, 1, 0, 0, 0, 10, 1000, 0, 0, ""},
		{1_700_000_000_000_000, 7, 5, 3, 2, 1, 0xffff, 10, 150, 60000, 0, "\x01\x02\x03"},
		{-1_234_567, 0, math.MaxUint32, 2, 9, 2, 0x1000, 10, 1, 0, 50, "\xff\xff\xff\x00\x00\x00"},
		{0, 1_700_000_000_000_009, math.MaxInt64, 1, 0, 5, 0x5240, figure, 5000, 1, 100, "0123456789012345678901234567890"},
		{1_700_000_000_123_007, 0, 3, 0, 0, 0, 0x6155, 0, 199, 0, 40, "abc"},
		{1_700_000_000_999_999, 0, 1000, 1, 0, 0, 0x222a, 1, 200, 0, 1, "abcdef"},
		{1_700_000_000_999_999, 0, 2, 2, 7, 1, 0xd000, 1, 2000, 0, 150, ""}, // a lease
		{1_700_000_000_000_001, 0, 2, 2, 2, 1, 0x3007, 10, 100, 0, 0, ""},   // this one and the next tell all flags apart
		{1_700_000_000_000_001, 0, 2, 2, 2, 1, 0x0421, 10, 100, 0, 0, ""},
	} {
		f.Add(
			s.micros, s.served, s.size, s.count, s.second, s.strict, s.bits,
			s.permits, s.interval, s.keepAlive, s.granularity, []byte(s.recent),
		)
	}
	f.Fuzz(func(
		t *testing.T, micros, served, size, count, second int64, strict byte, bits uint16,
		permits, interval, keepAlive, granularity int64, recent []byte,
	) {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		now := within(micros, -latest, latest)
		o := Options{
			Own:      ownRate(permits, interval, keepAlive, bit(6), bit(7)),
			Enforced: bit(8), ServerTime: bit(9), RecordPerRequest: bit(10), Format: record.Format(bits >> 12 & 3),
		}
		if d := time.Duration(within(granularity, 0, 1e9)) * time.Millisecond; bit(14) && o.Format != record.Redisson313 {
			o.Lease = d
		} else {
			o.Granularity = d
		}
		identity, twin := record.NewIdentity("client"), record.NewIdentity("client")
		identity.StartAt(uint64(served))
		twin.StartAt(uint64(served))
		var e Encoder
		e.Init(o, identity, func() time.Time { return time.UnixMicro(now) })
		e.served.Store(within(served, 0, latest))

		var before RecentIDs
		keys, known := keysOf(1), ""
		for i := 0; i+3 <= len(recent); i += 3 {
			id := recent[i : i+3]
			before.Add(record.EndOf(id))
			keys = append(keys, string(id))
		}
		for i := 5; i < len(keys); i++ {
			known += fmt.Sprint(slices.Contains(keys[max(5, len(keys)-8):], keys[i])) + " "
		}

		var r AcquireRequest
		for call := range int64(2) { // the second one reuses the memory of the first
			r.Next(before)
			if bit(11) {
				r.Sets = int(2 + call) // from the third time on, the call is not refused
			}
			ask := Ask{UpTo: bit(0), Detail: bit(1), Rebuild: bit(2), Check: bit(3), Partial: bit(4), Apart: bit(5), Next: strict&4 > 0}
			listed, sum, requests := "", 0.0, int64(0)
			add := func(size, count int64) {
				ask.Groups = append(ask.Groups, Group{size, count})
				listed += fmt.Sprintf("%.0fx%d ", float64(size), count)
				sum += float64(size) * float64(count)
				requests += count
			}
			if count != 0 {
				add(within(size-call, 1, math.MaxInt64), within(count, 1, 1e6))
			}
			if second != 0 {
				add(within(second+call, 1, 1e15), 2)
			}
			ask.Strict = min(int(strict), len(ask.Groups))
			var ahead, bucket any
			if o.Lease > 0 && bit(15) {
				ask.Lease = within(second+1, 1, 1<<31)
				ahead, bucket = ask.Lease, o.Lease.Milliseconds()
			}

			ids := int64(1)
			if all := sum + float64(ask.Lease); all > math.MaxUint32 {
				ids += int64(min(all, 1e15)) / math.MaxUint32
			}
			if o.RecordPerRequest {
				ids += requests
			}
			held, wanted := int64(sum), any(sum)
			if sum > math.MaxUint32 || o.RecordPerRequest || ask.UpTo || ask.Partial || ask.Lease > 0 {
				held, wanted = 0, nil
			}
			var share any
			prefix := twin.AppendPrefix(nil, o.Format, int(ids))
			if o.Bucket() > 0 || ask.Lease > 0 {
				prefix = record.AppendShare(prefix, o.Format, uint32(held))
			}
			if o.Bucket() > 0 {
				share = held
			}
			since := clockOf(now)
			if o.ServerTime {
				since = e.served.Load()
			}
			want := func() []any {
				var clock, score, ends any
				if !o.ServerTime {
					clock = clockOf(now)
					if o.Own.Interval > 0 && clockOf(now) > 0 {
						score = o.Dated(now, o.Own.Interval, false)
						if ask.Lease > 0 {
							ends = o.Dated(now, o.Own.Interval, true)
						}
					}
				}
				return append([]any{
					clock, string(prefix), held, wanted, orNil(o.Bucket()), share, listed, int64(ask.Strict), ahead, bucket, score, ends, ask.UpTo, ask.Detail,
					ask.Rebuild, ask.Check, ask.Partial, ask.Apart, o.Enforced && r.Sets < 3, o.RecordPerRequest,
					o.Format == record.Redisson313, wanted == nil || share != nil || ask.Rebuild || len(ask.Groups) == 0,
					ask.Check, o.Format == record.Redisson313, ask.Next,
				}, limiterOf(o.Own)...)
			}
			attempt.check(t, "first attempt", keys[:5], r.Args(nil, &e, ask, false), want()...)

			now = within(now+1_234_567, -latest, latest)
			ask.Rebuild = true
			attempt.check(t, "retry that looks for nothing", keys[:5], r.Args(nil, &e, ask, false), want()...)
			var all any
			if wanted != nil && share == nil {
				all = string(r.member.bytes)
			}
			retry.check(t, "retry", keys, r.Args(nil, &e, ask, true),
				append(want(), string(prefix), ids, since, all, share != nil, known)...)
		}
	})
}

func FuzzAllowAll(f *testing.F) {
	const limiters = 3
	client := redistest.Embedded(f).Client()
	functions := slices.Concat([]string{"read_numbers", "read_request", "score_of", "permits_of", "client_prefix", "grant_score"}, configFunctions, timeFunctions)
	var echoes [limiters]echo
	for i := range echoes {
		more := "local i = " + strconv.Itoa(i) + `
local request = read_request(i, counts)
` + only(f, AllowAllScript.Text, `(local flags = request.*)\n`) + `
local number = i
local limiter = ` + only(f, AllowAllScript.Text, `local limiter, fault = (read_config\(.*\))\n`) + ` or {}
local now = request.client_now ~= '' and read_clock(request.client_now) or nil
local score = now and limiter.interval and score_of(request, limiter, now)
`
		echoes[i] = newEcho(f, client, AllowAllScript, functions, []string{"local limiters = .*", "local client_now, groups = .*", "local counts, all = .*"}, more, slices.Concat([]string{
			"limiters", "now and to_micros(now)", "request.prefix", "permits_of(request.record)", "request.total", "request.id_count", "request.granularity",
			"request.granularity and permits_of(string.sub(request.prefix, 1, #client_prefix(request.prefix) + 4))",
			"score and now > 0 and to_micros(score) or nil", "request.since and to_micros(request.since)", "#counts", "counts[1]", "counts[2]",
			"#request.sizes", "request.sizes[1]", "request.sizes[2]",
			"local enforced = FLAG", "load_state(limiter, now, FLAG, OTHER)", "load_state(limiter, now, OTHER, FLAG)",
			"grant_score(now, limiter.interval, request.granularity, nil, FLAG)", "if FLAG then\n      for group",
		}, limiterValues, []string{"request.configured_rate"})...)
	}

	for _, s := range []struct {
		micros, n0, n1, n2                        int64
		bits                                      uint64
		permits, interval, keepAlive, granularity int64
	}{
		{1_700_000_000_123_456, 1, 2, 3, 0, 10, 1000, 0, 0},
		{1_700_000_000_000_000, math.MaxUint32, 1 << 32, math.MaxInt64, 0x0fc0_1583_2f41, 7, 150, 5000, 30},
		{-1_000_001, 1, 1, 1, 0xffff_ffff_ffff, 0, 1, 0, 10},
		{1_700_000_000_999_001, 5, 6, 7, 0x0111_3555_1301, figure, 199, 1, 19},
		{1_700_000_000_999_001, 5, 6, 7, 0x0c30, figure, 199, 1, 19},
	} {
		f.Add(s.micros, s.n0, s.n1, s.n2, s.bits, s.permits, s.interval, s.keepAlive, s.granularity)
	}
	f.Fuzz(func(t *testing.T, micros, n0, n1, n2 int64, bits uint64, permits, interval, keepAlive, granularity int64) {
		now := within(micros, -latest, latest)
		groups := []JointGroup{{Count: 1 + int64(bits>>4&3)}}
		for _, n := range []int64{n0, n1, n2} {
			groups[0].Sizes = append(groups[0].Sizes, within(n, 1, math.MaxInt64))
		}
		if bits>>10&1 == 1 {
			groups = append(groups, JointGroup{Sizes: []int64{4, 5, 6}, Count: 2})
		}
		r := AllowAll{Groups: groups}
		var want [limiters][]any
		var ids [limiters]int64
		for i := range limiters {
			bit := func(n int) bool { return bits>>(16*i+n)&1 == 1 }
			w := Member{Encoder: &Encoder{}, Rebuild: bit(0), Check: bit(1), Sets: int(bits >> (16*i + 2) & 3)}
			o := Options{
				Own:      ownRate(permits+int64(i), interval, keepAlive, bit(6), bit(7)),
				Enforced: bit(8), ServerTime: bit(9), Format: record.Format(bits >> (16*i + 12) & 3), RecordPerRequest: bit(11),
				Granularity: time.Duration(within(granularity, 0, 1e9)) * time.Duration(i) * time.Millisecond,
			}
			identity, twin := record.NewIdentity("client"), record.NewIdentity("client")
			identity.StartAt(bits)
			twin.StartAt(bits)
			w.Init(o, identity, func() time.Time { return time.UnixMicro(now) })
			r.Members = append(r.Members, w)

			records := func(permits float64) float64 {
				if permits <= math.MaxUint32 {
					return 1
				}
				return 1 + math.Floor(math.Min(permits, 1e15)/math.MaxUint32)
			}
			var total, count float64
			for _, g := range groups {
				size := float64(g.Sizes[i])
				total += size * float64(g.Count)
				count += float64(g.Count) * records(size)
			}
			if !o.RecordPerRequest {
				count = records(total)
			}
			ids[i] = int64(count)
			prefix := twin.AppendPrefix(nil, o.Format, int(count))
			held := int64(min(total, math.MaxUint32))
			var share any
			if o.Bucket() > 0 {
				share = held
				prefix = record.AppendShare(prefix, o.Format, uint32(held))
			}
			var count2, size2 any
			if len(groups) > 1 {
				count2, size2 = groups[1].Count, groups[1].Sizes[i]
			}
			want[i] = append([]any{
				int64(limiters), nil, string(prefix), held, total, nil, orNil(o.Bucket()), share, nil, nil, int64(len(groups)), groups[0].Count, count2,
				int64(len(groups)), groups[0].Sizes[i], size2,
				o.Enforced && w.Sets < 3, w.Rebuild, w.Check, o.Format == record.Redisson313, o.RecordPerRequest,
			}, limiterOf(o.Own)...)
		}
		const clock, idCount, score, since = 1, 5, 8, 9 // in want
		first, served := now, within(now/2, 0, latest)
		for i := range r.Members {
			r.Members[i].served.Store(served)
		}
		for _, find := range []bool{false, true} {
			args := r.Args(nil, find)
			for i := range limiters {
				w := &r.Members[i]
				if !w.ServerTime {
					want[i][clock] = clockOf(now)
					if w.Own.Interval > 0 && clockOf(now) > 0 {
						want[i][score] = w.Dated(now, w.Own.Interval, false)
					}
				}
				if find {
					want[i][idCount] = ids[i]
					if want[i][since] = clockOf(first); w.ServerTime {
						want[i][since] = clockOf(served)
					}
				}
				echoes[i].check(t, fmt.Sprintf("limiter %d, find %v", i, find), keysOf(limiters), args, want[i]...)
			}
			now = within(now+1_234_567, -latest, latest)
		}
	})
}

func FuzzRequests(f *testing.F) {
	client := redistest.Embedded(f).Client()
	plain := func(s *script.Script, values ...string) echo { return newEcho(f, client, s, nil, nil, "", values...) }
	clock := "local now = client_now ~= '' and to_micros(read_clock(client_now)) or nil\n"
	clocked := func(s *script.Script, more string, values ...string) echo {
		return newEcho(f, client, s, timeFunctions, nil, more, append([]string{"now"}, values...)...)
	}
	trySetRate := plain(TrySetRateScript, "rate", "interval", "kind", "keep_alive")
	setRate := clocked(SetRateScript, clock, "rate", "interval", "kind", "keep_alive",
		"if not old_rate and FLAG then", "if FLAG and (not old_kind")
	rename := plain(RenameScript, "only_new")
	expire := plain(ExpireScript, "command", "time", "condition")
	release := clocked(ReleaseScript, clock, "wanted", "rebuild", "undone and to_micros(tonumber(undone))", "own")
	repair := clocked(RepairScript, clock, "dry ~= nil", "reset ~= nil")
	state := clocked(StateScript, clock, "only_config")
	glance := clocked(GlanceScript, clock)
	recount := clocked(RecountScript, clock, "newest", "last", "count", "sum", "seen")
	survey := plain(SurveyScript, "first", "limit", "own")
	collect := newEcho(f, client, CollectScript, []string{"read_clock"}, nil,
		"local time = "+only(f, CollectScript.Text, `(read_clock\(ARGV\[1\]\)),`)+"\n"+
			"local known = "+only(f, CollectScript.Text, `read_clock\((ARGV\[1\])\),`)+" ~= ''\n",
		"known and math.ceil(time * 1000 - 0.3) or nil", "idle", "dry ~= nil")

	for _, s := range []struct {
		micros, permits, interval, keepAlive, granted int64
		bits                                          byte
		one, two                                      string
	}{
		{1_700_000_000_123_456, 1, 2, 0, 0, 0, "", ""},
		{1_700_000_000_000_007, 10, 1000, 60_000, 1_700_000_000_000_001, 0xff, "new\x00est", "\xff"},
		{-5_000_001, 0, figure, 1, 99, 0x55, "a", "b"},
		{0, figure, 1, figure, 1_700_000_000_000_000, 0xaa, "PEXPIRE", "NX"},
	} {
		f.Add(s.micros, s.permits, s.interval, s.keepAlive, s.granted, s.bits, s.one, s.two)
	}
	f.Fuzz(func(t *testing.T, micros, permits, interval, keepAlive, granted int64, bits byte, one, two string) {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		now := within(micros, -latest, latest)
		e := Encoder{clock: func() time.Time { return time.UnixMicro(now) }}
		at := any(clockOf(now))
		if e.ServerTime = bit(0); e.ServerTime {
			at = nil
		}
		keys := keysOf(1)
		digits := func(n int64) any { return strconv.FormatInt(n, 10) } // scripts pass these texts on
		rate := ownRate(permits, interval, keepAlive, true, bit(1))
		figures := []any{digits(rate.Permits), digits(rate.Interval), digits(rate.Type), digits(rate.KeepAlive)}

		trySetRate.check(t, "TrySetRate", keys, TrySetRate{rate}.Args(), figures...)
		set := SetRate{Now: e.Now(), Rate: rate, Keep: bit(2), Update: bit(3)}
		setRate.check(t, "SetRate", keys, set.Args(),
			slices.Concat([]any{at}, figures, []any{set.Update, set.Keep})...)
		rename.check(t, "Rename", keysOf(2), Rename{bit(2)}.Args(), bit(2))
		ttl := Expire{Command: ExpireCommand(one), Time: keepAlive, Condition: ExpireCondition(two)}
		expire.check(t, "Expire", keys, ttl.Args(), one, digits(keepAlive), two)
		var undo, client any
		give := Release{Now: e.Now(), Permits: permits, Rebuild: bit(2), Granted: within(granted, 0, latest), Own: within(permits, 0, figure)}
		if give.Granted != 0 {
			undo, client = give.Granted, give.Own
		}
		release.check(t, "Release", keys, give.Args(), at, permits, give.Rebuild, undo, client)
		fix := Repair{Now: e.Now(), Dry: bit(2), Reset: bit(3)}
		repair.check(t, "Repair", keys, fix.Args(), at, fix.Dry, fix.Reset)
		idle := Collect{Now: e.Now(), Idle: Millis(within(interval, 0, figure)), Dry: bit(2)}
		collect.check(t, "Collect", keys, idle.Args(), at, idle.Idle.Milliseconds(), idle.Dry)
		read := Read{Now: e.Now(), ConfigOnly: bit(2)}
		state.check(t, "Read", keys, read.Args(), at, read.ConfigOnly)
		glance.check(t, "Read of glance", keys, read.Args(), at)
		page := Survey{First: int(within(permits, 0, 1<<31-1)), Count: int(within(interval, 0, 1<<31-1)), Own: bit(2)}
		survey.check(t, "Survey", keys, page.Args(), int64(page.First), int64(page.Count), page.Own)

		start := Recount{Now: e.Now()}
		recount.check(t, "Recount", keys, start.Args(), at, "", "", int64(0), int64(0), int64(0))
		_, progress, err := start.Reply([]any{int64(0), int64(More), one, two, permits, interval, permits})
		if err != nil {
			t.Fatal(err)
		}
		recount.check(t, "next Recount", keys, Recount{Now: e.Now(), Progress: progress}.Args(), at, one, two, permits, interval, permits)
	})
}

// fragment returns the text of a fragment of the scripts.
func fragment(t *testing.T, name string) string {
	text, err := fs.ReadFile(lua.Files, "shared/"+name+".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFlagsAreThoseOfScripts evaluates the flags that the scripts share.
func TestFlagsAreThoseOfScripts(t *testing.T) {
	want := map[string]rune{
		"ENFORCE": flagEnforce, "REBUILD": flagRebuild, "CHECK": flagCheck, "WHOLE_SCORES": flagWholeScores,
		"RECORD_EACH": flagRecordEach, "SERVER_TIME": flagServerTime, "NEXT": flagNext, "DETAIL": flagDetail,
		"UP_TO": flagUpTo, "STRICT_ONLY": flagStrictOnly, "APART": flagApart, "JOINT": flagJoint, "GENERAL": flagGeneral,
	}
	text := fragment(t, "flags")
	if n := strings.Count(text, "\nlocal "); n != len(want) {
		t.Errorf("the scripts have %d flags, %d here", n, len(want))
	}
	client := redistest.Embedded(t).Client()
	for name, letter := range want {
		if got, err := client.Eval(t.Context(), text+"return "+name, nil).Text(); got != string(letter) || err != nil {
			t.Errorf("%s is %q in the scripts, %q here: %v", name, got, letter, err)
		}
	}
}

// TestNotesAreThoseOfScripts evaluates the constants that the scripts share.
func TestNotesAreThoseOfScripts(t *testing.T) {
	const fractions = 200 // FRACTIONS_BELOW
	want := map[string]int64{
		"MORE": int64(More), "REBUILD_PENDING": int64(RebuildPending), "RATE_MISMATCH": int64(RateMismatch),
		"FOREIGN_WRITER": int64(ForeignWriter), "MANY": int64(Many),
		"MAX_NUMBER": mostPermits, "MAX_RECORD": math.MaxUint32, "FRACTIONS_BELOW": fractions,
		"MAX_EXPIRED": 2000, "MAX_ADDED": 256, // only scripts use these
	}
	for i, name := range []string{"MISSING", "GARBLED", "NEGATIVE", "ABOVE", "DRIFTED", "EMPTY", "LOW", "HIGH"} {
		want[name] = int64(repairs[i].note)
	}
	client := redistest.Embedded(t).Client()
	for name, value := range want {
		if got, err := client.Eval(t.Context(), fragment(t, "base")+"\nreturn "+name, nil).Int64(); got != value || err != nil {
			t.Errorf("%s is %d in the scripts, %d here: %v", name, got, value, err)
		}
	}
	var o Options
	if o.Dated(1, fractions-1, false) != 1 || o.Dated(1, fractions, false) != 1000 {
		t.Error("Dated has fractions of a ms with other intervals than scripts")
	}
}
