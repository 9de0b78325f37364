package httplimit

import (
	"flag"
	"fmt"
	"math"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// stories_test.go plays random stories of requests to guards with random options, and judges them
// by what the documentation promises: stories_play_test.go plays them, and stories_judges_test.go
// judges. The seed is always the same (see TestMain). To search longer:
//
//	go test ./httplimit -run Stories -rapid.checks 100000 -rapid.seed 0 -timeout 2h

var promises = flag.String("promises", "", "judge only what matches this regular expression")

// options has a drawer for each option of a story; nil: nothing is drawn. A new method of Limit or
// field of Policy needs one.
var options = map[string]func(*rapid.T, *story){
	"Limit.Cost": func(t *rapid.T, s *story) {
		if s.zero = rapid.IntRange(0, 4).Draw(t, "a cost of 0") == 0; !s.zero {
			s.cost = edge(t, "cost", s.rate.Permits)
		}
	},
	"Limit.CountIf": func(t *rapid.T, s *story) { s.countIf = true },
	"Limit.CostAfter": func(t *rapid.T, s *story) {
		s.after = rapid.Int64Range(0, 2*s.rate.Permits+1).Draw(t, "cost after")
		s.told = rapid.Int64Range(0, s.after).Draw(t, "of it while the handler runs")
	},
	"Limit.Penalty": func(t *rapid.T, s *story) {
		s.penalty = rapid.SampledFrom([]time.Duration{
			time.Millisecond, s.rate.Interval / 4, s.rate.Interval, 4 * s.rate.Interval,
		}).Draw(t, "penalty")
	},
	"Limit.Shadow":  func(t *rapid.T, s *story) { s.limitShadow = true },
	"Limit.Unit":    func(t *rapid.T, s *story) { s.unit = "tokens" },
	"Limit.OrElse":  func(t *rapid.T, s *story) { s.anonymous = drawOther(t) },
	"PerFunc":       func(t *rapid.T, s *story) { s.perFunc = true },
	"Shared":        func(t *rapid.T, s *story) { s.shared = true },
	"WithDenyCache": func(t *rapid.T, s *story) { s.cache = 100 },
	"WithLease":     func(t *rapid.T, s *story) { s.lease = s.rate.Interval / 10 },
	"WithFallback":  func(t *rapid.T, s *story) { s.fallback = true },
	"another limit": func(t *rapid.T, s *story) { s.other = drawOther(t) },

	"Policy.Failure": func(t *rapid.T, s *story) {
		s.failure = rapid.SampledFrom([]Failure{FailClosed, FailLocal}).Draw(t, "failure")
	},
	"Policy.LocalShare": func(t *rapid.T, s *story) { s.share = 0.5 },
	"Policy.Wait": func(t *rapid.T, s *story) {
		s.wait = rapid.SampledFrom([]time.Duration{
			time.Millisecond, s.rate.Interval / 2, s.rate.Interval, 2 * s.rate.Interval,
		}).Draw(t, "wait")
	},
	"Policy.Shadow": func(t *rapid.T, s *story) { s.shadow = true },
	"Policy.Jitter": func(t *rapid.T, s *story) { s.jitter = s.rate.Interval / 2 },
	"Policy.Bound":  func(t *rapid.T, s *story) { s.bound = time.Second },
	// without it, the client's observer gets the decisions
	"Policy.Observer": func(t *rapid.T, s *story) { s.observer = true },
	// each story has these
	"Policy.Name": nil, "Policy.OnDeny": nil, "Policy.OnError": nil, "Policy.OnDecision": nil, "Policy.Logger": nil,
}

func drawOther(t *rapid.T) rratelimiter.Rate {
	return rratelimiter.Rate{Permits: rapid.Int64Range(1, 4).Draw(t, "other rate"), Interval: 5 * time.Second}
}

// Each option has a row: the generator of stories learns a new one in the same commit.
func TestStoriesHaveEachOption(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		if _, has := options["Policy."+f.Name]; f.IsExported() && !has {
			t.Errorf("options has no row for Policy.%s", f.Name)
		}
	}
	limit := reflect.TypeFor[Limit]()
	for i := range limit.NumMethod() {
		m := limit.Method(i)
		if _, has := options["Limit."+m.Name]; !has {
			t.Errorf("options has no row for Limit.%s", m.Name)
		}
	}
}

