package simulate

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// trace.go has the traces of simulations: built-in, made from a pattern, or read.

// An arrival is a request for n permits, at a time after the beginning of a trace.
type arrival struct {
	at time.Duration
	n  int64
}

// A trace has requests, and the rate that limits them.
type trace struct {
	name, about string
	rate        rratelimiter.Rate
	length      time.Duration
	step        time.Duration // of a chart
	arrivals    []arrival
	charged     bool // the permits of a request are charged after it
}

// builtIn returns traces on which algorithms differ, each with its own limit.
func builtIn() []trace {
	three := rratelimiter.Rate{Permits: 1000, Interval: 3 * time.Second}
	edge := trace{
		name: "window-edge", about: "10, 10, 980, 900, 100 and 0 permits in seconds 1 to 6, in requests of 10",
		rate: three, length: 6 * time.Second, step: 200 * time.Millisecond,
		arrivals: seconds(10, 10, 10, 980, 900, 100, 0),
	}
	early := trace{
		name: "early-burst", about: "1000, 500 and 500 permits in seconds 1 to 3, in requests of 10",
		rate: three, length: 6 * time.Second, step: 200 * time.Millisecond,
		arrivals: seconds(10, 1000, 500, 500),
	}
	halves := trace{
		name: "two-halves", about: "five in the last half of a second and five in the first half of the next",
		rate: rratelimiter.PerSecond(5), length: 2 * time.Second, step: 50 * time.Millisecond,
	}
	for i := range 10 {
		halves.arrivals = append(halves.arrivals, arrival{time.Duration(i+5) * 100 * time.Millisecond, 1})
	}
	border := trace{
		name: "border", about: "ten at 0.9 s and ten at 1.1 s",
		rate: rratelimiter.PerSecond(10), length: 2 * time.Second, step: 50 * time.Millisecond,
	}
	for i := range 20 {
		border.arrivals = append(border.arrivals, arrival{time.Duration(9+i/10*2) * 100 * time.Millisecond, 1})
	}
	return []trace{edge, early, halves, border}
}

// seconds spreads a number of permits evenly over each second, in requests of n. There is a
// millisecond between two seconds, so that grants that expire after whole seconds are gone.
func seconds(n int64, permits ...int64) (arrivals []arrival) {
	for second, all := range permits {
		count := all / n
		for i := range count {
			at := time.Duration(second)*time.Second + time.Duration(i)*990*time.Millisecond/time.Duration(count)
			if second > 0 {
				at += time.Millisecond
			}
			arrivals = append(arrivals, arrival{at.Truncate(time.Millisecond), n})
		}
	}
	return arrivals
}

// patterns are traces that are made for a rate, a length and a load: the permits requested, as a
// multiple of the rate.
var patterns = map[string]string{
	"steady":  "requests as even as can be",
	"edge":    "the requests of each two intervals come close to the border between these intervals",
	"poisson": "requests at independent random times (a Poisson process)",
	"on-off":  "an interval of double load, then one of silence",
}

func pattern(name string, rate rratelimiter.Rate, length time.Duration, load float64, seed int64) (trace, error) {
	about, found := patterns[name]
	if !found {
		return trace{}, fmt.Errorf(
			"--trace %q: neither built in (%s) nor a pattern (%s) nor a file", name, names(builtInNames()),
			names(Patterns()),
		)
	}
	t := trace{name: name, about: fmt.Sprintf("%s, %g x the rate", about, load), rate: rate, length: length}
	perSecond := load * float64(rate.Permits) / rate.Interval.Seconds()
	if total := perSecond * length.Seconds(); total > maxArrivals {
		return trace{}, fmt.Errorf(
			"%.0f requests are more than %d: choose a lower rate or load, or less time", total, maxArrivals,
		)
	}
	random := rand.New(rand.NewSource(seed))
	gap := time.Duration(float64(time.Second) / perSecond)
	for at := time.Duration(0); at < length; {
		phase := at % (2 * rate.Interval)
		moved := at
		switch name {
		case "edge": // the two intervals, a tenth as long, around the border
			moved = at - phase + rate.Interval*9/10 + phase/10
		case "on-off":
			moved = at - phase + phase/2
		}
		t.length = max(t.length, moved+time.Millisecond)
		t.arrivals = append(t.arrivals, arrival{moved, 1})
		if name == "poisson" {
			at += time.Duration(random.ExpFloat64() * float64(gap))
		} else {
			at += gap
		}
	}
	return t, nil
}

