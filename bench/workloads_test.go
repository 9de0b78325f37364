package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestFarDelaysEachAnswer(t *testing.T) {
	b := newLab(t, quick)
	addr, stop, err := far(b.addr, farthest)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	rdb.Ping(t.Context()) // connects
	start := time.Now()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < farthest {
		t.Errorf("an answer came after %v", took)
	}
}

func TestThePlanHasARowForEachGoal(t *testing.T) {
	everything := regexp.MustCompile("")
	plan := (&lab{size: full}).plan(options{run: everything, rows: everything, java: []string{"4.7.0"}})
	report := &Report{}
	for _, w := range plan {
		for _, c := range w.rows {
			row := &Row{Workload: w.name, Name: c.name}
			for range full.repeats {
				row.Samples = append(
					row.Samples, Sample{Seconds: 1, Ideal: 1, Requests: 1, P50: 1, P99: 1, Commands: 1, PerCall: 1},
				)
			}
			report.Rows = append(report.Rows, row)
		}
	}
	for _, v := range judge(report) {
		if v.Met == unknown {
			t.Errorf("no workload measures this: %s: %s", v.Workload, v.Goal)
		}
	}
}

func TestTheFullPlanTakesAQuarterOfAnHour(t *testing.T) {
	everything := regexp.MustCompile("")
	for _, c := range []struct {
		size size
		most time.Duration
	}{{full, 17 * time.Minute}, {quick, 90 * time.Second}} {
		var sum time.Duration
		for _, w := range (&lab{size: c.size}).plan(
			options{run: everything, rows: everything, java: []string{"3.17.5", "4.7.0"}}) {
			sum += w.takes * time.Duration(len(w.rows)*c.size.repeats)
		}
		t.Logf("%v of %v", sum, c.most)
		if sum > c.most {
			t.Errorf("a run takes %v, more than %v", sum, c.most)
		}
	}
}

func TestRowsArePickedButForPing(t *testing.T) {
	plan := (&lab{size: full}).plan(
		options{run: regexp.MustCompile("^hot limiter, 64 callers$"), rows: regexp.MustCompile("redis_rate")},
	)
	if len(plan) != 1 || len(plan[0].rows) != 2 || plan[0].rows[0].name != rowPing ||
		plan[0].rows[1].name != rowRedisRate {
		t.Errorf("%+v", plan)
	}
}

func TestTenthOfPing(t *testing.T) {
	if r := tenth(Sample{Requests: 200_000, Seconds: 2}); r.Permits != 2500 || r.Interval != 250*time.Millisecond {
		t.Errorf("%v, want a tenth of 100,000/s", r)
	}
}
