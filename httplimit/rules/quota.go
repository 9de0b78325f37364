package rules

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// quota.go has the limits whose permits return together, at the end of a day, a week, a month or a
// year.

// A Quota is a number of permits for each day, week, month or year.
type Quota struct {
	Permits int64
	Period  string // day, week, month or year; "": the limit has a rate, and no quota
	// the weekday, the day or the month with which a week, a month or a year begins; "": monday, 1,
	// january
	From string
	Zone *time.Location // whose midnight ends a day; nil: UTC
}

// String returns the quota as in a file: "20000/month".
func (q Quota) String() string { return strconv.FormatInt(q.Permits, 10) + "/" + q.Period }

// Limiter returns the limiter of the quota with a name, in the client's Redis. The client's
// rratelimiter.WithNameMapper applies. The client's observer sees its requests and charges as those
// of a limiter, each with one call. If another limit refuses a request, a guard gives its permits
// back.
func (q Quota) Limiter(client *rratelimiter.Client, name string, opts ...classic.Option) httplimit.Allower {
	return q.limiter(client.Redis(), client, name, opts...)
}

func (q Quota) limiter(
	rdb rratelimiter.Redis, client *rratelimiter.Client, name string, opts ...classic.Option,
) httplimit.Allower {
	period, _ := q.period()
	days := classic.Days{Location: q.Zone, Period: period}
	return counted{classic.NewQuota(rdb, client.KeyOf(name), q.Permits, days, opts...), name, client}
}

// period returns the period of the quota, and false if it does not begin so.
func (q Quota) period() (p classic.Period, ok bool) {
	switch q.Period {
	case "week":
		for day := time.Sunday; day <= time.Saturday; day++ {
			if strings.ToLower(day.String()) == q.From || q.From == "" && day == time.Monday {
				return classic.Weekly(day), true
			}
		}
		return p, false
	case "month":
		day := 1
		if q.From != "" {
			day, _ = strconv.Atoi(q.From) // 0 if it is none
		}
		return classic.Monthly(day), day >= 1 && day <= 31
	case "year":
		for month := time.January; month <= time.December; month++ {
			if strings.ToLower(month.String()) == q.From || q.From == "" && month == time.January {
				return classic.Yearly(month), true
			}
		}
		return p, false
	}
	return p, q.From == ""
}

// ofCalendar reports whether a rate is for a month or a year. These have no fixed length, so such a
// rate is a quota.
func ofCalendar(node *yaml.Node) bool {
	_, period, _ := strings.Cut(node.Value, "/")
	period = strings.TrimSpace(period)
	return node.Kind == yaml.ScalarNode && (period == "month" || period == "year")
}

// quotaOf returns the field with the quota of a limit; "" if the limit has none.
func quotaOf(fields map[string]*yaml.Node) string {
	switch {
	case fields["quota"] != nil:
		return "quota"
	case fields["rate"] != nil && ofCalendar(fields["rate"]):
		return "rate"
	}
	return ""
}

// permits parses a quota without the day with which it begins.
func (p *parser) permits(node *yaml.Node, field string) (q Quota) {
	text, ok := p.value(node, field)
	if !ok {
		return q
	}
	permits, period, _ := strings.Cut(text, "/")
	permits, period = strings.TrimSpace(permits), strings.TrimSpace(period)
	n, err := strconv.ParseInt(permits, 10, 64)
	if err != nil || !slices.Contains([]string{"day", "week", "month", "year"}, period) {
		p.fault(
			node.Line, "%s: %q is not of the form permits/day, permits/week, permits/month or permits/year, such as 20000/month",
			field, text,
		)
		return q
	}
	q.Permits, q.Period = n, period
	p.valid(node.Line, field, httplimit.Claim{Limiter: p.config.counter("", q)})
	return q
}

