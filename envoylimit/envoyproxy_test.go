package envoylimit_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// envoyproxy_test.go draws files in the format of envoyproxy/ratelimit, and compares three things:
// the service of such a file, the service of the file that it is converted to, and a model of what
// the README of envoyproxy/ratelimit says, which joins keys and values as that service does.

// A their is a descriptor in such a file. Its limit tells the rules apart.
type their struct {
	key, value               string
	limit                    int // 0: none
	unlimited, shadow, share bool
	name, replaces           string
	below                    []*their
}

var theirUnits = []string{"second", "minute", "hour", "day", "week", "month", "year"}

// draw draws a list of descriptors. next is the number of the next limit.
func drawTheirs(t *rapid.T, next *int, deep int) (all []*their) {
	for _, key := range []string{"a", "b"} {
		values := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
			"", "x", "xy", "x*", "*y", "x*y", "x*x*", "*", "y",
		}), 0, 4, rapid.ID[string]).Draw(t, "values")
		for _, value := range values {
			d := &their{key: key, value: value}
			wild := strings.Contains(value, "*")
			d.share = wild && rapid.Bool().Draw(t, "share")
			switch rapid.IntRange(0, 5).Draw(t, "limit") {
			case 0:
			case 1:
				d.unlimited = true
			default:
				*next++
				d.limit = *next
				d.shadow = rapid.IntRange(0, 4).Draw(t, "shadow") == 0
			}
			if d.unlimited || d.limit > 0 {
				d.name = rapid.SampledFrom([]string{"", "", "one", "two"}).Draw(t, "name")
				if r := rapid.SampledFrom([]string{"", "", "", "one", "two", "none"}).Draw(t, "replaces"); r != d.name {
					d.replaces = r
				}
			}
			if deep > 0 && rapid.IntRange(0, 2).Draw(t, "deep") == 0 {
				d.below = drawTheirs(t, next, deep-1)
			}
			all = append(all, d)
		}
	}
	return rapid.Permutation(all).Draw(t, "order")
}

// text returns the descriptors as in a file.
func theirText(t *rapid.T, all []*their, indent string) string {
	var b strings.Builder
	for _, d := range all {
		fmt.Fprintf(&b, "%s- key: %s\n", indent, d.key)
		field := func(format string, args ...any) { fmt.Fprintf(&b, indent+"  "+format+"\n", args...) }
		if d.value != "" {
			field("value: %q", d.value)
		}
		if d.share {
			field("share_threshold: true")
		}
		if d.shadow {
			field("shadow_mode: true")
		}
		if d.limit > 0 || d.unlimited {
			field("rate_limit:")
			if d.unlimited {
				field("  unlimited: true")
			} else {
				field("  unit: %s", rapid.SampledFrom(theirUnits).Draw(t, "unit"))
				field("  requests_per_unit: %d", d.limit)
			}
			if d.name != "" {
				field("  name: %s", d.name)
			}
			if d.replaces != "" {
				field("  replaces: [{name: %s}]", d.replaces)
			}
		}
		if len(d.below) > 0 {
			field("descriptors:")
			b.WriteString(theirText(t, d.below, indent+"    "))
		}
	}
	return b.String()
}

// matches reports whether a text is a pattern with something in the place of each *.
func matches(pattern, text string) bool {
	head, tail, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	for i := len(head); strings.HasPrefix(text, head) && i <= len(text); i++ {
		if matches(tail, text[i:]) {
			return true
		}
	}
	return false
}

// find returns the descriptor of the file for a descriptor of a request, and the name of its
// counter; nil: none.
func find(all []*their, entries []*ratelimit.RateLimitDescriptor_Entry) (*their, string) {
	counter := ""
	for i, e := range entries {
		joined := func(d *their) string { return strings.TrimSuffix(d.key+"_"+d.value, "_") }
		var found *their
		for _, d := range all {
			if d.value != "" && joined(d) == e.Key+"_"+e.Value {
				found = d
			}
		}
		value := e.Value
		for _, d := range all {
			if found == nil && strings.Contains(d.value, "*") && matches(joined(d), e.Key+"_"+e.Value) {
				if found = d; d.share {
					value = d.value
				}
			}
		}
		for _, d := range all {
			if found == nil && joined(d) == e.Key {
				found = d
			}
		}
		if found == nil {
			return nil, ""
		}
		counter += e.Key + "=" + value + ";"
		if i == len(entries)-1 {
			return found, counter
		}
		all = found.below
	}
	return nil, ""
}

// A theirModel knows how often each counter was used. The clock stands still.
type theirModel struct {
	file []*their
	used map[string]int
}

// send returns what the response to a request is: its code and, of each descriptor of a request
// that passes, what is left of which limit. All or no counters are used, but for those in shadow
// mode: so it is in this project.
func (m *theirModel) send(r *ratelimitv3.RateLimitRequest) string {
	type ask struct {
		d       *their
		counter string
		over    bool
	}
	asks, replaced, refused := make([]ask, len(r.Descriptors)), map[string]bool{}, false
	for i, d := range r.Descriptors {
		if asks[i].d, asks[i].counter = find(m.file, d.Entries); asks[i].d != nil {
			replaced[asks[i].d.replaces] = true
		}
	}
	for i := range asks {
		a := &asks[i]
		if a.d == nil || a.d.name != "" && replaced[a.d.name] && !a.d.unlimited {
			a.d = &their{}
		}
		a.over = a.d.limit > 0 && m.used[a.counter] >= a.d.limit
		refused = refused || a.over && !a.d.shadow
	}
	parts := []string{"OK"}
	for _, a := range asks {
		if a.d.limit > 0 && !a.over && (a.d.shadow || !refused) {
			m.used[a.counter]++
		}
		parts = append(parts, fmt.Sprintf("%d of %d", max(0, a.d.limit-m.used[a.counter]), a.d.limit))
	}
	if refused {
		return "OVER_LIMIT"
	}
	return strings.Join(parts, ", ")
}

