package rules

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// served_test.go gives files with values at their edges to Parse and to a guard.

func TestMain(m *testing.M) { redistest.Random(m, 1000) }

// Values of the fields of a limit. The first is an ordinary one; "" leaves the field out.
// 4294967295 is the most permits of a rate, 9007199254740991 of a quota, 2562047h the longest
// Duration.
var (
	counts = []string{
		"10", "0", "1", "2", "-1", "1.5", "4294967295", "4294967296", "5000000000", "9007199254740991", "9007199254740992",
		"9223372036854775807", "9223372036854775808", "99999999999999999999", "1e3", "many",
	}
	spans = []string{
		"1s", "s", "m", "d", "week", "7d", "month", "year", "0s", "-1s", "1ms", "2ms", "10ms", "0.5ms", "1.5ms", "1ns", "250ms", "146y", "1281023h",
		"1281024h", "2562047h", "2562048h", "9223372036854775807ns", "9223372036s",
	}
	keepAlives = []string{"", "0s", "1ms", "999ms", "1s", "1s1ns", "2562047h", "2562048h"}
	leases     = []string{"", "0s", "-1s", "1ms", "25ms", "26ms", "100ms", "101ms", "0.5ms", "256204h42m", "2562047h"}
	penalties  = []string{"", "0s", "1ms", "1s", "0.5ms", "1281024h", "2562047h", "2562048h"}
	costs      = append([]string{""}, counts...)
	periods    = []string{"month", "day", "week", "hour", "year"}
	froms      = []string{"", "april", "0", "1", "15", "31", "32", "monday", "sunday", "2.5"}
	zones      = []string{"", "UTC", "Europe/Berlin", "Local", "Berlin"}
)

// A draw is a file with one limit, as the index of the value of each field.
type draw struct {
	quota                               bool
	count, span, keep, lease, plan, pay int
	penalty, cost, period, from, zone   int
	shadow                              bool
}

// A field is the index of a value, and the values.
type field struct {
	index  *int
	values []string
}

func (d *draw) fields() []field {
	return []field{
		{&d.count, counts}, {&d.span, spans}, {&d.keep, keepAlives}, {&d.lease, leases}, {&d.plan, counts}, {&d.pay, spans},
		{&d.penalty, penalties}, {&d.cost, costs}, {&d.period, periods}, {&d.from, froms}, {&d.zone, zones},
	}
}

func (d *draw) text() string {
	var b strings.Builder
	b.WriteString("limits:\n  a:\n    key: all\n")
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "    %s: %s\n", name, value)
		}
	}
	if d.quota {
		field("quota", counts[d.count]+"/"+periods[d.period])
		field("from", froms[d.from])
		field("time-zone", zones[d.zone])
	} else {
		rate := counts[d.count] + "/" + spans[d.span]
		if keep := keepAlives[d.keep]; keep != "" {
			rate += " keep-alive " + keep
		}
		field("rate", rate)
		field("lease", leases[d.lease])
		if d.plan > 0 || d.pay > 0 {
			field("plans", "{header: X-Plan, rates: {pro: "+counts[d.plan]+"/"+spans[d.pay]+"}}")
		}
	}
	field("cost", costs[d.cost])
	field("penalty", penalties[d.penalty])
	if d.shadow {
		field("shadow", "true")
	}
	return b.String()
}

// draws returns files in which one field has a value that is not ordinary, for each such value, and
// files in which each field has any value.
func draws() (all []*draw) {
	for _, quota := range []bool{false, true} {
		base := &draw{quota: quota}
		for _, f := range base.fields() {
			for i := range f.values {
				*f.index = i
				one := *base
				all = append(all, &one)
			}
			*f.index = 0
		}
	}
	random := rand.New(rand.NewSource(1))
	for range 4000 {
		d := &draw{quota: random.Intn(3) == 0, shadow: random.Intn(8) == 0}
		for _, f := range d.fields() {
			if random.Intn(3) == 0 {
				*f.index = random.Intn(len(f.values))
			}
		}
		all = append(all, d)
	}
	return all
}

