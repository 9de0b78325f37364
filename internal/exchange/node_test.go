package exchange

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
)

// A target is a limiter on which the process can always decide.
type target struct{}

func (target) Key() string                 { return "l" }
func (target) Keys() []string              { return []string{"l"} }
func (target) Arguments() []any            { return []any{"l"} }
func (target) FallsBack() bool             { return true }
func (target) CanDecide() bool             { return true }
func (target) Breaker() *breaker.Breaker   { return nil }
func (target) NotPlain()                   {}
func (target) Probe(*breaker.Breaker) bool { return true }
func (target) Refused() bool               { return false }
func (target) NodeBack()                   {}
func (target) Timeout() time.Duration      { return time.Second }

// A node may be found to be away so late that the memory of the call that looked for it is used
// again.
func TestSearchOutlivesItsCall(t *testing.T) {
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	targets := []Target{target{}}
	pending := newSearch(&Call{targets: targets}, late)
	targets[0] = nil
	pending.NodeAway()
	<-late.C
}