// A story is a limit, a policy, and requests to them.
type story struct {
	zero          bool  // Limit.Cost returns 0
	told          int64 // permits of after that the handler tells at its begin
	rate          rratelimiter.Rate
	names         []string
	cost, after   int64 // 0, -1: no option
	countIf       bool
	penalty       time.Duration
	limitShadow   bool
	cache         int
	other         rratelimiter.Rate
	anonymous     rratelimiter.Rate // of the limit for requests without a key; 0: none
	perFunc       bool              // the rate is that of the request
	shared        bool              // all requests have one limiter, whose rate the guard does not know
	lease         time.Duration
	fallback      bool
	unit          string
	observer      bool
	failure       Failure
	share         float64
	wait          time.Duration
	shadow        bool
	jitter, bound time.Duration
	steps         []step
}

// A step is requests of one key at the same time.
type step struct {
	pause time.Duration // before the step
	n     int           // requests
	takes time.Duration // time of the handler
	fails bool          // the response has status 401, which counts with CountIf
	away  bool          // Redis fails during the step
	who   client
}

// A client is what a request shows of its client.
type client int

const (
	known client = iota
	anonymous
	unlimited // PerFunc has no limit for it
)

func (s story) String() string {
	return fmt.Sprintf(
		"%v, options %v: cost %d (0: %v), after %d (told %d), penalty %v, other %v, anonymous %v, wait %v, failure %d\nsteps %+v\n",
		s.rate, s.names, s.cost, s.zero, s.after, s.told, s.penalty, s.other, s.anonymous, s.wait, s.failure, s.steps,
	)
}

func edge(t *rapid.T, label string, rate int64) int64 {
	return rapid.SampledFrom([]int64{1, 2, max(1, rate), rate + 1, math.MaxInt64}).Draw(t, label)
}

func drawStory(t *rapid.T) story {
	s := story{after: -1, rate: rratelimiter.Rate{
		Permits:  rapid.SampledFrom([]int64{1, 2, 3, 0, 5}).Draw(t, "rate"),
		Interval: rapid.SampledFrom([]time.Duration{time.Second, 8 * time.Second}).Draw(t, "interval"),
	}}
	var real []string
	for name, draw := range options {
		if draw != nil {
			real = append(real, name)
		}
	}
	slices.Sort(real)
	// those that change which requests pass, and when, stand there more often; a penalty has the
	// most neighbours
	real = append(real, "Limit.CountIf", "WithDenyCache", "Policy.Wait", "Policy.Wait")
	real = append(real, slices.Repeat([]string{"Limit.Penalty"}, 10)...)
	s.names = rapid.SliceOfNDistinct(rapid.SampledFrom(real), 2, 4, rapid.ID[string]).Draw(t, "options")
	for _, name := range s.names {
		options[name](t, &s)
	}
	i := s.rate.Interval
	times := []time.Duration{0, time.Millisecond, i / 4, i - time.Millisecond, i, i + time.Millisecond}
	for range rapid.IntRange(1, 5).Draw(t, "steps") {
		s.steps = append(s.steps, step{
			pause: rapid.SampledFrom(times).Draw(t, "pause"),
			n:     rapid.SampledFrom([]int{1, 2, int(s.rate.Permits), int(s.rate.Permits) + 1}).Draw(t, "requests"),
			takes: rapid.SampledFrom(times[:4]).Draw(t, "handler"),
			fails: rapid.Bool().Draw(t, "fails"),
			away:  rapid.IntRange(0, 19).Draw(t, "away") == 19,
			who:   rapid.SampledFrom([]client{known, known, known, anonymous, unlimited}).Draw(t, "client"),
		})
	}
	return s
}

