package rls

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// near.go counts the permits that are granted or charged while a limit is nearly used up.

// A near counts, for each label of limiters, permits above a share of the limit.
type near struct {
	share float64
	count *prometheus.CounterVec
	of    *series.Set[prometheus.Counter]
}

func newNear(share float64, label func(limiter string) string) *near {
	n := &near{share: share, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "rratelimiter", Name: "near_limit_permits_total",
		Help: "Permits that were granted or charged while more than the share --near-limit of the limit was used.",
	}, []string{"limiter"})}
	n.of = series.New(label, 0, func(label string) prometheus.Counter { return n.count.WithLabelValues(label) })
	return n
}

// note counts the permits of a decision, as httplimit.Policy.OnDecision.
func (n *near) note(_ context.Context, d httplimit.Decision) {
	if d.Outcome == httplimit.Allowed {
		n.add(d.Answers)
	}
}

func (n *near) add(answers []httplimit.Answer) {
	for i := range answers {
		a := &answers[i]
		switch limiter := a.Limiter.(type) {
		case interface{ Answers() []httplimit.Answer }: // of descriptors with postpaid
			n.add(limiter.Answers())
		case interface{ Name() string }:
			used := a.Limit - a.Remaining
			if above := min(a.Permits, used-int64(n.share*float64(a.Limit))); above > 0 {
				n.of.Of(limiter.Name()).Add(float64(above))
			}
		}
	}
}
