package rules

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// quota.go has the limits whose permits return together, at the end of a day, a week or a month.

// A Quota is a number of permits for each day, week or month.
type Quota struct {
	Permits int64
	Period  string // day, week or month; "": the limit has a rate, and no quota
	// weekday or day of the month with which a week or a month begins; "": monday, 1
	From string
	Zone *time.Location // whose midnight ends a day; nil: UTC
}

// String returns the quota as in a file: "20000/month".
func (q Quota) String() string { return strconv.FormatInt(q.Permits, 10) + "/" + q.Period }

var errNoRedis = errors.New("a limit has a quota, for which Config.Redis must be set")

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
	}
	return p, q.From == ""
}

// quota parses the fields quota, from and time-zone. It takes away the fields that only a limit
// with a rate has.
func (p *parser) quota(fields map[string]*yaml.Node) (q Quota) {
	node := fields["quota"]
	for _, field := range []string{"rate", "plans", "lease"} {
		if other := fields[field]; other != nil {
			p.fault(other.Line, "%s: a limit has either a rate or a quota, and only one with a rate has %s", field, field)
			delete(fields, field)
		}
	}
	text, ok := p.value(node, "quota")
	if !ok {
		return q
	}
	permits, period, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(permits, 10, 64)
	if err != nil || period != "day" && period != "week" && period != "month" {
		p.fault(
			node.Line, "quota: %q is not of the form permits/day, permits/week or permits/month, such as 20000/month", text,
		)
		return q
	}
	q.Permits, q.Period = n, period
	if node := fields["from"]; node != nil {
		if q.From, ok = p.value(node, "from"); !ok {
			return q
		}
		if _, ok := q.period(); !ok {
			p.fault(
				node.Line,
				"from: %q is neither a weekday, such as monday, with which a week begins, nor a day from 1 to 31, with which a month begins",
				q.From,
			)
		}
	}
	if node := fields["time-zone"]; node != nil {
		if text, ok := p.value(node, "time-zone"); ok {
			if q.Zone, err = time.LoadLocation(text); err != nil || text == "" || text == "Local" {
				p.fault(node.Line, "time-zone: %q is none, such as Europe/Berlin", text)
			}
		}
	}
	return q
}

// counter makes the limiter of a quota.
func (c Config) counter(name string, q Quota) returnable {
	days := classic.Days{Location: q.Zone}
	days.Period, _ = q.period()
	return returnable{classic.NewQuota(c.Redis, name, q.Permits, days)}
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

// A returnable is a quota that takes permits back if another limit refuses the request.
type returnable struct{ *classic.Quota }

func (q returnable) Release(ctx context.Context, n int64) (int64, error) { return q.Return(ctx, n) }

// needsRedis returns an error if a limit has a quota, but the Config no Redis.
func (c Config) needsRedis(limits []Limit) error {
	for _, l := range limits {
		if l.Quota.Period != "" && c.Redis == nil {
			return errNoRedis
		}
	}
	return nil
}