// figures returns a response as the model does.
func figures(r *ratelimitv3.RateLimitResponse) string {
	if r.OverallCode != ratelimitv3.RateLimitResponse_OK {
		return r.OverallCode.String()
	}
	parts := []string{"OK"}
	for _, s := range r.Statuses {
		left := s.LimitRemaining
		if s.CurrentLimit == nil {
			left = 0
		}
		parts = append(parts, fmt.Sprintf("%d of %d", left, s.CurrentLimit.GetRequestsPerUnit()))
	}
	return strings.Join(parts, ", ")
}

// A file of envoyproxy/ratelimit decides as its README says, and as the file that it is converted
// to.
func TestFilesOfEnvoyproxyDecideAsThere(t *testing.T) {
	var clients [2]*rratelimiter.Client
	for i := range clients {
		server := limittest.Start()
		defer server.Close()
		clients[i] = server.Client()
	}
	files, overs := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		files++
		limits, name := 0, fmt.Sprintf("d%d", files)
		m := &theirModel{file: drawTheirs(t, &limits, 2), used: map[string]int{}}
		text := "domain: " + name + "\ndescriptors:\n" + theirText(t, m.file, "  ")
		f, err := rules.ParseFile("f", []byte(text))
		if err != nil {
			t.Fatalf("%s%v", text, err)
		}
		converted, err := rules.Format(f.Domains)
		if err != nil {
			t.Fatal(err)
		}
		g, err := rules.ParseFile("g", converted)
		if err != nil || !reflect.DeepEqual(f.Domains, g.Domains) {
			t.Fatalf("%s%s%v", text, converted, err)
		}
		var services [2]*envoylimit.Service
		for i, domains := range [][]rules.Domain{f.Domains, g.Domains} {
			services[i] = envoylimit.New(clients[i], patient(httplimit.FailClosed))
			services[i].SetClock(func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) })
			services[i].SetDomains(domains)
		}
		var pool []*ratelimitv3.RateLimitRequest
		for range 8 {
			pool = append(pool, drawTheirRequest(t, m, name))
		}
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			r := rapid.SampledFrom(pool).Draw(t, "request")
			want := m.send(r)
			if want == "OVER_LIMIT" {
				overs++
			}
			for i, s := range services {
				response, err := s.ShouldRateLimit(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if got := figures(response); got != want {
					t.Fatalf("%s%s%v\nservice %d: %s, want %s", text, converted, r, i, got, want)
				}
			}
		}
	})
	t.Logf("%d files, %d requests over the limit", files, overs)
}

// drawTheirRequest draws a request whose descriptors have different counters: those with one are
// summed here, and are not there.
func drawTheirRequest(t *rapid.T, m *theirModel, domain string) *ratelimitv3.RateLimitRequest {
	r := to(domain)
	counters := map[string]bool{}
	for range rapid.IntRange(1, 2).Draw(t, "descriptors") {
		var entries []string
		for range rapid.IntRange(1, 3).Draw(t, "entries") {
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			entries = append(entries,
				key+"="+rapid.SampledFrom([]string{"", "x", "y", "xy", "xxy", "z", "x*", "*"}).Draw(t, "value"))
		}
		d := of(strings.Join(entries, " "))
		if _, counter := find(m.file, d.Entries); counter == "" || !counters[counter] {
			counters[counter] = true
			r.Descriptors = append(r.Descriptors, d)
		}
	}
	return r
}

// A value that is written as a pattern in the file has the rule of this pattern, also if another
// pattern before it matches.
func TestAValueThatIsAPatternItself(t *testing.T) {
	each(t, "domain: a\ndescriptors:\n"+
		"  - {key: k, value: x*, rate_limit: {unit: hour, requests_per_unit: 1}}\n"+
		"  - {key: k, value: xy*, rate_limit: {unit: hour, requests_per_unit: 2}}\n", func(e *envoy) {
		e.uses("OK: OK 0 of 1/HOUR in 1h0m0s", "k=xyz")
		e.uses("OK: OK 1 of 2/HOUR in 1h0m0s", "k=xy*")
	})
}

// An empty value is any text, too: a pattern that matches it has precedence over a rule without a
// value.
func TestAnEmptyValueMatchesAPattern(t *testing.T) {
	each(t, "domain: a\ndescriptors:\n"+
		"  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n"+
		"  - {key: k, value: '*', rate_limit: {unit: hour, requests_per_unit: 2}}\n"+
		"  - {key: l, rate_limit: {unit: hour, requests_per_unit: 3}}\n"+
		"  - {key: l, value: x*, rate_limit: {unit: hour, requests_per_unit: 4}}\n", func(e *envoy) {
		e.uses("OK: OK 1 of 2/HOUR in 1h0m0s", "k=")
		e.uses("OK: OK 2 of 3/HOUR in 1h0m0s", "l=")
	})
}
