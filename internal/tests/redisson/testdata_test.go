package redisson

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// kept are the states in testdata/README.md, with the results that a Go client must return for
// them.
var kept = map[string]struct {
	rate      rratelimiter.Rate
	available int64
	records   int
	lives     bool // has a TTL
}{
	"fresh":   {rate: rratelimiter.PerHour(5), available: 5},
	"part":    {rate: rratelimiter.PerHour(5), available: 2, records: 2},
	"full":    {rate: rratelimiter.PerHour(5), records: 2},
	"expired": {rate: rratelimiter.Rate{Permits: 5, Interval: 20 * time.Millisecond}, available: 5},
	"client": {
		rate:      rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Hour},
		available: 3,
		records:   1,
	},
	"ttl": {rate: rratelimiter.PerHour(5), available: 2, records: 2, lives: true},
	"keepalive": {
		rate: rratelimiter.Rate{Permits: 5, Interval: time.Hour, KeepAlive: 3 * time.Hour}, available: 3, records: 1,
		lives: true,
	},
}

// TestGoGoesOnFromStatesOfRedisson loads the state that each Redisson release wrote into an
// embedded server, reads it, takes the free permits, and checks that all permits return.
func TestGoGoesOnFromStatesOfRedisson(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/*/*.msgpack")
	if err != nil || len(files) < 11*6 {
		t.Fatalf("%d states in testdata: %v", len(files), err)
	}
	for _, file := range files {
		version := filepath.Base(filepath.Dir(file))
		state := strings.TrimSuffix(filepath.Base(file), ".msgpack")
		t.Run(version+"/"+state, func(t *testing.T) {
			ctx := t.Context()
			want := kept[state]
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := snapshot.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if s.Note != "Redisson "+version {
				t.Errorf("the snapshot's note is %q", s.Note)
			}
			server := limittest.New(t)
			if err := s.Restore(ctx, server.Redis(), snapshot.At(server.Now())); err != nil {
				t.Fatal(err)
			}
			var opts []rratelimiter.Option
			if len(s.Clients) == 1 {
				opts = append(opts, rratelimiter.WithClientID(s.Clients[0].ID))
			}
			limiter := server.Client(opts...).RateLimiter(s.Name)

			got, err := limiter.State(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if got.Rate != want.rate || got.Available != want.available || got.Records != want.records ||
				got.Used != want.rate.Permits-want.available || (got.TTL > 0) != want.lives || !got.Consistent {
				t.Errorf("Go sees %+v, want %+v", got, want)
			}
			if _, err := limiter.TryAcquire(ctx, 6); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Errorf("more than the rate: %v", err)
			}
			if want.available > 0 {
				if ok, err := limiter.TryAcquire(ctx, want.available); err != nil || !ok {
					t.Errorf("taking the %d that are free: %v, %v", want.available, ok, err)
				}
			}
			if ok, err := limiter.TryAcquire(ctx, 1); err != nil || ok {
				t.Errorf("taking one more: %v, %v", ok, err)
			}
			server.Advance(want.rate.Interval)
			if n, err := limiter.AvailablePermits(ctx); err != nil || n != 5 {
				t.Errorf("an interval later %d permits are free, %v", n, err)
			}
			if got, err := limiter.State(ctx); err != nil || got.Records != 0 || !got.Consistent {
				t.Errorf("an interval later Go sees %+v, %v", got, err)
			}
		})
	}
}