// TestStories judges random stories.
func TestStories(t *testing.T) {
	// a story that fails is played again, to make it shorter: requests at the same time have no
	// certain order
	tries := 1
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		for range tries {
			if faults := s.play(t); faults != nil {
				tries = 5
				rt.Fatalf("%v%s", s, strings.Join(faults, "\n"))
			}
		}
	})
}

// What no request could be checked with is refused where the limit is made, and nothing else is:
// Per, Shared and Penalty panic exactly if a value is out of its bounds or two options of the
// limiter do not go together.
func TestLimitsAreRefusedWhereTheyAreMade(t *testing.T) {
	server := limittest.New(t)
	client := server.Client()
	const ms = time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		rate := rratelimiter.Rate{
			Permits: rapid.SampledFrom([]int64{1, 0, -1, 1<<32 - 1, 1 << 32}).Draw(rt, "rate"),
			Interval: rapid.SampledFrom([]time.Duration{
				time.Second, ms, 0, 10 * ms, time.Microsecond, 9 * ms,
			}).Draw(rt, "interval"),
		}
		valid := rate.Permits >= 0 && rate.Permits < 1<<32 && rate.Interval >= ms && rate.Interval%ms == 0
		var opts []rratelimiter.LimiterOption
		drawn := map[string]bool{}
		part := func(name string, option func(time.Duration) rratelimiter.LimiterOption) {
			if drawn[name] = rapid.IntRange(0, 2).Draw(rt, name) == 2; !drawn[name] {
				return
			}
			d := rapid.SampledFrom([]time.Duration{ms, 0, -ms, 100 * ms, 101 * ms, time.Microsecond}).Draw(rt, "length")
			valid = valid && d > 0 && d%ms == 0 && d <= rate.Interval/10
			opts = append(opts, option(d))
		}
		part("lease", rratelimiter.WithLease)
		part("granularity", rratelimiter.WithGranularity)
		if rapid.IntRange(0, 2).Draw(rt, "record per request") == 2 {
			opts = append(opts, rratelimiter.WithRecordPerRequest())
			valid = valid && !drawn["lease"] && !drawn["granularity"]
		}
		valid = valid && !(drawn["lease"] && drawn["granularity"])
		if rapid.IntRange(0, 2).Draw(rt, "deny cache") == 2 {
			n := rapid.SampledFrom([]int{1, 0, -1}).Draw(rt, "limiters")
			opts, valid = append(opts, rratelimiter.WithDenyCache(n)), valid && n > 0
		}
		if rapid.IntRange(0, 2).Draw(rt, "fallback") == 2 {
			share := rapid.SampledFrom([]float64{0, 1, -0.01, 1.01}).Draw(rt, "share")
			opts, valid = append(opts, rratelimiter.WithFallback(share)), valid && share >= 0 && share <= 1
		}
		banned := rapid.SampledFrom([]time.Duration{ms, 0, time.Microsecond, time.Hour}).Draw(rt, "penalty")
		shared := rapid.Bool().Draw(rt, "shared")
		var limit Limit
		made := func() (made bool) {
			defer func() { made = recover() == nil }()
			if shared {
				own := append(opts, rratelimiter.WithEnforcedRate(rate))
				limit = Shared("l", client.RateLimiter("l", own...))
			} else {
				limit = Per(client, "l", rate, nil, opts...)
			}
			limit = limit.Penalty(client, banned)
			return true
		}()
		valid = valid || rate == rratelimiter.Unlimited && !shared // there is no limiter
		if want := valid && banned >= ms; made != want {
			rt.Fatalf("%v, %v of %d options, penalty %v, shared %v: made %v, want %v",
				rate, drawn, len(opts), banned, shared, made, want)
		}
		if !made {
			return
		}
		if err := server.Redis().FlushDB(t.Context()).Err(); err != nil {
			rt.Fatal(err)
		}
		if d := patient(limit).Decide(httptest.NewRequest("GET", "/", nil)); d.Err != nil {
			rt.Fatalf("%v, %v of %d options: %v", rate, drawn, len(opts), d.Err)
		}
	})
}