// quota parses the quota of a limit, and its fields from and time-zone. It takes away the fields
// that only a limit with a rate has.
func (p *parser) quota(fields map[string]*yaml.Node, field string) (q Quota) {
	for _, other := range []string{"rate", "plans", "lease"} {
		if node := fields[other]; node != nil && other != field {
			p.fault(node.Line, "%s: a limit has either a rate or a quota, and only one with a rate has %s", other, other)
			delete(fields, other)
		}
	}
	if q = p.permits(fields[field], field); q.Period == "" {
		return q
	}
	var ok bool
	if node := fields["from"]; node != nil {
		if q.From, ok = p.value(node, "from"); !ok {
			return q
		}
		if _, ok := q.period(); !ok {
			p.fault(
				node.Line,
				"from: %q is neither a weekday, such as monday, with which a week begins, nor a day from 1 to 31, "+
					"with which a month begins, nor a month, such as april, with which a year begins",
				q.From,
			)
		}
	}
	if node := fields["time-zone"]; node != nil {
		if text, ok := p.value(node, "time-zone"); ok {
			var err error
			if q.Zone, err = time.LoadLocation(text); err != nil || text == "" || text == "Local" {
				p.fault(node.Line, "time-zone: %q is none, such as Europe/Berlin", text)
			}
		}
	}
	return q
}

// counter makes the limiter of a quota.
func (c Config) counter(name string, q Quota) httplimit.Allower {
	return q.limiter(cmp.Or(c.Redis, c.Client.Redis()), c.Client, name)
}

// quota makes a limit with a quota.
func (c Config) quota(l Limit) httplimit.Limit {
	key := c.key(l)
	return func(r *http.Request) httplimit.Claim {
		value, name := "", "ratelimit:"+l.Name
		if key != nil {
			if value = key(r); value == "" {
				return httplimit.Claim{}
			}
			name = "ratelimit:" + value + ":" + l.Name
		}
		return httplimit.Claim{Name: l.Name, Key: value, Permits: 1, Limiter: c.counter(name, l.Quota)}
	}
}

// A counted is a quota whose requests the observer of a client sees, and that takes permits back if
// another limit refuses the request.
type counted struct {
	*classic.Quota
	name   string // its key without what a name mapper adds
	client *rratelimiter.Client
}

// Name returns the name of the quota, as that of a limiter.
func (q counted) Name() string { return q.name }

func (q counted) Release(ctx context.Context, n int64) (int64, error) { return q.Return(ctx, n) }

func (q counted) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	began := time.Now()
	r, err := q.Quota.Allow(ctx, n)
	call := rratelimiter.CallInfo{Callers: 1, Denied: 1}
	if r.Allowed {
		call = rratelimiter.CallInfo{Callers: 1, Granted: 1, Permits: n}
	}
	q.tell(ctx, call, rratelimiter.RequestInfo{
		Method: "Allow", Permits: n, Granted: call.Permits, Latency: time.Since(began), Err: err,
	})
	return r, err
}

func (q counted) Charge(ctx context.Context, n int64) (rratelimiter.Result, error) {
	began := time.Now()
	r, err := q.Quota.Charge(ctx, n)
	call := rratelimiter.CallInfo{Charged: n}
	if err != nil {
		call.Charged = 0
	}
	q.tell(ctx, call, rratelimiter.RequestInfo{
		Method: "Charge", Permits: n, Granted: call.Charged, Latency: time.Since(began), Err: err,
	})
	return r, err
}

// tell reports a request. It also reports its call, unless none was made.
func (q counted) tell(ctx context.Context, call rratelimiter.CallInfo, request rratelimiter.RequestInfo) {
	observer, err := q.client.Observer(), request.Err
	if observer == nil {
		return
	}
	called := ctx.Err() == nil || !errors.Is(err, ctx.Err()) || errors.Is(err, rratelimiter.ErrOutcomeUnknown)
	if called && !errors.Is(err, rratelimiter.ErrInvalidPermits) {
		call.Limiter, call.Latency, call.Err, call.Attempts = q.name, request.Latency, err, 1
		if errors.Is(err, rratelimiter.ErrExceedsRate) {
			call.Attempts = 0
		}
		observer.Call(call)
	}
	if o, ok := observer.(rratelimiter.RequestObserver); ok {
		request.Limiter = q.name
		o.Request(ctx, request)
	}
}
