package envoylimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// stories_test.go sends random requests to services with random rules, and compares the responses
// with a model. The seed is always the same (see TestMain). To search longer:
//
//	go test ./envoylimit -run Stories -rapid.checks 100000 -rapid.seed 0 -timeout 2h

// Each field of a rule and of a request is drawn: a new one needs a place in domain, or in
// drawRequest.
func TestStoriesHaveEachField(t *testing.T) {
	for of, drawn := range map[reflect.Type]string{
		reflect.TypeFor[rules.Descriptor]():              "Key Value Rate HasRate Quota Shadow Postpaid Shared Lease Name ValueToMetric DetailedMetric Replaces Following",
		reflect.TypeFor[ratelimitv3.RateLimitRequest]():  "Domain Descriptors HitsAddend",
		reflect.TypeFor[ratelimit.RateLimitDescriptor](): "Entries Limit HitsAddend IsNegativeHits",
	} {
		var fields []string
		for _, f := range reflect.VisibleFields(of) {
			if f.IsExported() {
				fields = append(fields, f.Name)
			}
		}
		if got := strings.Join(fields, " "); got != drawn {
			t.Errorf("%v has the fields %s; the stories know %s", of, got, drawn)
		}
	}
}

// Each of two domains has a rule for any value of k, perhaps one for the values a*, and one for k2
// with m. The rates are per second or per minute.
type domain struct {
	unit            typev3.RateLimitUnit
	any, some, next int64
	wild            bool
	shadow, lease   bool // of the rule for any value
	postpaid        bool // of that rule, if it has no lease
	replaces        bool // the rule for a* replaces that for any value
}

var (
	intervals = map[typev3.RateLimitUnit]time.Duration{
		typev3.RateLimitUnit_SECOND: time.Second, typev3.RateLimitUnit_MINUTE: time.Minute,
	}
	domains = []string{"shop", "bank"}
)

func (d domain) file() string {
	text := "domains:\n"
	for _, name := range domains {
		text += "  " + name + ":\n" + d.rules()
	}
	return strings.ReplaceAll(text, "/UNIT", "/"+intervals[d.unit].String())
}

func (d domain) rules() string {
	text := fmt.Sprintf("    - {key: k, name: any, rate: %d/UNIT", d.any)
	if d.shadow {
		text += ", shadow: true"
	}
	if d.lease {
		text += ", lease: 100ms"
	}
	if d.postpaid {
		text += ", postpaid: true"
	}
	text += "}\n"
	if d.wild {
		text += fmt.Sprintf("    - {key: k, value: 'a*', shared: true, rate: %d/UNIT", d.some)
		if d.replaces {
			text += ", name: some, replaces: any"
		}
		text += "}\n"
	}
	return text + fmt.Sprintf("    - {key: k2, descriptors: [{key: m, rate: %d/UNIT}]}\n", d.next)
}

// An asked is what a descriptor asks, by the model.
type asked struct {
	limiter  string // in its domain
	rate     int64
	interval time.Duration
	hits     uint64
	shadow   bool
	postpaid bool
}

const override = 3 // requests per unit

func (d domain) asked(r *ratelimitv3.RateLimitRequest) (all []asked) {
	if !slices.Contains(domains, r.Domain) {
		return nil
	}
	replaced := false
	for _, one := range r.Descriptors {
		a := asked{hits: uint64(max(1, r.HitsAddend))}
		if one.HitsAddend != nil {
			a.hits = one.HitsAddend.Value
		}
		value := one.Entries[0].Value
		switch first := one.Entries[0].Key; {
		case one.Limit != nil:
			a.limiter, a.rate = "override "+value, override
		case first == "k" && d.wild && value[0] == 'a':
			a.limiter, a.rate = "some", d.some
			replaced = replaced || d.replaces
		case first == "k":
			a.limiter, a.rate, a.shadow, a.postpaid = "any "+value, d.any, d.shadow, d.postpaid
		case len(one.Entries) == 2:
			a.limiter, a.rate = "next "+value+one.Entries[1].Value, d.next
		}
		if a.limiter != "" {
			a.interval = intervals[d.unit]
			all = append(all, a)
		}
	}
	if !replaced {
		return all
	}
	var left []asked
	for _, a := range all {
		if !strings.HasPrefix(a.limiter, "any ") {
			left = append(left, a)
		}
	}
	return left
}