const maxArrivals = 100_000

func builtInNames() (all []string) {
	for _, t := range builtIn() {
		all = append(all, t.name)
	}
	return all
}

// Patterns returns the names of patterns.
func Patterns() (all []string) {
	for name := range patterns {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func names(all []string) string { return strings.Join(all, ", ") }

// readTrace reads a log or CSV of timestamps: one request a line, its time first, with its permits
// in the column permits (from 1) unless that is 0. The first line may be the head of a CSV, and a
// line may be empty or begin with #. Any other line without a time at its beginning is an error.
// Times keep their fraction of a second.
func readTrace(name string, in io.Reader, rate rratelimiter.Rate, permits int) (trace, error) {
	t := trace{name: name, about: "read from " + name, rate: rate}
	var times []time.Time
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		at, err := timestamp(line)
		if err != nil && len(times) == 0 && number == 1 {
			continue
		}
		if err != nil {
			return t, fmt.Errorf("line %d: %w", number, err)
		}
		n := int64(1)
		if permits > 0 {
			columns := strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ';' || r == '\t' })
			if permits > len(columns) {
				return t, fmt.Errorf("line %d has no column %d", number, permits)
			}
			if n, err = strconv.ParseInt(strings.TrimSpace(columns[permits-1]), 10, 64); err != nil || n < 1 {
				return t, fmt.Errorf("line %d: %q is no number of permits", number, columns[permits-1])
			}
		}
		if len(times) == maxArrivals {
			return t, fmt.Errorf("more than %d requests", maxArrivals)
		}
		times = append(times, at)
		t.arrivals = append(t.arrivals, arrival{n: n})
	}
	if err := lines.Err(); err != nil {
		return t, err
	}
	if len(times) == 0 {
		return t, errors.New("no timestamps")
	}
	start := slices.MinFunc(times, time.Time.Compare).Truncate(time.Second)
	for i := range t.arrivals {
		t.arrivals[i].at = times[i].Sub(start)
	}
	slices.SortStableFunc(t.arrivals, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	t.length = t.arrivals[len(t.arrivals)-1].at.Truncate(time.Second) + time.Second
	return t, nil
}

var (
	plainNumber = regexp.MustCompile(`^\d+(\.\d+)?$`)
	bracketed   = regexp.MustCompile(`\[(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]`)
	leadingDate = regexp.MustCompile(`^\d{4}[-/]\d{2}[-/]\d{2}[T ]\d{2}:\d{2}:\d{2}([.,]\d+)?(Z|[+-]\d{2}:?\d{2})?`)
)

// timestamp parses the time of a line: seconds, ms, µs or ns as a number, by their size; a date and
// time at its beginning; or the one of a web server's log, in brackets.
func timestamp(line string) (time.Time, error) {
	first, _, _ := strings.Cut(strings.NewReplacer(",", " ", ";", " ", "\t", " ").Replace(line), " ")
	first = strings.Trim(first, `"`)
	if plainNumber.MatchString(first) {
		number, err := strconv.ParseFloat(first, 64)
		for _, unit := range []float64{1e18, 1e15, 1e12} { // ns, µs, ms since 1970
			if number >= unit/10 {
				return time.Unix(0, int64(number*1e18/unit)), err
			}
		}
		whole, part := math.Modf(number)
		return time.Unix(int64(whole), int64(math.Round(part*1e9))), err
	}
	if found := bracketed.FindStringSubmatch(line); found != nil {
		return time.Parse("02/Jan/2006:15:04:05 -0700", found[1])
	}
	if found := leadingDate.FindString(strings.TrimPrefix(line, `"`)); found != "" {
		found = strings.NewReplacer("/", "-", "T", " ", ",", ".").Replace(found)
		for _, layout := range []string{
			"2006-01-02 15:04:05",
			"2006-01-02 15:04:05Z07:00",
			"2006-01-02 15:04:05Z0700",
		} {
			if at, err := time.Parse(layout, found); err == nil {
				return at, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf(
		"no timestamp at the beginning, and none like [02/Jan/2006:15:04:05 +0000]: %.40q", line,
	)
}
