package demo

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

func perSecond(n int64) rratelimiter.Rate { return rratelimiter.PerSecond(n) }

// A scene is a witness that polls when a test calls it.
type scene struct {
	*witness
	t     *testing.T
	start time.Time
	ids   int
}

func newScene(t *testing.T, permits int64) *scene {
	w := newWitness(nil, "x", perSecond(permits), "client", func() int64 { return 0 })
	start := time.UnixMilli(1_000_000)
	w.began, w.last = start, start
	return &scene{witness: w, t: t, start: start}
}

// record returns a record with a time in ms after the start.
func (s *scene) record(ms int, permits uint32) redis.Z {
	s.ids++
	member, err := rratelimiter.PackRecord(
		rratelimiter.Redisson317, []byte{0, 0, 0, 0, 0, 0, byte(s.ids >> 8), byte(s.ids)}, permits,
	)
	if err != nil {
		s.t.Fatal(err)
	}
	return redis.Z{Score: float64(s.start.UnixMilli() + int64(ms)), Member: string(member)}
}

func (s *scene) at(ms int) time.Time { return s.start.Add(time.Duration(ms) * time.Millisecond) }

// looks makes the witness poll from one time to another, in ms after the start.
func (s *scene) looks(from, until int, records ...redis.Z) {
	s.take(look{from: s.at(from), until: s.at(until), rate: stored(s.rate), records: records})
}

func (s *scene) verdict(granted int64) verdict {
	return s.judge(window.NewChecker(s.rate.Interval), granted, granted)
}

func TestRecordsAreCountedOnce(t *testing.T) {
	s := newScene(t, 5)
	a, b := s.record(100, 3), s.record(200, 2)
	s.looks(100, 110, a)
	s.looks(200, 210, a, b)
	s.looks(300, 310, a, b)
	if v := s.verdict(5); v.err() != nil || v.largest != 5 || v.recorded != 5 || !v.complete || v.others != 0 {
		t.Errorf("%+v", v)
	}
	if p := s.picture(10); p.used != 5 || len(p.columns) != 10 || p.columns[8] != 2 || p.columns[7] != 3 {
		t.Errorf("%+v", p)
	}
}

// Permits are taken again as soon as they are free, so a poll finds both records, of which one has
// expired meanwhile.
func TestWhatIsInUseIsLiveAtOneTime(t *testing.T) {
	s := newScene(t, 5)
	a, b := s.record(0, 5), s.record(1002, 4)
	s.looks(100, 110, a)
	s.looks(700, 710, a)
	s.looks(998, 1006, a, b)
	if p := s.picture(2); p.used != 4 || p.columns[0] != 0 || p.columns[1] != 4 {
		t.Errorf("%+v", p)
	}
	s.looks(1100, 1105, b, s.record(1103, 3)) // too many are in use, and that is so
	if p := s.picture(0); p.used != 7 || p.largest != 7 {
		t.Errorf("%+v", p)
	}
}

// A sample has what is live at the end of a poll. Records whose id does not begin with Go are those
// of Java.
func TestSamples(t *testing.T) {
	s := newScene(t, 5)
	java := s.record(100, 2)
	ofGo, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte("Go123456"), 3)
	if err != nil {
		t.Fatal(err)
	}
	both := []redis.Z{java, {Score: float64(s.at(110).UnixMilli()), Member: string(ofGo)}}
	s.looks(100, 110, java)
	s.looks(150, 160, both...) // too early for another sample
	s.looks(210, 220, both...)
	s.looks(1090, 1105, both...)
	if got, want := s.picture(0).samples, []sample{{0, 2}, {3, 2}, {3, 0}}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// What comes after the end does not lower the throughput.
func TestThroughputUntilTheEnd(t *testing.T) {
	s := newScene(t, 5)
	a := s.record(10, 5)
	s.looks(10, 15, a)
	s.end(s.at(1010))
	s.looks(2500, 2505, a)
	if p := s.picture(0); p.over != 1 || p.average != 5 {
		t.Errorf("%+v", p)
	}
}

// A burst falls into each whole interval, though the bursts are a little more than an interval
// apart.
func TestThroughputIsThatOfWholeIntervals(t *testing.T) {
	s := newScene(t, 5)
	a, b, c := s.record(10, 5), s.record(1012, 5), s.record(2015, 5)
	s.looks(10, 15, a)
	s.looks(700, 705, a)
	s.looks(1400, 1405, b)
	s.looks(2020, 2025, b, c)
	s.looks(2700, 2705, c)
	if p := s.picture(0); p.over != 2 || p.average != 5 {
		t.Errorf("in the third interval: %+v", p)
	}
	s.looks(3013, 3014, c)
	if p := s.picture(0); p.over != 3 || p.average != 5 {
		t.Errorf("after three intervals: %+v", p)
	}
}

func TestAnIntervalApartIsNoFault(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, s.record(0, 5))
	s.looks(700, 710)
	s.looks(1000, 1010, s.record(1000, 5))
	if v := s.verdict(10); v.err() != nil || v.largest != 5 || v.scores != 5 {
		t.Errorf("%+v", v)
	}
}

func TestTooManyPermitsAreAFault(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, s.record(0, 5))
	s.looks(500, 510, s.record(505, 1))
	v := s.verdict(6)
	if v.err() == nil || v.largest != 6 ||
		!strings.Contains(v.err().Error(), "holds 6 permits by their records, and the rate is 5/s") {
		t.Errorf("%+v", v)
	}
}