func drawRequest(t *rapid.T, d domain) *ratelimitv3.RateLimitRequest {
	hits := []uint64{1, 2, 0, uint64(d.any), uint64(d.any) + 1, uint64(d.next), 1 << 62}
	r := to(rapid.SampledFrom([]string{"shop", "shop", "bank", "none"}).Draw(t, "domain"))
	r.HitsAddend = uint32(rapid.SampledFrom(hits[:6]).Draw(t, "hits of the request"))
	for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
		one := of(rapid.SampledFrom([]string{"k=b", "k=a1", "k=a2", "k2=x m=y", "k2=x", "o=1"}).Draw(t, "entries"))
		if one.Entries[0].Key == "o" {
			one.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: override, Unit: d.unit,
			}
		}
		if rapid.Bool().Draw(t, "own hits") {
			one.HitsAddend = wrapperspb.UInt64(rapid.SampledFrom(hits).Draw(t, "hits"))
		}
		one.IsNegativeHits = rapid.IntRange(0, 49).Draw(t, "negative") == 49
		r.Descriptors = append(r.Descriptors, one)
	}
	return r
}

// A take is permits that a limiter has granted.
type take struct {
	at      time.Time
	permits int64
}

// A model is a sliding window for each limiter. A debt is permits that count from a later time on.
type model map[string][]take

func (m model) free(limiter string, a asked, now time.Time) int64 {
	free := a.rate
	for _, t := range m[limiter] {
		if now.Sub(t.at) < a.interval {
			free -= t.permits
		}
	}
	return free
}

func (m model) fits(limiter string, a asked, now time.Time) bool {
	needs := max(1, a.hits) // 0 hits ask whether a permit is free
	if a.postpaid {
		needs = 1
	}
	return needs <= uint64(a.rate) && int64(needs) <= m.free(limiter, a, now)
}

// charge counts all hits, up to a debt of ten intervals: each permit from the time at which it is
// free.
func (m model) charge(limiter string, a asked, now time.Time) {
	left := min(int64(a.hits), m.free(limiter, a, now)+10*a.rate)
	for at := now; left > 0; {
		if n := min(left, m.free(limiter, a, at)); n > 0 {
			m[limiter] = append(m[limiter], take{at, n})
			left -= n
			continue
		}
		next := time.Time{} // when the next permits return
		for _, t := range m[limiter] {
			if back := t.at.Add(a.interval); back.After(at) && (next.IsZero() || back.Before(next)) {
				next = back
			}
		}
		at = next
	}
}

// decide returns whether a request is over a limit. If it is not, its permits are taken.
func (m model) decide(domain string, all []asked, now time.Time) (over bool) {
	sums := map[string]asked{}
	for _, a := range all {
		a.hits = min(a.hits, 1<<60) + sums[domain+" "+a.limiter].hits
		sums[domain+" "+a.limiter] = a
	}
	for limiter, a := range sums {
		over = over || !a.shadow && !m.fits(limiter, a, now)
	}
	for limiter, a := range sums {
		if a.postpaid {
			m.charge(limiter, a, now)
		} else if m.fits(limiter, a, now) && (a.shadow || !over) {
			m[limiter] = append(m[limiter], take{now, int64(a.hits)})
		}
	}
	return over
}

// Failures are the errors that a policy was told. Calls can tell them after their request has
// ended.
type failures struct {
	mu  sync.Mutex
	all []error
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err)
}

// take returns the errors since it was last called.
func (f *failures) take() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	f.all = nil
	return all
}

