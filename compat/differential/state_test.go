package differential

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// state_test.go represents the state of a limiter as Go values. One script reads it, one copies it,
// and plain commands write it.

// clientID is the client id of both sides: PER_CLIENT limiters use the keys of this client.
const clientID = "client"

// A config is a rate as passed to setRate. Times are in ms.
type config struct{ rate, interval, kind, keepAlive int64 }

func (c config) String() string { return c.goRate().String() }

func (c config) goRate() rratelimiter.Rate {
	return rratelimiter.Rate{
		Type: rratelimiter.RateType(c.kind), Permits: c.rate, Interval: time.Duration(c.interval) * time.Millisecond,
		KeepAlive: time.Duration(c.keepAlive) * time.Millisecond,
	}
}

// A record is a grant.
type record struct {
	at, permits int64
	member      string
}

// A pair is the free permits and the records of a limiter, or of one of its clients. valueEnd and
// recordsEnd are expiry times in ms since 1970 by the server's clock, 0 for none. In an expected
// state a negative end means "none, or this one".
type pair struct {
	value      string // "" where there is none
	valueEnd   int64
	records    []record // oldest first
	recordsEnd int64
}

// A state is all that Redis stores for a limiter.
type state struct {
	fields map[string]string
	end    int64
	pairs  [2]pair // by type: the shared pair, the client's pair
}

const readText = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function lives(key)
  local ends = redis.pcall('PEXPIRETIME', key) -- since Redis 7.0
  if type(ends) == 'table' then
    ends = redis.call('PTTL', key)
    ends = ends < 0 and 0 or now + ends
  end
  return math.max(0, ends)
