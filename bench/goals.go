package main

import (
	"fmt"
	"strings"
)

// goals.go defines the goals and compares a report with them.

// A Verdict is the result of one goal.
type Verdict struct {
	Workload string `json:"workload"`
	Goal     string `json:"goal"`
	Measured string `json:"measured"`
	Met      string `json:"met"` // yes, NO, or the reason why a figure is missing
}

const (
	met     = "yes"
	notMet  = "NO"
	unknown = "not measured"
)

// A goal is a row of the table of goals. It is met if all of its checks hold.
type goal struct {
	workload, text string
	checks         []check
}

// A check is one figure and its bound.
type check struct {
	what  string // label after the figure
	bound float64
	least bool // bound is a minimum, else a maximum
	value func(*Report) (float64, string)
}

// found returns a row, or nil and the reason why it is missing.
func found(r *Report, workload, name string) (*Row, string) {
	if row := r.row(workload, name); row != nil {
		return row, ""
	}
	for _, row := range r.Rows {
		if row.Workload == workload && row.Name == name && row.Missing != "" {
			return nil, row.Missing
		}
	}
	return nil, unknown
}

// against returns a check of the ratio of two rows of one workload.
func against(what string, bound float64, least bool, workload, a, b string, of, by metric) check {
	return between(what, bound, least, workload, a, workload, b, of, by)
}

func between(what string, bound float64, least bool, workloadA, a, workloadB, b string, of, by metric) check {
	return check{what, bound, least, func(r *Report) (float64, string) {
		one, why := found(r, workloadA, a)
		if one == nil {
			return 0, why
		}
		other, why := found(r, workloadB, b)
		if other == nil {
			return 0, why
		}
		return ratio(one, other, of, by), ""
	}}
}

// figure returns a check of one figure of one row, in units of unit.
func figure(what string, bound float64, least bool, workload, name string, m metric, unit float64) check {
	return check{what, bound, least, func(r *Report) (float64, string) {
		row, why := found(r, workload, name)
		if row == nil {
			return 0, why
		}
		return row.median(m) / unit, ""
	}}
}

// guardFigure returns a check of the allocations of a guard for a request.
func guardFigure(what string, bound float64, name string) check {
	return check{what, bound, atMost, func(r *Report) (float64, string) {
		row, why := found(r, gatewayName, name)
		if row == nil {
			return 0, why
		}
		bare, why := found(r, gatewayName, bareServer(name))
		if bare == nil {
			return 0, why
		}
		return guardAllocs(row, bare), ""
	}}
}

const (
	atLeast = true
	atMost  = false
)

// fastestJava returns a check of the ratio of a row to the fastest Redisson row.
func fastestJava(what string, bound float64, workload, name string) check {
	return check{what, bound, atLeast, func(r *Report) (float64, string) {
		own, why := found(r, workload, name)
		if own == nil {
			return 0, why
		}
		var fastest *Row
		for _, row := range r.of(workload) {
			if isJava(row.Name) && len(row.Samples) > 0 &&
				(fastest == nil || row.median(perSecond) > fastest.median(perSecond)) {
				fastest = row
			}
		}
		if fastest == nil {
			return 0, unknown
		}
		return ratio(own, fastest, perSecond, perSecond), ""
	}}
}

// isOwn reports whether a row measures this library.
func isOwn(name string) bool { return strings.HasPrefix(name, rowLibrary) }

// isJava reports whether a row measures Redisson in a JVM.
func isJava(name string) bool { return strings.HasPrefix(name, "Redisson ") }