// What the check of a file accepts, a guard serves: no request meets an error, and the first one
// passes unless its rate is 0.
func TestWhatACheckAcceptsIsServed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		config := Config{Client: rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(time.Minute)), Redis: rdb}
		accepted, refused := 0, 0
		for _, d := range draws() {
			text := d.text()
			limits, err := Parse("f", []byte(text))
			if err != nil {
				refused++
				continue
			}
			accepted++
			if err := rdb.FlushDB(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			served(t, config, text, limits)
		}
		if accepted < 400 || refused < 400 {
			t.Errorf("%d accepted, %d refused: too few of a kind", accepted, refused)
		}
		t.Logf("%d files accepted, %d refused", accepted, refused)
	})
}

// served sends requests of each plan to a guard with the limits of a file.
func served(t *testing.T, config Config, text string, limits []Limit) {
	t.Helper()
	guard := httplimit.New(config.build(limits)...)
	guard.Policy = &httplimit.Policy{
		Bound: time.Minute, Failure: httplimit.FailClosed,
		OnError: func(_ context.Context, err error) { t.Errorf("%s%v", text, err) },
	}
	for _, plan := range []string{"", "pro"} {
		for i := range 3 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Plan", plan)
			rate := limits[0].rate(r)
			never := rate.Interval > 0 && rate.Permits == 0
			d := guard.Decide(r)
			if d.Err != nil {
				t.Errorf("%s%v", text, d.Err)
			}
			if first := plan == "" && i == 0; first && d.Outcome.Passed() == (never && !limits[0].Shadow) {
				t.Errorf("%sthe first request: %v", text, d.Outcome)
			}
		}
	}
}

// Watch checks a file with the options of its client: a lease does not go together with the records
// of Redisson 3.13, and a client with an invalid option serves nothing.
func TestAFileThatTheClientCannotServeIsRefused(t *testing.T) {
	server := limittest.New(t)
	old := rratelimiter.WithLimiterDefaults(rratelimiter.WithRecordFormat(rratelimiter.Redisson313))
	const lease = "limits:\n  a:\n    key: all\n    rate: 10/s\n    lease: 100ms\n"
	const penalty = "limits:\n  a:\n    key: all\n    quota: 10/day\n    penalty: 1s\n"
	const domain = "domains:\n  a:\n    - key: k\n      rate: 10/s\n      lease: 100ms\n"
	for _, c := range []struct {
		text, want string
		client     *rratelimiter.Client
	}{
		{lease, "limits.yaml:5: a: lease: with the rate 10/s: WithLease needs records that tell", server.Client(old)},
		{domain, "limits.yaml:5: a: lease: with the rate 10/s: WithLease needs records that tell", server.Client(old)},
		{lease, "limits.yaml:4: a: rate: the clock is nil", server.Client(rratelimiter.WithClock(nil))},
		{penalty, "limits.yaml:5: a: penalty: the clock is nil", server.Client(rratelimiter.WithClock(nil))},
		{lease, "", server.Client()},
		{domain, "", server.Client()},
		{penalty, "", server.Client()},
	} {
		file := filepath.Join(t.TempDir(), "limits.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		config := Config{Client: c.client, Redis: server.Redis()}
		var err error
		if c.text == domain {
			err = WatchDomains(t.Context(), file, config, func([]Domain) {})
		} else {
			err = Watch(t.Context(), httplimit.New(), file, config)
		}
		if got := fmt.Sprint(err); c.want == "" != (err == nil) || !strings.Contains(got, c.want) {
			t.Errorf("%s%v, want %q", c.text, err, c.want)
		}
		if _, err := ParseFile(file, []byte(c.text)); err != nil {
			t.Errorf("%s%v", c.text, err)
		}
	}
}