// A request is over the limit exactly if its descriptors together ask a limiter for more than is
// free, and then it takes nothing. Postpaid hits always count, and are over the limit if no permit
// was free before. A valid request gets no error, unless a limit applies and Redis fails: then it
// takes nothing, either.
func TestStories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]int64{1, 2, 3, 0, 10})
		unit := rapid.SampledFrom([]typev3.RateLimitUnit{typev3.RateLimitUnit_SECOND, typev3.RateLimitUnit_MINUTE})
		d := domain{unit: unit.Draw(rt, "unit"), any: rate.Draw(rt, "rate")}
		d.some, d.next = rate.Draw(rt, "rate of a*"), rate.Draw(rt, "rate of k2")
		d.wild, d.shadow = rapid.Bool().Draw(rt, "a*"), rapid.IntRange(0, 3).Draw(rt, "shadow") == 3
		d.lease = rapid.IntRange(0, 3).Draw(rt, "lease") == 3
		d.postpaid = !d.lease && rapid.IntRange(0, 2).Draw(rt, "postpaid") == 2
		d.replaces = d.wild && rapid.Bool().Draw(rt, "replaces")
		s := limittest.Start()
		defer s.Close()
		var failed failures
		policy := patient(httplimit.FailClosed)
		policy.Logger = slog.New(slog.DiscardHandler)
		policy.OnError = func(_ context.Context, err error) { failed.add(err) }
		service := envoylimit.New(s.Client(), policy)
		f, err := rules.ParseFile("f", []byte(d.file()))
		if err != nil {
			rt.Fatal(err)
		}
		service.SetDomains(f.Domains)
		m, faulty := model{}, false // faulty: Redis has failed, and late errors can tell so
		for i := range rapid.IntRange(1, 6).Draw(rt, "requests") {
			unit := intervals[d.unit]
			pauses := []time.Duration{0, time.Millisecond, unit / 2, unit - time.Millisecond, unit}
			switch {
			case d.lease: // its permits may return late by 125 ms
				pauses = []time.Duration{0, unit/2 + 200*time.Millisecond, 2 * unit}
			case d.postpaid: // permits of a debt that return within an eighth of the interval return together
				pauses = []time.Duration{0, unit / 2, unit, 5 * unit}
			}
			s.Advance(rapid.SampledFrom(pauses).Draw(rt, "pause"))
			r := drawRequest(rt, d)
			invalid := false
			for _, one := range r.Descriptors {
				invalid = invalid || one.IsNegativeHits
			}
			// a lease decides without Redis
			all, fault := d.asked(r), rapid.IntRange(0, 9).Draw(rt, "fault") == 9 && !d.lease
			if fault {
				s.Fail("ERR the story's fault")
				faulty = true
			}
			got, err := service.ShouldRateLimit(t.Context(), r)
			s.Fail("")
			enforced := slices.ContainsFunc(all, func(a asked) bool { return !a.shadow })
			// what exceeds the rate alone can be refused without Redis
			if never := fault && err == nil && (model{}).decide(r.Domain, all, s.Now()); never {
				if got.OverallCode != ratelimitv3.RateLimitResponse_OVER_LIMIT {
					rt.Fatalf("%s%v\nrequest %d: %s", d.file(), r, i, shown(got))
				}
				failed.take()
				continue
			}
			if told := failed.take(); (err != nil) != (invalid || fault && enforced) || len(told) > 0 && !faulty {
				rt.Fatalf("%s%v\nrequest %d: %v, %v", d.file(), r, i, err, told)
			}
			if fault { // nothing is taken, and what is only watched refuses nothing
				all = nil
			}
			if err != nil {
				continue
			}
			want := m.decide(r.Domain, all, s.Now())
			over := got.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT
			if over != want {
				rt.Fatalf("%s%v\nrequest %d: %s, want over limit: %v", d.file(), r, i, shown(got), want)
			}
			if n := len(got.Statuses); n != len(r.Descriptors) {
				rt.Fatalf("%d statuses for %d descriptors", n, len(r.Descriptors))
			}
			said := false
			for _, status := range got.Statuses {
				said = said || status.Code == ratelimitv3.RateLimitResponse_OVER_LIMIT
			}
			if said != over {
				rt.Fatalf("%s%v\nrequest %d: %s does not say whose the refusal is", d.file(), r, i, shown(got))
			}
		}
	})
}
