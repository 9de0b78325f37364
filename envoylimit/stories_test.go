package envoylimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
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
		reflect.TypeFor[rules.Descriptor]():              "Key Value Rate HasRate Quota Shadow Shared Lease Name ValueToMetric DetailedMetric Replaces Following",
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

// A domain has a rule for any value of k, perhaps one for the values a*, and one for k2 with m. Each
// rule has a rate per second.
type domain struct {
	any, some, next int64
	wild            bool
	shadow, lease   bool // of the rule for any value
	replaces        bool // the rule for a* replaces that for any value
}

func (d domain) file() string {
	text := fmt.Sprintf("domains:\n  shop:\n    - {key: k, name: any, rate: %d/s", d.any)
	if d.shadow {
		text += ", shadow: true"
	}
	if d.lease {
		text += ", lease: 100ms"
	}
	text += "}\n"
	if d.wild {
		text += fmt.Sprintf("    - {key: k, value: 'a*', shared: true, rate: %d/s", d.some)
		if d.replaces {
			text += ", name: some, replaces: any"
		}
		text += "}\n"
	}
	return text + fmt.Sprintf("    - {key: k2, descriptors: [{key: m, rate: %d/s}]}\n", d.next)
}

// An asked is what a descriptor asks, by the model.
type asked struct {
	limiter string
	rate    int64
	hits    uint64
	shadow  bool
}

const override = 3 // requests per second

func (d domain) asked(r *ratelimitv3.RateLimitRequest) (all []asked) {
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
			a.limiter, a.rate, a.shadow = "any "+value, d.any, d.shadow
		case len(one.Entries) == 2:
			a.limiter, a.rate = "next "+value+one.Entries[1].Value, d.next
		}
		if a.limiter != "" && a.hits > 0 {
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
	r := to("shop")
	r.HitsAddend = uint32(rapid.SampledFrom(hits[:6]).Draw(t, "hits of the request"))
	for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
		one := of(rapid.SampledFrom([]string{"k=b", "k=a1", "k=a2", "k2=x m=y", "k2=x", "o=1"}).Draw(t, "entries"))
		if one.Entries[0].Key == "o" {
			one.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: override, Unit: typev3.RateLimitUnit_SECOND,
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

// A model is a sliding window for each limiter.
type model map[string][]take

func (m model) fits(limiter string, rate int64, hits uint64, now time.Time) bool {
	used := int64(0)
	for _, t := range m[limiter] {
		if now.Sub(t.at) < time.Second {
			used += t.permits
		}
	}
	return hits <= uint64(rate) && used+int64(hits) <= rate
}

// decide returns whether a request is over a limit. If it is not, its permits are taken.
func (m model) decide(all []asked, now time.Time) (over bool) {
	sums := map[string]asked{}
	for _, a := range all {
		a.hits = min(a.hits, 1<<60) + sums[a.limiter].hits
		sums[a.limiter] = a
	}
	for limiter, a := range sums {
		over = over || !a.shadow && !m.fits(limiter, a.rate, a.hits, now)
	}
	for limiter, a := range sums {
		if m.fits(limiter, a.rate, a.hits, now) && (a.shadow || !over) {
			m[limiter] = append(m[limiter], take{now, int64(a.hits)})
		}
	}
	return over
}

// A request is over the limit exactly if its descriptors together ask a limiter for more than is
// free, and then it takes nothing. A valid request gets no error.
func TestStories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]int64{1, 2, 3, 0, 10})
		d := domain{any: rate.Draw(rt, "rate"), some: rate.Draw(rt, "rate of a*"), next: rate.Draw(rt, "rate of k2")}
		d.wild, d.shadow = rapid.Bool().Draw(rt, "a*"), rapid.IntRange(0, 3).Draw(rt, "shadow") == 3
		d.lease = rapid.IntRange(0, 3).Draw(rt, "lease") == 3
		d.replaces = d.wild && rapid.Bool().Draw(rt, "replaces")
		s := limittest.Start()
		defer s.Close()
		var failed []error
		policy := patient(httplimit.FailClosed)
		policy.Logger = slog.New(slog.DiscardHandler)
		policy.OnError = func(_ context.Context, err error) { failed = append(failed, err) }
		service := envoylimit.New(s.Client(), policy)
		f, err := rules.ParseFile("f", []byte(d.file()))
		if err != nil {
			rt.Fatal(err)
		}
		service.SetDomains(f.Domains)
		m := model{}
		for i := range rapid.IntRange(1, 6).Draw(rt, "requests") {
			s.Advance(rapid.SampledFrom([]time.Duration{
				0, time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond, time.Second,
			}).Draw(rt, "pause"))
			r := drawRequest(rt, d)
			invalid := false
			for _, one := range r.Descriptors {
				invalid = invalid || one.IsNegativeHits
			}
			got, err := service.ShouldRateLimit(t.Context(), r)
			if (err != nil) != invalid || len(failed) > 0 {
				rt.Fatalf("%s%v\nrequest %d: %v, %v", d.file(), r, i, err, failed)
			}
			if invalid {
				continue
			}
			want := m.decide(d.asked(r), s.Now())
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
