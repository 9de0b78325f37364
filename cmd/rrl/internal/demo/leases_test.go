package demo

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// leased returns a scene with leases, and a function that makes the records of a Go client at a
// time in ms after the start.
func leased(t *testing.T, permits int64) (*scene, func(client string, ms int, permits byte) redis.Z) {
	s := newScene(t, permits)
	s.live = &liveRecords{holdings: map[string]holding{}}
	return s, func(client string, ms int, permits byte) redis.Z {
		s.ids++
		id := "Go" + client + string([]byte{permits, 0, 0, 0, 0, 0, byte(s.ids)})
		return redis.Z{
			Score: float64(s.start.UnixMilli() + int64(ms)), Member: "\x0c" + id + string([]byte{permits, 0, 0, 0}),
		}
	}
}

// A record of a lease is replaced by larger ones and returns in part; what is left of it at last
// counts.
func TestRecordsOfLeasesCountAsTheyAreLeft(t *testing.T) {
	s, record := leased(t, 10)
	s.looks(0, 10, record("abc", 100, 4))
	s.looks(20, 30, record("abc", 100, 9), record("xyz", 100, 1))
	s.looks(110, 120, record("abc", 100, 5))
	s.looks(210, 220, record("abc", 100, 5), record("abc", 300, 5))
	if v := s.verdict(10); v.err() != nil || v.largest != 10 || v.recorded != 10 || v.others != 0 {
		t.Errorf("%+v", v)
	}
	s.looks(1150, 1160, record("abc", 300, 5), record("abc", 1200, 5)) // the first has expired
	if v := s.verdict(15); v.err() != nil || v.largest != 10 || v.recorded != 15 {
		t.Errorf("%+v", v)
	}
	if p := s.picture(10); p.used != 10 {
		t.Errorf("%+v", p)
	}
}

func TestTooManyLiveRecordsOfLeasesAreAFault(t *testing.T) {
	s, record := leased(t, 10)
	s.looks(0, 10, record("abc", 100, 6), record("xyz", 100, 5))
	if v := s.verdict(0); v.err() == nil ||
		!strings.Contains(v.err().Error(), "live records held 11 permits at one moment, and the rate is 10/s") {
		t.Errorf("%+v", v)
	}
}
