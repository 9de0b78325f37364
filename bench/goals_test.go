package main

import (
	"strings"
	"testing"
)

// ideal returns a report in which each goal is met: with large ratios, and with counts of zero.
func ideal() *Report {
	r := &Report{}
	add := func(workload, name string, s Sample) {
		s.Seconds = max(s.Seconds, 1)
		r.Rows = append(r.Rows, &Row{Workload: workload, Name: name, Samples: []Sample{s}})
	}
	peer, own := Sample{Requests: 100, P50: 100, P99: 100, Commands: 100}, Sample{
		Requests: 10_000_000, Denied: 9_000_000, P50: 100, P99: 200, Commands: 100,
	}
	for _, workload := range []string{
		hotName(1), hotName(64), hotName(1024), deniedName(1024), farName(farthest, 1), farName(farthest, 1024),
		uniformName(64), uniformName(1024),
		hotPairName(1024), pairsName(64), pairsName(1024),
	} {
		for _, name := range []string{
			rowPing, rowReturn1, rowRedisRate, rowScript, "Redisson 3.17.5, threads", "Redisson 4.7.0, async",
		} {
			add(workload, name, peer)
		}
		for _, name := range []string{rowLibrary, rowPerRequest, rowDenyCache} {
			add(workload, name, own)
		}
	}
	leased := Sample{Requests: 100_000_000, P50: .2, Commands: 10}
	for _, workload := range []string{hotName(1), hotName(1024), uniformName(1024), hotPairName(64)} {
		add(workload, rowLease, leased)
	}
	add(hotPairName(64), rowPing, peer)
	for _, name := range []string{rowServer, rowRefusing, rowLease, rowDenyCache} {
		add(gatewayName, name, Sample{Requests: 100, Allocs: 1000})
	}
	for _, demand := range demands {
		add(sharedName(demand), rowSharedLease,
			Sample{Requests: 10_000, Denied: 10, Permits: 9700, Limit: 10_000, Window: 1})
	}
	add(besideName, rowBeside, Sample{Permits: 60, ByJava: 40})
	add(besideName, rowBesideLease, Sample{Permits: 60, ByJava: 40})
	add(namesName, rowLease, Sample{Kept: 1_000_000})
	add(scriptTimeName, rowBare, Sample{PerCall: 10})
	add(scriptTimeName, rowLibrary, Sample{PerCall: 12})
	waits := Sample{Seconds: 9, Ideal: 9, Commands: 10}
	add(crowdName, rowLibrary, waits)
	add(crowdName, rowProcesses, waits)
	add(pairCrowdName, rowLibrary, waits)
	add(arriveName, rowGranularity, waits)
	add(crowdsName, rowLibrary, waits)
	add(memoryName, rowGranularity, Sample{Bytes: 100_000})
	add(javaMemoryName, rowLibrary, Sample{Longest: 2000, Slowest: 9000})
	return r
}

func verdict(t *testing.T, r *Report, goal string) Verdict {
	t.Helper()
	for _, v := range judge(r) {
		if strings.HasPrefix(v.Workload, goal) {
			return v
		}
	}
	t.Fatalf("there is no goal %q", goal)
	return Verdict{}
}

func TestGoalsAreMet(t *testing.T) {
	for _, v := range judge(ideal()) {
		if v.Met != met || v.Measured == "" {
			t.Errorf("%+v", v)
		}
	}
}

