package classic_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // the zones below, on machines without them

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
)

// quota_test.go tests the ends of days.

// changing has a zone for each time at which the clocks of any zone change in 2027 and 2028, and
// one without changes.
var changing = []string{
	"Africa/Cairo", "Africa/Casablanca", "Africa/Ceuta", "America/Adak", "America/Anchorage", "America/Boise",
	"America/Chicago", "America/Detroit", "America/Ensenada", "America/Glace_Bay", "America/Godthab", "America/Havana",
	"America/Miquelon", "America/Santiago", "America/Scoresbysund", "America/St_Johns", "Antarctica/Macquarie",
	"Antarctica/McMurdo", "Antarctica/Troll", "Asia/Beirut", "Asia/Famagusta", "Asia/Gaza", "Asia/Jerusalem",
	"Atlantic/Azores", "Atlantic/Canary", "Australia/Adelaide", "Australia/LHI", "Chile/EasterIsland",
	"Europe/Chisinau",
	"NZ-CHAT", "Pacific/Norfolk", "UTC",
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	location, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

// A day ends when the date changes: not before and not after, around every change of clocks and
// every end of a year.
func TestQuotaDaysEndWhenTheDateChanges(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	rdb.AddHook(granter{})
	for _, name := range changing {
		location := zone(t, name)
		days := judgeDays{t: t, rdb: rdb, location: location}
		for at := time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2029; at = at.Add(6 * time.Hour) {
			_, before := at.In(location).Zone()
			_, after := at.Add(6 * time.Hour).In(location).Zone()
			if before != after || at.Month() == time.December && at.Day() == 31 && at.Hour() == 0 {
				days.around(at)
			}
		}
		if days.asked < 250 {
			t.Errorf("%s: only %d moments", name, days.asked)
		}
	}
	// In this zone a date is missing.
	(&judgeDays{t: t, rdb: rdb, location: zone(t, "Pacific/Apia")}).around(
		time.Date(2011, time.December, 30, 10, 0, 0, 0, time.UTC),
	)
	(&judgeDays{t: t, rdb: rdb, location: zone(t, "Pacific/Kwajalein")}).around(
		time.Date(1993, time.August, 21, 12, 0, 0, 0, time.UTC),
	)
}

type judgeDays struct {
	t        *testing.T
	rdb      *redis.Client
	location *time.Location
	asked    int
}

// around compares the ends of days with the minutes in which the date changes, for each hour of the
// days around a moment.
func (j *judgeDays) around(at time.Time) {
	j.t.Helper()
	from := at.Add(-30 * time.Hour)
	var ends []time.Time
	date := func(t time.Time) int { return t.In(j.location).YearDay() }
	for minute := from; minute.Before(at.Add(70 * time.Hour)); minute = minute.Add(time.Minute) {
		if date(minute) != date(minute.Add(-time.Nanosecond)) {
			ends = append(ends, minute)
		}
	}
	now := from
	q := classic.NewQuota(
		j.rdb, "user", 5, classic.Days{Location: j.location}, classic.WithClock(func() time.Time { return now }),
	)
	moments := slices.Clone(ends)
	for _, end := range ends {
		moments = append(moments, end.Add(-ms), end.Add(ms))
	}
	for moment := from; moment.Before(at.Add(36 * time.Hour)); moment = moment.Add(time.Hour) {
		moments = append(moments, moment, moment.Add(1234567*time.Microsecond))
	}
	for _, now = range moments {
		later := slices.IndexFunc(ends, func(end time.Time) bool { return end.After(now) })
		if later < 0 || now.Before(from) {
			continue
		}
		j.asked++
		r, err := q.Allow(j.t.Context(), 1)
		if err != nil {
			j.t.Fatal(err)
		}
		if got, want := now.Truncate(ms).Add(r.ResetAfter), ends[later]; !got.Equal(want) {
			j.t.Fatalf("%v: the day ends at %v, not at %v", now.In(j.location), got.In(j.location), want.In(j.location))
		}
	}
}

// A granter replies to every script with a count of one, without a server.
type granter struct{}

func (granter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (granter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (granter) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(interface{ SetVal([]int64) }).SetVal([]int64{1, 1})
		return nil
	}
}

// Where daylight saving time begins at midnight, the hour before it counts.
func TestQuotaHoldsBeforeAMidnightThatIsSkipped(t *testing.T) {
	onServers(t, func(b *bench) {
		for name, hour := range map[string]string{
			"America/Santiago": "2027-09-04 23:10",
			"America/Havana":   "2027-03-13 23:10",
			"Atlantic/Azores":  "2027-03-27 23:10",
		} {
			location := zone(t, name)
			now, err := time.ParseInLocation("2006-01-02 15:04", hour, location)
			if err != nil {
				b.Fatal(err)
			}
			b.now = now
			if b.mini != nil {
				b.mini.SetTime(now)
			}
			q := classic.NewQuota(b.rdb, name, 5, classic.Days{Location: location}, b.clock())
			equal(b, name, b.takes(q, 300), 5)
			r := b.refused(q, 1)
			equal(b, "retry after", r.RetryAfter, 50*time.Minute)
			b.lives(q.Key(), 51*time.Minute)
			b.pass(r.RetryAfter)
			b.granted(q, 5)
		}
	})
}

// One client's day is over while that of another, whose clock is behind, continues.
func TestQuotaHoldsWhereClocksDiffer(t *testing.T) {
	onServers(t, func(b *bench) {
		b.at(11*time.Hour + 59*time.Minute)
		behind := classic.WithClock(func() time.Time { return b.now.Add(-50 * time.Second) })
		early, late := classic.NewQuota(b.rdb, "user", 5, classic.Days{}, b.clock()), classic.NewQuota(
			b.rdb, "user", 5, classic.Days{}, behind,
		)
		b.granted(early, 5)
		b.at(12*time.Hour + 30*time.Second)
		b.refused(late, 1)
		b.granted(early, 5)
	})
}

// A client whose clock is behind the server's has a day that is over there.
func TestQuotaHoldsWithAClockThatIsBehind(t *testing.T) {
	onServers(t, func(b *bench) {
		b.at(11*time.Hour + 50*time.Minute)
		q := classic.NewQuota(
			b.rdb, "user", 5, classic.Days{},
			classic.WithClock(func() time.Time { return b.now.Add(-15 * time.Minute) }),
		)
		b.pass(20 * time.Minute)
		equal(b, "granted", b.takes(q, 20), 5)
		b.lives(q.Key(), 6*time.Minute)
		if count, err := q.Reset(b.Context()); err != nil || count != 5 {
			b.Error(count, err)
		}
		equal(b, "granted", b.takes(q, 20), 5)
	})
}

// Weeks, months and years follow each other without a gap, and begin on their day.
func TestQuotaPeriods(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	rdb.AddHook(granter{})
	week := func(first time.Weekday) func(begin, last time.Time) bool {
		return func(begin, last time.Time) bool {
			return begin.Weekday() == first && begin.Equal(last.AddDate(0, 0, 7))
		}
	}
	month := func(first int) func(begin, last time.Time) bool {
		return func(begin, last time.Time) bool {
			onDay := begin.Day() == first || begin.Day() < first && begin.AddDate(0, 0, 1).Day() == 1
			return onDay && begin.Month() == last.Month()%12+1
		}
	}
	year := func(first time.Month) func(begin, last time.Time) bool {
		return func(begin, last time.Time) bool {
			return begin.Month() == first && begin.Day() == 1 && begin.Equal(last.AddDate(1, 0, 0))
		}
	}
	for _, p := range []struct {
		period classic.Period
		prefix string
		// whether a period begins on a date, after one that began on another
		begins func(begin, last time.Time) bool
	}{
		{classic.Period{}, "user::", func(begin, last time.Time) bool { return begin.Equal(last.AddDate(0, 0, 1)) }},
		{classic.Weekly(time.Monday), "user::week:", week(time.Monday)},
		{classic.Weekly(time.Saturday), "user::week:", week(time.Saturday)},
		{classic.Monthly(1), "user::month:", month(1)},
		{classic.Monthly(15), "user::month:", month(15)},
		{classic.Monthly(29), "user::month:", month(29)},
		{classic.Monthly(31), "user::month:", month(31)},
		{classic.Yearly(time.January), "user::year:", year(time.January)},
		{classic.Yearly(time.April), "user::year:", year(time.April)},
	} {
		for _, name := range []string{"UTC", "America/Santiago", "Asia/Beirut", "Pacific/Auckland"} {
			location := zone(t, name)
			now := time.Date(2027, time.January, 10, 12, 34, 56, 0, location)
			q := classic.NewQuota(rdb, "user", 5, classic.Days{Location: location, Period: p.period},
				classic.WithClock(func() time.Time { return now }))
			began := func() time.Time {
				begin, err := time.Parse(p.prefix+time.DateOnly, q.Key())
				if err != nil {
					t.Fatal(err)
				}
				return begin
			}
			for now.Year() < 2029 {
				r, err := q.Allow(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				last, end := began(), now.Add(r.ResetAfter)
				if now = end.Add(-ms); !began().Equal(last) {
					t.Fatalf("%s: %s ends before %v", name, q.Key(), end)
				}
				now = end
				year, month, day := end.Date()
				if begin := began(); !p.begins(begin, last) ||
					!begin.Equal(time.Date(year, month, day, 0, 0, 0, 0, time.UTC)) {
					t.Fatalf("%s: after a period that began on %v, one begins at %v, with the key %s",
						name, last, end, q.Key())
				}
			}
		}
	}
	for _, wrong := range []classic.Period{
		classic.Weekly(7),
		classic.Monthly(0),
		classic.Monthly(32),
		classic.Yearly(0),
		classic.Yearly(13),
	} {
		if _, err := classic.NewQuota(rdb, "user", 5, classic.Days{Period: wrong}).Allow(t.Context(), 1); !errors.Is(
			err, rratelimiter.ErrInvalidOption,
		) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

// The largest limit is the largest whole number up to which Lua counts exactly, 2^53 - 1: each
// permit counts there, too.
func TestQuotaCountsEachPermitUpToTheLargestLimit(t *testing.T) {
	const most = 1<<53 - 1
	onServers(t, func(b *bench) {
		q := classic.NewQuota(b.rdb, "user", most, classic.Days{}, b.clock())
		equal(b, "remaining", b.granted(q, most-3).Remaining, 3)
		b.refused(q, 4)
		b.refused(q, most)
		equal(b, "remaining", b.granted(q, 1).Remaining, 2)
		equal(b, "remaining", b.granted(q, 1).Remaining, 1)
		if r, err := q.Peek(b.Context(), 1); err != nil || !r.Allowed || r.Remaining != 1 {
			b.Errorf("%+v, %v", r, err)
		}
		equal(b, "remaining", b.granted(q, 1).Remaining, 0)
		equal(b, "limit", b.refused(q, 1).Limit, most)
		b.holds("9007199254740991", "get", q.Key())
		if count, err := q.Return(b.Context(), 2); err != nil || count != most-2 {
			b.Error(count, err)
		}
		b.holds("9007199254740989", "get", q.Key())
		b.refused(q, 3)
		// A process with the limit of an hour ago: it grants nothing beside so high a count.
		b.refused(classic.NewQuota(b.rdb, "user", 5_000_000_000, classic.Days{}, b.clock()), 1)
		if count, err := q.Reset(b.Context()); err != nil || count != most-2 {
			b.Error(count, err)
		}
		b.granted(q, most)
		if _, err := classic.NewQuota(b.rdb, "user", most+1, classic.Days{}).Allow(b.Context(), 1); !errors.Is(
			err, rratelimiter.ErrInvalidRate) {
			b.Error(err)
		}
	})
}