// goals returns the performance goals of this library on a machine with two processors.
func goals() []goal {
	rate := func(times float64, workload, a, b, what string) check {
		return against(what, times, atLeast, workload, a, b, perSecond, perSecond)
	}
	hot, denied, far := hotName(1024), deniedName(1024), farName(farthest, 1024)
	return []goal{
		{
			"hot limiter, 1,024 callers, default",
			"at least 10x bare PING, 15x Redisson's script by EVALSHA, 25x Redisson's Java client; aim at 20x PING",
			[]check{
				rate(10, hot, rowLibrary, rowPing, "x PING"), rate(15, hot, rowLibrary, rowScript, "x the script"),
				fastestJava("x the fastest Java", 25, hot, rowLibrary),
			},
		},
		{"hot limiter, 1,024 callers, WithRecordPerRequest", "at least 3x PING", []check{
			rate(3, hot, rowPerRequest, rowPing, "x PING"),
		}},
		{"hot limiter, 90 % denied, default", "at least 10x PING", []check{
			rate(10, denied, rowLibrary, rowPing, "x PING"),
		}},
		{
			"hot limiter, 90 % denied, WithDenyCache",
			"at least 30x PING and less than one EVAL per 10,000 denials",
			[]check{
				rate(30, denied, rowDenyCache, rowPing, "x PING"),
				figure("denials an EVAL", 10_000, atLeast, denied, rowDenyCache, deniedPerCall, 1),
			},
		},
		{"hot limiter behind 20 ms of network delay", "p99 of TryAcquire at most 2.2 round trips", []check{
			between("round trips", 2.2, atMost, far, rowLibrary, farName(farthest, 1), rowPing, p99, p50),
		}},
		{
			"one caller, p50 latency",
			`at most 1.20x EVALSHA "return 1"; at most 1.05x Redisson's script by EVALSHA`,
			[]check{
				against(`x "return 1"`, 1.20, atMost, hotName(1), rowLibrary, rowReturn1, p50, p50),
				against("x the script", 1.05, atMost, hotName(1), rowLibrary, rowScript, p50, p50),
			},
		},
		{
			"10,000 limiters uniform, 1,024 callers",
			"at least 1.5x the row Redisson's script, from Go, 1.35x redis_rate",
			[]check{
				rate(1.5, uniformName(1024), rowLibrary, rowScript, "x the script"),
				rate(1.35, uniformName(1024), rowLibrary, rowRedisRate, "x redis_rate"),
			},
		},
		{
			"10,000 limiters uniform, 64 callers",
			"at least 1.2x the row Redisson's script, from Go, 1.1x redis_rate",
			[]check{
				rate(1.2, uniformName(64), rowLibrary, rowScript, "x the script"),
				rate(1.1, uniformName(64), rowLibrary, rowRedisRate, "x redis_rate"),
			},
		},
		{"two limits for 10,000 addresses, 1,024 callers", "at least 1.3x two calls of redis_rate", []check{
			rate(1.3, pairsName(1024), rowLibrary, rowRedisRate, "x redis_rate"),
		}},
		{"two limits for 10,000 addresses, 64 callers", "at least 1.2x two calls of redis_rate", []check{
			rate(1.2, pairsName(64), rowLibrary, rowRedisRate, "x redis_rate"),
		}},
		{"two limits of one hot pair, 1,024 callers", "at least 5x bare PING", []check{
			rate(5, hotPairName(1024), rowLibrary, rowPing, "x PING"),
		}},
		{
			"hot limiter, 1,024 callers, lease of 100 ms of 10 s",
			"at least 10 M/s and 100x PING, at most 50 EVALs a second",
			[]check{
				figure("M/s", 10, atLeast, hot, rowLease, perSecond, 1e6), rate(100, hot, rowLease, rowPing, "x PING"),
				figure("EVALs/s", 50, atMost, hot, rowLease, commandsASecond, 1),
			},
		},
		{
			"one caller with a lease, p50 latency", "at most 0.5 µs",
			[]check{figure("µs", 0.5, atMost, hotName(1), rowLease, p50, 1)},
		},
		{"10,000 limiters uniform, 1,024 callers, leases of 1 s of 60 s", "at least 1 M/s", []check{
			figure("M/s", 1, atLeast, uniformName(1024), rowLease, perSecond, 1e6),
		}},
		{"two limits of one hot pair with leases, 64 callers", "at least 30x bare PING", []check{
			rate(30, hotPairName(64), rowLease, rowPing, "x PING"),
		}},
		{
			"HTTP requests with a limit that has a lease, and refused by a deny cache",
			"at least 0.8x the bare server; the guard makes at most 5 allocations a request",
			[]check{
				rate(0.8, gatewayName, rowLease, rowServer, "x with a lease"),
				rate(0.8, gatewayName, rowDenyCache, rowRefusing, "x refused"),
				guardFigure("allocations with a lease", 5, rowLease), guardFigure("refused", 5, rowDenyCache),
			},
		},
		{"8 processes with leases, demand 80 % of the rate", "at most 0.1 % denied", []check{
			figure("% denied", 0.1, atMost, sharedName(80), rowSharedLease, deniedShare, 0.01),
		}},
		{
			"8 processes, demand 120 % and 300 %, leases of interval/50",
			"at least 97 % of the rate used, no window above it",
			[]check{
				figure("% at 120 %", 97, atLeast, sharedName(120), rowSharedLease, used, 0.01),
				figure("% at 300 %", 97, atLeast, sharedName(300), rowSharedLease, used, 0.01),
				figure("% in a window at 120 %", 100, atMost, sharedName(120), rowSharedLease, largestWindow, 0.01),
				figure("% at 300 %", 100, atMost, sharedName(300), rowSharedLease, largestWindow, 0.01),
			},
		},
		{
			"2 processes with leases beside Java, all saturated",
			"Java's share at least 0.9x that without leases",
			[]check{
				against("x the share without leases",
					0.9, atLeast, besideName, rowBesideLease, rowBeside, javaShare, javaShare),
			},
		},
		{"500,000 names with leases that are used once", "at most 2 MB kept, no goroutine", []check{
			figure("MB", 2, atMost, namesName, rowLease, kept, 1e6),
			figure("goroutines", 0, atMost, namesName, rowLease, goroutines, 1),
		}},
		{"time of the script of a grant in Redis", "at most 1.22x its calls alone", []check{
			against("x the calls alone", 1.22, atMost, scriptTimeName, rowLibrary, rowBare, scriptTime, scriptTime),
		}},
		{
			"1,000 blocked callers at once, 100/s",
			"at most 15 EVALs for all, total time at most 1.005x the ideal",
			[]check{
				figure("EVALs", 15, atMost, crowdName, rowLibrary, commands, 1),
				figure("x the ideal", 1.005, atMost, crowdName, rowLibrary, overIdeal, 1),
			},
		},
		{"1,000 blocked callers, arriving over 1 s, WithGranularity(interval/50)", "at most 100 EVALs", []check{
			figure("EVALs", 100, atMost, arriveName, rowGranularity, commands, 1),
		}},
		{"20 processes x 50 blocked callers", "at most 3x the EVALs of one process", []check{
			against("x one process", 3, atMost, crowdName, rowProcesses, rowLibrary, commands, commands),
		}},
		{"10,000 blocked callers, 1,000/s", "at most 30 EVALs, total time at most 1.02x the ideal", []check{
			figure("EVALs", 30, atMost, crowdsName, rowLibrary, commands, 1),
			figure("x the ideal", 1.02, atMost, crowdsName, rowLibrary, overIdeal, 1),
		}},
		{
			"1,000 blocked callers of two limits at once, 100/s",
			"at most 15 EVALs for all, total time at most 1.005x the ideal",
			[]check{
				figure("EVALs", 15, atMost, pairCrowdName, rowLibrary, commands, 1),
				figure("x the ideal", 1.005, atMost, pairCrowdName, rowLibrary, overIdeal, 1),
			},
		},
		{"memory at 1,000,000 outstanding permits, WithGranularity(interval/1000)", "below 200 KB in the zset", []check{
			figure("KB", 200, atMost, memoryName, rowGranularity, setBytes, 1000),
		}},
		{"longest script, 1,000,000 records expiring at once, written by Java", "below 5 ms", []check{
			figure("ms", 5, atMost, javaMemoryName, rowLibrary, bounded, 1000),
		}},
	}
}

// judge returns the verdict of each goal.
func judge(r *Report) (verdicts []Verdict) {
	for _, g := range goals() {
		v := Verdict{Workload: g.workload, Goal: g.text, Met: met}
		var figures []string
		for _, c := range g.checks {
			value, why := c.value(r)
			switch {
			case why != "":
				if v.Met == met {
					v.Met = why
				}
				continue
			case c.least && value < c.bound, !c.least && value > c.bound:
				v.Met = notMet
			}
			figures = append(figures, quantity(value)+" "+c.what)
		}
		v.Measured = strings.Join(figures, ", ")
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// summary returns the counts of goals that are met, not met and not measured, as text.
func summary(verdicts []Verdict) string {
	var yes, no, other int
	for _, v := range verdicts {
		switch v.Met {
		case met:
			yes++
		case notMet:
			no++
		default:
			other++
		}
	}
	text := fmt.Sprintf("%d of %d goals met, %d not", yes, len(verdicts), no)
	if other > 0 {
		text += fmt.Sprintf(", %d not measured", other)
	}
	return text
}