func TestOneFigureMissesAGoal(t *testing.T) {
	for _, c := range []struct {
		goal, workload, row string
		spoil               func(*Sample)
	}{
		{"hot limiter, 1,024 callers, default", hotName(1024), rowLibrary, func(s *Sample) { s.Requests = 999 }},
		{"hot limiter, 1,024 callers, default", hotName(1024), rowPing, func(s *Sample) { s.Requests = 1_000_001 }},
		{"hot limiter, 1,024 callers, default", hotName(1024), rowScript, func(s *Sample) { s.Requests = 700_000 }},
		{
			"hot limiter, 1,024 callers, default", hotName(1024), "Redisson 4.7.0, async",
			func(s *Sample) { s.Requests = 410_000 },
		},
		{"hot limiter, 1,024 callers, WithRecordPerRequest", hotName(1024), rowPerRequest, func(s *Sample) {
			s.Requests = 299
		}},
		{"hot limiter, 90 % denied, default", deniedName(1024), rowLibrary, func(s *Sample) { s.Requests = 999 }},
		{"hot limiter, 90 % denied, WithDenyCache", deniedName(1024), rowDenyCache, func(s *Sample) {
			s.Requests = 2999
		}},
		{"hot limiter, 90 % denied, WithDenyCache", deniedName(1024), rowDenyCache, func(s *Sample) {
			s.Commands = 901
		}},
		{"hot limiter behind", farName(farthest, 1024), rowLibrary, func(s *Sample) { s.P99 = 221 }},
		{"one caller, p50", hotName(1), rowLibrary, func(s *Sample) { s.P50 = 106 }},
		{"one caller, p50", hotName(1), rowReturn1, func(s *Sample) { s.P50 = 83 }},
		{"10,000 limiters", uniformName(1024), rowScript, func(s *Sample) { s.Requests = 7_000_000 }},
		{"10,000 limiters", uniformName(1024), rowRedisRate, func(s *Sample) { s.Requests = 7_500_000 }},
		{"10,000 limiters uniform, 64", uniformName(64), rowScript, func(s *Sample) { s.Requests = 9_000_000 }},
		{"10,000 limiters uniform, 64", uniformName(64), rowRedisRate, func(s *Sample) { s.Requests = 9_100_000 }},
		{"two limits for 10,000", pairsName(1024), rowRedisRate, func(s *Sample) { s.Requests = 7_700_000 }},
		{"two limits for 10,000 addresses, 64", pairsName(64), rowRedisRate, func(s *Sample) {
			s.Requests = 8_400_000
		}},
		{"two limits of one hot pair", hotPairName(1024), rowLibrary, func(s *Sample) { s.Requests = 499 }},
		{"time of the script", scriptTimeName, rowLibrary, func(s *Sample) { s.PerCall = 12.3 }},
		{"1,000 blocked", crowdName, rowLibrary, func(s *Sample) { s.Commands = 16 }},
		{"1,000 blocked", crowdName, rowLibrary, func(s *Sample) { s.Seconds = 9.05 }},
		{"1,000 blocked callers, arriving", arriveName, rowGranularity, func(s *Sample) { s.Commands = 101 }},
		{"hot limiter, 1,024 callers, lease", hotName(1024), rowLease, func(s *Sample) { s.Requests = 9_900_000 }},
		{"hot limiter, 1,024 callers, lease", hotName(1024), rowLease, func(s *Sample) { s.Commands = 51 }},
		{"one caller with a lease", hotName(1), rowLease, func(s *Sample) { s.P50 = .6 }},
		{
			"10,000 limiters uniform, 1,024 callers, leases", uniformName(1024), rowLease,
			func(s *Sample) { s.Requests = 999_999 },
		},
		{"two limits of one hot pair with leases", hotPairName(64), rowLease, func(s *Sample) { s.Requests = 2999 }},
		{"8 processes with leases", sharedName(80), rowSharedLease, func(s *Sample) { s.Denied = 11 }},
		{"8 processes, demand 120 %", sharedName(300), rowSharedLease, func(s *Sample) { s.Permits = 9699 }},
		{"8 processes, demand 120 %", sharedName(120), rowSharedLease, func(s *Sample) { s.Window = 1.0001 }},
		{"2 processes with leases beside", besideName, rowBesideLease, func(s *Sample) {
			s.ByJava, s.Permits = 35, 65
		}},
		{"500,000 names", namesName, rowLease, func(s *Sample) { s.Kept = 2_000_001 }},
		{"500,000 names", namesName, rowLease, func(s *Sample) { s.Goroutines = 1 }},
		{"20 processes", crowdName, rowProcesses, func(s *Sample) { s.Commands = 31 }},
		{"10,000 blocked", crowdsName, rowLibrary, func(s *Sample) { s.Commands = 31 }},
		{"10,000 blocked", crowdsName, rowLibrary, func(s *Sample) { s.Seconds = 9.19 }},
		{"memory", memoryName, rowGranularity, func(s *Sample) { s.Bytes = 200_001 }},
		{"longest script", javaMemoryName, rowLibrary, func(s *Sample) { s.Longest = 5001 }},
	} {
		r := ideal()
		c.spoil(&r.row(c.workload, c.row).Samples[0])
		if v := verdict(t, r, c.goal); v.Met != notMet {
			t.Errorf("%s, with %s spoilt: %+v", c.goal, c.row, v)
		}
	}
}

func TestWhatIsMissingIsNeitherMetNorMissed(t *testing.T) {
	r := ideal()
	row := r.row(memoryName, rowGranularity)
	row.Samples, row.Missing = nil, notOffered
	if v := verdict(t, r, "memory"); v.Met != notOffered || v.Measured != "" {
		t.Errorf("%+v", v)
	}
	r.row(crowdsName, rowLibrary).Workload = "another"
	if v := verdict(t, r, "10,000 blocked"); v.Met != unknown {
		t.Errorf("%+v", v)
	}
	if text := summary(judge(r)); text != "26 of 28 goals met, 0 not, 2 not measured" {
		t.Error(text)
	}
}

func TestAMissedGoalIsToldAlsoWhenAPartIsMissing(t *testing.T) {
	r := ideal()
	r.row(hotName(1024), rowLibrary).Samples[0].Requests = 999
	r.row(hotName(1024), rowScript).Name = "another"
	if v := verdict(t, r, "hot limiter, 1,024 callers, default"); v.Met != notMet {
		t.Errorf("%+v", v)
	}
}
