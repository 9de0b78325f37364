package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// examine.go collects the facts of limiters. It changes nothing.

// An examined has the findings of one limiter.
type examined struct {
	findings []Finding
	interval time.Duration // 0: unknown
	kept     bool          // it has a TTL
}

// examineFound checks a limiter that a search has found, with its clients. There are no findings if
// it was removed since.
func examineFound(ctx context.Context, s *connect.Server, name string, clients []string) (examined, error) {
	found, err := examine(ctx, s, name, func(context.Context) ([]string, error) { return clients, nil })
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		return examined{}, nil
	}
	return found, err
}

// examine checks one limiter, with all its clients.
func examine(
	ctx context.Context, s *connect.Server, name string, clients func(context.Context) ([]string, error),
) (found examined, err error) {
	shared := s.Limiter(name, "")
	view, err := survey.Read(ctx, shared, false, 0)
	if errors.Is(err, rratelimiter.ErrCrossSlotName) {
		found.findings = append(found.findings, crossing(name))
		return found, nil
	}
	if err != nil {
		return found, err
	}
	if view.Keys[0].Type == "none" {
		if view.Keys[2].Type == "zset" {
			found.findings = append(found.findings, rateless(name))
			return found, nil
		}
		return found, survey.Absent(name, "")
	}
	found.findings = judge(view)
	if view.Fault != nil {
		return found, nil
	}
	found.interval, found.kept = view.Rate.Interval, view.Keys[0].TTL > 0 || view.Rate.KeepAlive > 0
	if view.Rate.Type != rratelimiter.PerClient {
		return found, confirm(ctx, shared, view, &found)
	}
	found.findings = mortal(view) // not those of a state without a client
	ids, err := clients(ctx)
	if err != nil {
		return found, err
	}
	left := 0
	for _, id := range ids {
		own := s.Limiter(name, id)
		view, err := survey.Read(ctx, own, true, 0)
		if err != nil {
			return found, err
		}
		found.findings = append(found.findings, judge(view)...)
		if err := confirm(ctx, own, view, &found); err != nil {
			return found, err
		}
		what, err := own.Collect(ctx, leftFor, true)
		if err != nil && !survey.Tolerable(err) {
			return found, err
		}
		if err == nil && what == protocol.Removed {
			left++
		}
	}
	if left > 0 {
		found.findings = append(found.findings, orphaned(name, left, true))
	}
	return found, nil
}

// leftFor is the time since the last live grant after which doctor calls a client's state orphaned:
// as in gc.
const leftFor = time.Hour

// confirmable is the number of records that can be read in one step without blocking Redis for
// long.
const confirmable = 100_000

// confirm checks in one step whether the stored state adds up to the rate, and computes the result
// of a repair, which decides the advice.
func confirm(ctx context.Context, l *connect.Limiter, v *survey.Survey, found *examined) error {
	if v.WrongType() != "" || v.Consistent() || v.Live.Records+v.Expired.Records > confirmable {
		return nil
	}
	would, err := l.Repair(ctx, rratelimiter.DryRun())
	if err == nil && would.Changed {
		if !v.OneStep {
			v.Free, v.Drift, v.OneStep = would.Was, would.Was-would.Free, true
		}
		found.findings = append(found.findings, adding(v, would))
	}
	return err
}

// unowned returns findings for the state keys that belong to no limiter, or to clients of a limiter
// that is not PER_CLIENT.
func unowned(
	ctx context.Context, s *connect.Server, keys []survey.StateKey, known []string,
) (all []Finding, err error) {
	there, clients, seen := map[string]bool{}, map[string]int{}, map[survey.Owner]bool{}
	for _, name := range known {
		there[name] = true
	}
	for _, key := range keys {
		owner, limiter, err := survey.OwnerOf(ctx, s.Redis, key, there)
		if err != nil {
			return nil, err
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		l := s.Limiter(owner.Name, owner.Client)
		switch {
		case limiter && owner.Client == "": // examine sees it
		case limiter:
			if rate, err := l.Config(ctx); err == nil && rate.Type == rratelimiter.PerClient {
				continue // examine sees it
			}
			fallthrough
		case owner.Client != "":
			what, err := l.Collect(ctx, leftFor, true)
			if err != nil && !survey.Tolerable(err) {
				return nil, err
			}
			if err == nil && what == protocol.Removed {
				clients[owner.Name]++
			}
		default:
			kind, err := s.Redis.Type(ctx, key.Key).Result()
			if err != nil {
				return nil, err
			}
			if key.Permits && kind == "zset" { // a value alone is no grant, and may be of another program
				all = append(all, rateless(owner.Name))
			}
		}
	}
	for name, n := range clients {
		all = append(all, orphaned(name, n, there[name]))
	}
	return all, nil
}
