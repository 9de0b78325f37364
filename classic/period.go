package classic

import (
	"fmt"
	"sort"
	"time"
)

// period.go decides on which dates the period of a Quota begins and ends.

// Days sets when a day, or another period, begins and how its date is written in keys.
type Days struct {
	Layout   string         // as in time.Format; "": time.DateOnly
	Location *time.Location // nil: UTC
	Period   Period         // what a quota is for; the zero Period is one day
}

// A Period is a number of whole days: one day (the zero value), a week, a month or a year. It
// begins with the date at which a day begins.
type Period struct {
	name string // in keys; "": a day
	// a week: the time.Weekday on which it begins; a month: the day of the month; a year: the month
	first int
}

// Weekly is a week that begins on a weekday.
func Weekly(first time.Weekday) Period { return Period{"week", int(first)} }

// Monthly is a month that begins on a day of the month, 1 to 31: 1 for calendar months, else the
// day of a billing date. In a month that is too short for this day, the period begins on the last
// day.
func Monthly(first int) Period { return Period{"month", first} }

// Yearly is a year that begins on the first day of a month: time.January for calendar years.
func Yearly(first time.Month) Period { return Period{"year", int(first)} }

// check returns an error if there is no such weekday, day of the month, or month.
func (p Period) check() error {
	switch {
	case p.name == "week" && (p.first < 0 || p.first > 6):
		return invalidOption("a week that begins on weekday %d, not 0 to 6", p.first)
	case p.name == "month" && (p.first < 1 || p.first > 31):
		return invalidOption("a month that begins on day %d, not 1 to 31", p.first)
	case p.name == "year" && (p.first < 1 || p.first > 12):
		return invalidOption("a year that begins with month %d, not 1 to 12", p.first)
	}
	return nil
}

// A date is a day of the calendar, as midnight UTC: days that a location skips, or in which clocks
// change, are days, too.
type date struct{ time.Time }

func dateOf(t time.Time) date {
	year, month, day := t.Date()
	return date{time.Date(year, month, day, 0, 0, 0, 0, time.UTC)}
}

// begin returns the date on which the period of a date began.
func (p Period) begin(d date) date {
	switch p.name {
	case "week":
		return date{d.AddDate(0, 0, -(int(d.Weekday())-p.first+7)%7)}
	case "month":
		if begin := p.inMonth(d, 0); !begin.After(d.Time) {
			return begin
		}
		return p.inMonth(d, -1)
	case "year":
		year := d.Year()
		if int(d.Month()) < p.first {
			year--
		}
		return date{time.Date(year, time.Month(p.first), 1, 0, 0, 0, 0, time.UTC)}
	}
	return d
}

// next returns the date on which the period after that of a date begins.
func (p Period) next(d date) date {
	switch p.name {
	case "week":
		return date{p.begin(d).AddDate(0, 0, 7)}
	case "month":
		return p.inMonth(p.begin(d), 1)
	case "year":
		return date{p.begin(d).AddDate(1, 0, 0)}
	}
	return date{d.AddDate(0, 0, 1)}
}

// inMonth returns the date on which a month's period begins, some months after the month of a date.
func (p Period) inMonth(d date, months int) date {
	year, month, _ := d.Date()
	last := time.Date(year, month+time.Month(months)+1, 0, 0, 0, 0, 0, time.UTC)
	return date{last.AddDate(0, 0, min(p.first, last.Day())-last.Day())}
}

// key returns what a key has behind the name: the date on which the period began and, unless that
// is a day, the kind of period.
func (d Days) key(begin date) string {
	text := begin.Format(d.Layout)
	if d.Period.name != "" {
		text = fmt.Sprintf("%s:%s", d.Period.name, text)
	}
	return text
}

// firstOf returns the first second after t, at t's location, whose date is not before a date, which
// is after that of t. Neither time.Date nor Time.ZoneBounds can compute it: a midnight that the
// clocks skip has no time, and the bounds are wrong at the end of a leap year.
func firstOf(d date, t time.Time) time.Time {
	const around = 2 * 24 * time.Hour // no date begins so long before or after its midnight in UTC
	if early := d.Add(-around).In(t.Location()); early.After(t) {
		t = early
	}
	second := func(i int) time.Time { return t.Truncate(time.Second).Add(time.Duration(i) * time.Second) }
	return second(sort.Search(int(2*around/time.Second), func(i int) bool { return !dateOf(second(i)).Before(d.Time) }))
}
