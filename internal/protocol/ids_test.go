package protocol

import (
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// TestIDsAreKeptForEachRequest: a call with more permits than one record holds also reserves an id
// for each request.
func TestIDsAreKeptForEachRequest(t *testing.T) {
	identity := record.NewIdentity("client")
	identity.StartAt(100)
	var e Encoder
	e.Init(Options{RecordPerRequest: true}, identity, time.Now)
	new(AcquireRequest).Args(nil, &e,
		BatchAsk{
			Groups: []Group{
				{Permits: Permits{First: math.MaxUint32}, Count: 2},
				{Permits: Permits{First: 1}, Count: 3},
			},
		},
		false)
	if next := identity.AppendPrefix(nil, record.Redisson317, 1); next[len(next)-1] <= 105 {
		t.Errorf("the id after those of 5 requests ends with %d, those begin with 101", next[len(next)-1])
	}
}