// Where polls came too late to see each record, the throughput is a lower bound, until the
// intervals after that are whole.
func TestThroughputAfterLatePolls(t *testing.T) {
	s := newScene(t, 5)
	s.looks(10, 15, s.record(10, 5))
	s.looks(2010, 2015, s.record(2005, 5)) // those of the second interval are gone
	for ms := 2600; ms <= 8100; ms += 500 {
		s.looks(ms, ms+5, s.record(ms, 2))
		want := ms < 8000 // the last five intervals begin at 3000
		if p := s.picture(0); p.partial != want || strings.HasPrefix(p.perInterval(), "at least ") != want {
			t.Errorf("at %d ms: %+v, %s", ms, p, p.perInterval())
		}
	}
}

// A call that read its clock at 999 ms may be executed after one that read 1000 ms and freed the
// permits taken at 0.
func TestCallsThatPassEachOtherAreNoFault(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, s.record(0, 5))
	s.looks(600, 610)
	s.looks(998, 1008, s.record(999, 1), s.record(1000, 4))
	v := s.verdict(10)
	if v.err() != nil || v.largest != 5 || v.scores != 6 {
		t.Errorf("%+v", v)
	}
}

func TestGrantsWithoutRecordAreAFault(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, s.record(0, 3))
	if v := s.verdict(4); v.err() == nil ||
		!strings.Contains(v.err().Error(), "callers got 4 permits, the records hold 3") {
		t.Errorf("%+v", v)
	}
	s.looks(5000, 5010) // records that were written in between have expired unseen
	if v := s.verdict(4); v.err() != nil || v.complete {
		t.Errorf("%+v", v)
	}
}

// Calls in flight explain why records hold more than callers got, not why fewer records were seen.
func TestSummaryOfRecordsThatWentUnseen(t *testing.T) {
	for _, c := range []struct {
		seen              int64
		records, explains string
	}{
		{20, "20 permits; callers got as many", ""},
		{22, "22 permits seen; callers got 20; more may have gone unseen", "(the difference: up to 3 permits in calls"},
		{15, "15 permits seen; callers got 20; the demo read them too late, so the rest has gone unseen", ""},
	} {
		d := &course{traffic: newTraffic(Load{}, nil), witness: newScene(t, 5).witness}
		d.traffic.granted = 20
		var out strings.Builder
		d.summary(&out, verdict{recorded: c.seen, doubt: 3})
		text := strings.Join(strings.Fields(out.String()), " ")
		if !strings.Contains(text, c.records) || !strings.Contains(text, c.explains) ||
			(c.explains == "") == strings.Contains(text, "the difference") {
			t.Errorf("%d permits seen:\n%s", c.seen, out.String())
		}
	}
}

func TestCallersLogIsChecked(t *testing.T) {
	s := newScene(t, 5)
	log := window.NewChecker(time.Second)
	log.Add(window.Grant{Permits: 6, Start: s.at(1), End: s.at(2)})
	s.looks(0, 10, s.record(1, 5), s.record(2, 1))
	if v := s.judge(log, 6, 6); v.log != 6 || len(v.faults) == 0 {
		t.Errorf("%+v", v)
	}
}

func TestOthersAreWhatCallersDidNotGet(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, s.record(0, 3), s.record(5, 2))
	if v := s.judge(window.NewChecker(time.Second), 2, 3); v.others != 2 || v.err() != nil {
		t.Errorf("%+v", v)
	}
}

func TestAnotherRateBeginsAnew(t *testing.T) {
	s := newScene(t, 5)
	old := s.record(0, 5)
	s.looks(0, 10, old)
	s.take(look{from: s.at(100), until: s.at(110), rate: "2 1000 0", records: []redis.Z{old}})
	s.looks(200, 210, old, s.record(205, 2))
	if v := s.verdict(7); v.err() != nil || v.largest != 2 || v.complete {
		t.Errorf("%+v", v)
	}
	if p := s.picture(0); p.changed != "another client changed the rate from 5/s to 2/s after 100ms" ||
		p.rate != perSecond(2) {
		t.Errorf("%+v", p)
	}
	s.looks(300, 310, s.record(305, 1))
	s.take(look{from: s.at(400), until: s.at(410), rate: "  "})
	if v := s.verdict(8); v.err() == nil {
		t.Errorf("a fault was forgotten: %+v", v)
	}
}

func TestForeignMembersCountForNobody(t *testing.T) {
	s := newScene(t, 5)
	s.looks(0, 10, redis.Z{Score: 1_000_000, Member: "abc"}, redis.Z{Score: 1_000_001, Member: 7})
	if v := s.verdict(0); v.err() != nil || v.recorded != 0 {
		t.Errorf("%+v", v)
	}
}

func TestWitnessForgets(t *testing.T) {
	s := newScene(t, 5)
	for i := range 20000 {
		s.looks(i*10, i*10+5, s.record(i*10, 1))
	}
	if len(s.seen) > 3000 || len(s.recent) > 3000 {
		t.Errorf("%d records and %d moments in memory", len(s.seen), len(s.recent))
	}
}

func TestPermitsKey(t *testing.T) {
	for _, c := range []struct {
		name string
		kind rratelimiter.RateType
		key  string
	}{
		{"x", rratelimiter.Overall, "{x}:permits"},
		{"a{b}", rratelimiter.Overall, "a{b}:permits"},
		{"x", rratelimiter.PerClient, "{x}:permits:me"},
	} {
		if got := permitsKey(c.name, rratelimiter.Rate{Type: c.kind}, "me"); got != c.key {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestMain(m *testing.M) { redistest.Main(m) }

func TestNewRecordsAreTold(t *testing.T) {
	s := newScene(t, 5)
	var told []Grant
	s.told = func(g Grant) { told = append(told, g) }
	record := s.record(100, 3) // its id is not that of a Go client
	s.looks(100, 110, record)
	s.looks(200, 210, record)
	if want := []Grant{{s.at(100), 3, true}}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