end
local answer = { redis.call('HGETALL', KEYS[1]), lives(KEYS[1]) }
for own = 0, 1 do
  local value, permits = KEYS[2 + own], KEYS[4 + own]
  answer[#answer + 1] = redis.call('GET', value) or ''
  answer[#answer + 1] = lives(value)
  answer[#answer + 1] = redis.call('ZRANGE', permits, 0, -1, 'WITHSCORES')
  answer[#answer + 1] = lives(permits)
end
return answer`

// copyText copies the content of the first five keys to the second five.
const copyText = `
for i = 1, 5 do
  redis.call('DEL', KEYS[i + 5])
  redis.call('COPY', KEYS[i], KEYS[i + 5])
end`

var readSHA, copySHA = hash(readText), hash(copyText)

func readInto(ctx context.Context, p redis.Pipeliner, name string) *redis.Cmd {
	return p.EvalSha(ctx, readSHA, keysOf(name, clientID))
}

func copyOver(ctx context.Context, p redis.Pipeliner, from, to string) {
	p.EvalSha(ctx, copySHA, append(keysOf(from, clientID), keysOf(to, clientID)...))
}

// parseState parses a reply of readInto.
func parseState(cmd *redis.Cmd) (state, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return state{}, err
	}
	s := state{fields: map[string]string{}, end: reply[1].(int64)}
	fields := reply[0].([]any)
	for i := 0; i < len(fields); i += 2 {
		s.fields[fields[i].(string)] = fields[i+1].(string)
	}
	for kind := range s.pairs {
		part := reply[2+4*kind:]
		p := pair{value: part[0].(string), valueEnd: part[1].(int64), recordsEnd: part[3].(int64)}
		members := part[2].([]any)
		for i := 0; i < len(members); i += 2 {
			score, err := strconv.ParseFloat(members[i+1].(string), 64) // with fractions on short intervals
			at := int64(math.Ceil(score))
			if err != nil {
				return s, err
			}
			member := members[i].(string)
			r, err := rratelimiter.UnpackRecord([]byte(member))
			if err != nil {
				return s, err
			}
			p.records = append(p.records, record{at, int64(r.Permits), member})
		}
		s.pairs[kind] = p
	}
	return s, nil
}

// write replaces all that is stored under a name. Expiry times follow this machine's clock, which
// is also the server's.
func (s state) write(ctx context.Context, p redis.Pipeliner, name string) {
	keys := keysOf(name, clientID)
	p.Del(ctx, keys...)
	expire := func(key string, end int64) {
		if end > 0 {
			p.Do(ctx, "pexpireat", key, end) // PExpireAt takes no year after 2262
		}
	}
	for field, value := range s.fields {
		p.HSet(ctx, keys[0], field, value)
	}
	expire(keys[0], s.end)
	for kind, pair := range s.pairs {
		if pair.value != "" {
			p.Set(ctx, keys[1+kind], pair.value, 0)
			expire(keys[1+kind], pair.valueEnd)
		}
		if len(pair.records) > 0 {
			members := make([]redis.Z, len(pair.records))
			for i, r := range pair.records {
				members[i] = redis.Z{Score: float64(r.at), Member: r.member}
			}
			p.ZAdd(ctx, keys[3+kind], members...)
			expire(keys[3+kind], pair.recordsEnd)
		}
	}
}

func (s state) clone() state {
	s.fields = maps.Clone(s.fields)
	for i := range s.pairs {
		s.pairs[i].records = slices.Clone(s.pairs[i].records)
	}
	return s
}

// number returns a numeric field of the configuration as this library counts with it: from 0 to
// 10^15; 0 if the field is not a number.
func (s *state) number(field string) int64 {
	n, _ := strconv.ParseInt(s.fields[field], 10, 64)
	return min(max(n, 0), 1e15)
}

func (s *state) initialized() bool {
	return s.fields["rate"] != "" && s.fields["interval"] != "" && s.fields["type"] != ""
}

// pair returns the pair that the limiter's type selects.
func (s *state) pair() *pair { return &s.pairs[s.kind()] }

func (s *state) kind() int {
	if s.fields["type"] == "1" {
		return 1
	}
	return 0
}

// number returns the free permits. It returns false unless they are stored in the form in which
// Redis writes integers.
func (p *pair) number() (int64, bool) {
	n, err := strconv.ParseInt(p.value, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == p.value
}

func (p *pair) set(value int64) { p.value = strconv.FormatInt(value, 10) }

// sums returns the permits in expired records (dated edge or earlier), the permits in live records,
// and the live records.
func (p *pair) sums(edge int64) (expired, live int64, living []record) {
	for i, r := range p.records {
		if r.at > edge {
			for _, l := range p.records[i:] {
				live += l.permits
			}
			return expired, live, p.records[i:]
		}
		expired += r.permits
	}
	return expired, 0, nil
}

// Failures of a call, in this test's words.
const (
	uninitialized = "not initialized"
	exceeds       = "more than the rate"
)

// An answer is what a call returns.
type answer struct {
	failure string
	granted bool  // permits were granted, or the operation was done
	wait    int64 // RetryAfter of a refusal, in ms
	amount  int64 // free, acquired or released permits
}

func (a answer) String() string {
	switch {
	case a.failure != "":
		return "fails: " + a.failure
	case a.amount != 0:
		return strconv.FormatInt(a.amount, 10)
	case a.granted:
		return "yes"
	case a.wait > 0:
		return fmt.Sprintf("no, wait %d ms", a.wait)
	}
	return "no"
}

// An outcome is an answer and the state after the call.
type outcome struct {
	answer
	state
}

// differences lists the differences between two states. Expiry times may differ by allowance,
// because the two sides set them at different moments. Record ids are ignored.
func (s *state) differences(other *state, allowance time.Duration) []string {
	var list []string
	say := func(what string, a, b any) { list = append(list, fmt.Sprintf("%s: %v, %v", what, a, b)) }
	ends := func(what string, a, b int64) {
		if a < 0 {
			if b == 0 {
				return
			}
			a = -a
		}
		if (a == 0) != (b == 0) || math.Abs(float64(a-b)) > float64(allowance.Milliseconds()) {
			say("TTL of "+what, lasts(a), lasts(b))
		}
	}
	if !maps.Equal(s.fields, other.fields) {
		say("configuration", s.fields, other.fields)
	}
	ends("the configuration", s.end, other.end)
	for kind, whose := range []string{"", "client's "} {
		a, b := s.pairs[kind], other.pairs[kind]
		if a.value != b.value {
			say(whose+"value", strconv.Quote(a.value), strconv.Quote(b.value))
		}
		ends(whose+"value", a.valueEnd, b.valueEnd)
		if !slices.Equal(a.anonymous(), b.anonymous()) {
			say(whose+"records", a, b)
		}
		ends(whose+"records", a.recordsEnd, b.recordsEnd)
	}
	return list
}

// anonymous returns the records without their ids, in an order that does not depend on the ids.
func (p *pair) anonymous() []record {
	list := slices.Clone(p.records)
	for i := range list {
		list[i].member = ""
	}
	slices.SortFunc(list, func(a, b record) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return int(a.permits - b.permits)
	})
	return list
}

func (p pair) String() string {
	if p.value == "" && len(p.records) == 0 {
		return "nothing"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "value %q", p.value)
	for i, r := range p.anonymous() {
		if i == 20 {
			fmt.Fprintf(&text, " and %d more", len(p.records)-i)
			break
		}
		fmt.Fprintf(&text, " %d@%d", r.permits, r.at-epoch)
	}
	if p.valueEnd != 0 {
		fmt.Fprintf(&text, " value lives %s", lasts(p.valueEnd))
	}
	if p.recordsEnd != 0 {
		fmt.Fprintf(&text, " records live %s", lasts(p.recordsEnd))
	}
	return text.String()
}

func (s state) String() string {
	text := fmt.Sprintf("%v", s.fields)
	if s.end != 0 {
		text += " lives " + lasts(s.end)
	}
	return text + "; shared " + s.pairs[0].String() + "; client's " + s.pairs[1].String()
}

// lasts formats the remaining TTL, rounded to minutes so that repeated runs agree.
func lasts(end int64) string {
	switch {
	case end == 0:
		return "for ever"
	case end < 0:
		return "for ever or " + lasts(-end)
	}
	return time.Until(time.UnixMilli(end)).Round(time.Minute).String()
}
