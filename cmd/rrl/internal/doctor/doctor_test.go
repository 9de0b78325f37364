package doctor

import (
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { rrltest.Main(m) }

func TestSkewOfTheClock(t *testing.T) {
	for _, off := range []time.Duration{-time.Minute, 0, time.Minute} {
		real := redistest.Shared(t)
		ahead, wrong, err := skew(t.Context(), real.Client(), func() time.Time { return time.Now().Add(off) })
		if err != nil || (ahead+off).Abs() > wrong+time.Millisecond || wrong <= 0 {
			t.Errorf("a clock that is %v off is measured as %v, +- %v (%v)", off, -ahead, wrong, err)
		}
	}
}

func TestDoctorPassesOverWhatHasGoneMeanwhile(t *testing.T) {
	server := redistest.Embedded(t)
	s, err := connect.Open(t.Context(), connect.Flags{Address: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if found, err := examineFound(t.Context(), s, "gone", []string{"one"}); err != nil || len(found.findings) > 0 {
		t.Errorf("of a limiter that is gone it says %v, %v", found, err)
	}
	if _, err := Named(t.Context(), s, []string{"never"}); !errors.Is(err, rratelimiter.ErrNotInitialized) {
		t.Errorf("of one that was asked for it says %v", err)
	}
}

func TestDoctorKnowsServers(t *testing.T) {
	for _, c := range []struct {
		h        host
		shortest time.Duration
		want     string
	}{
		{host{info: map[string]string{"redis_version": "6.2.0", "role": "master"}}, time.Second, ""},
		{host{info: map[string]string{"redis_version": "5.0.14"}}, 0, "error old-server"},
		{host{info: map[string]string{"redis_version": "6.0"}}, 0, "error old-server"},
		{host{info: map[string]string{"redis_version": "255.255.255"}}, 0, ""},
		{host{info: map[string]string{"redis_version": "unstable"}}, 0, ""},
		{host{info: map[string]string{"role": "slave"}}, 0, "error replica"},
		{
			host{
				info:     map[string]string{"cluster_enabled": "1"},
				settings: map[string]string{"cluster-require-full-coverage": "yes"},
			},
			0,
			"note full-coverage",
		},
		{host{ahead: 40 * time.Millisecond}, 10 * time.Millisecond, ""},
		{host{ahead: -80 * time.Millisecond}, time.Minute, "warning clock-skew"},
		{host{ahead: -80 * time.Millisecond, error: 40 * time.Millisecond}, time.Minute, ""},
		{host{ahead: 80 * time.Millisecond}, 500 * time.Millisecond, "error clock-skew"},
		{host{ahead: 1100 * time.Millisecond}, time.Hour, "error clock-skew"},
	} {
		got := ""
		for _, f := range c.h.judge(c.shortest, false) {
			got += f.Severity.String() + " " + f.Code
			if f.Text == "" || f.Advice == "" {
				t.Errorf("%s says too little", f.Code)
			}
		}
		if got != c.want {
			t.Errorf("of %+v it says %q, want %q", c.h, got, c.want)
		}
	}
}
