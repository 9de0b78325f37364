package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// workloads.go defines the workloads and the rows of each.

// A workload is a kind of load on which rows are compared.
type workload struct {
	name    string
	takes   time.Duration // estimated, for one sample of one row
	rows    []*contender
	measure func(ctx context.Context, c *contender) (Sample, error)
}

// size holds the amounts of a full or a quick run.
type size struct {
	repeats     int
	warm, time  time.Duration // of one sample
	leaseWarm   time.Duration // the same, with leases of 1 s
	callers     []int         // on one limiter
	spread      []int         // callers on many limiters, or with different numbers of permits
	pairs       []int         // callers on pairs of limiters
	limiters    int
	scriptCalls int // of each script, on each limiter
	waiting     int // callers at 100 permits a second
	waitingMany int // callers at 1,000 permits a second
	processes   int
	sharedTime  time.Duration // of a sample of 8 processes
	names       int64         // that are used once
	outstanding int64         // permits
	javaWarm    time.Duration
}

var (
	full = size{
		repeats: 3, warm: 200 * time.Millisecond, time: 690 * time.Millisecond, leaseWarm: 3 * time.Second,
		callers:     []int{1, 64, 1024},
		spread:      []int{1, 64, 1024},
		pairs:       []int{64, 1024},
		limiters:    10_000,
		scriptCalls: 2,
		waiting:     1000, waitingMany: 10_000, processes: 20, sharedTime: 3 * time.Second, names: 500_000,
		outstanding: 1_000_000, javaWarm: warmUp,
	}
	quick = size{
		repeats: 1, warm: 260 * time.Millisecond, time: 97 * time.Millisecond, leaseWarm: 2 * time.Second,
		callers: []int{1, 1024}, spread: []int{1024}, pairs: []int{1024}, limiters: 10_000, scriptCalls: 1,
		waiting: 200, waitingMany: 2000, processes: 4, sharedTime: time.Second, names: 20_000, outstanding: 100_000,
		javaWarm: time.Second,
	}
)

// Names of the workloads; some depend on the number of callers.
func hotName(callers int) string { return "hot limiter, " + callersText(callers) }
func deniedName(callers int) string {
	return "hot limiter, asked for ten times its rate, " + callersText(callers)
}
func mixedName(callers int) string {
	return "hot limiter, 1 to 10 permits, half waiting, " + callersText(callers)
}
func farName(delay time.Duration, callers int) string {
	return fmt.Sprintf("hot limiter, Redis %v away, %s", delay, callersText(callers))
}
func uniformName(callers int) string { return "10,000 limiters, uniform, " + callersText(callers) }
func zipfName(callers int) string    { return "10,000 limiters, Zipf, " + callersText(callers) }
func hotPairName(callers int) string { return "two limits of one hot pair, " + callersText(callers) }
func pairsName(callers int) string {
	return "two limits for 10,000 addresses, " + callersText(callers)
}

// demands are those of 8 processes, in percent of the rate.
var demands = []int{80, 120, 300}

const sharers = 8

func sharedName(demand int) string {
	return fmt.Sprintf("%d processes, demand %d %% of the rate", sharers, demand)
}

const (
	crowdName     = "callers that wait, all at once"
	arriveName    = "callers that wait, arriving over an interval"
	pairCrowdName = "callers that wait for two limits, all at once"
	besideName    = "2 processes beside Java, all ask for more than the rate"
	crowdsName    = "callers that wait, ten times as many at ten times the rate"

	scriptTimeName = "time of a script in Redis"
	pairTimeName   = "time of a script in Redis, two limits"

	namesName      = "names that are used once"
	memoryName     = "permits outstanding, then expired at once"
	javaMemoryName = "permits outstanding as Java writes them, then expired at once"
)

// farthest is the longest delay of the replies of Redis.
const farthest = 20 * time.Millisecond

func callersText(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return thousands(int64(n)) + " callers"
}

// plan returns the workloads of a run, in order.
func (b *lab) plan(o options) []*workload {
	var all []*workload
	one := []string{"bench"}
	many := make([]string, b.limiters)
	for i := range many {
		many[i] = "bench:" + strconv.Itoa(i)
	}
	selected := func(rows []*contender) []*contender {
		return slices.DeleteFunc(slices.Clone(rows), func(c *contender) bool {
			return c.name != rowPing && !o.rows.MatchString(c.name) ||
				len(o.java) == 0 && (c.name == rowScript || c.name == rowMultiplexed)
		})
	}
	add := func(name string, takes time.Duration, rows []*contender,
		measure func(context.Context, *contender) (Sample, error)) {
		rows = selected(rows)
		if o.run.MatchString(name) && len(rows) > 0 {
			all = append(all, &workload{name, takes, rows, measure})
		}
	}
	takes := b.warm + b.time + 50*time.Millisecond
	loadScene := func(name string, rows []*contender, s scene, w work) {
		setUp := time.Duration(len(s.names)) * 5 * time.Microsecond
		if s.pairs() {
			setUp *= 2
		}
		add(name, takes+setUp, rows, func(ctx context.Context, c *contender) (Sample, error) {
			w.time = b.time
			return b.load(ctx, c, s, w)
		})
	}
	load := func(name string, rows []*contender, names []string, w work) {
		loadScene(name, rows, scene{addr: b.addr, names: names, rate: unlimited}, w)
	}

	peers := slices.Concat(
		contenders(rowPing, rowReturn1, rowRedisRate),
		javaRows(o.java, redisson.Sync, redisson.Async),
		contenders(rowScript),
	)
	leased := leaseRow(abundant, 100*time.Millisecond, 0)
	hot := slices.Concat(
		peers, contenders(rowGCRA, rowMultiplexed, rowLibrary, rowPerRequest, rowGranularity, rowAuto),
		[]*contender{leased},
	)
	for _, callers := range b.callers {
		load(hotName(callers), hot, one, work{callers: callers, limiters: 1})
	}
	denied := slices.Concat(peers, contenders(rowLibrary, rowPerRequest, rowGranularity, rowDenyCache))
	for _, callers := range b.callers {
		var limit rratelimiter.Rate
		add(deniedName(callers), takes, denied, func(ctx context.Context, c *contender) (Sample, error) {
			s := scene{addr: b.addr, names: one, rate: unlimited}
			if c.name != rowPing {
				s.rate = limit
			}
			sample, err := b.load(ctx, c, s, work{callers: callers, limiters: 1, time: b.time})
			if c.name == rowPing && err == nil {
				limit = tenth(sample)
			}
			return sample, err
		})
	}
	for _, callers := range b.spread {
		load(mixedName(callers), contenders(rowRedisRate, rowScript, rowLibrary, rowPerRequest, rowGranularity), one,
			work{callers: callers, limiters: 1, mixed: true})
	}
	for _, delay := range []time.Duration{time.Millisecond, farthest} {
		for _, callers := range []int{1, 1024} {
			add(
				farName(delay, callers),
				takes,
				contenders(rowPing, rowScript, rowLibrary),
				func(ctx context.Context, c *contender) (Sample, error) {
					addr, stop, err := far(b.addr, delay)
					if err != nil {
						return Sample{}, err
					}
					defer stop()
					sample, err := b.load(
						ctx, c, scene{addr: addr, names: one, rate: unlimited},
						work{callers: callers, limiters: 1, time: b.time},
					)
					sample.Allocs = 0 // they would include the proxy's
					return sample, err
				},
			)
		}
	}
	spreadRows := contenders(rowPing, rowRedisRate, rowScript, rowGCRA, rowMultiplexed, rowLibrary, rowAuto)
	for _, callers := range b.spread {
		rows := spreadRows
		if callers == 1024 { // each limiter is asked often enough for a lease
			rows = slices.Concat(rows, []*contender{leaseRow(abundantBeside, time.Second, b.leaseWarm)})
		}
		load(uniformName(callers), rows, many, work{callers: callers, limiters: b.limiters, spread: uniform})
	}
	for _, callers := range b.spread {
		load(zipfName(callers), spreadRows, many, work{callers: callers, limiters: b.limiters, spread: zipf})
	}
	pairs := func(name string, rows []*contender, names []string, callers int) {
		loadScene(name, rows, scene{b.addr, names, unlimited, unlimitedBeside},
			work{callers: callers, limiters: len(names)})
	}
	for _, callers := range b.pairs {
		leased := goRow(rowLease, allowAll(withLease(100*time.Millisecond)))
		leased.rate = abundant
		pairs(hotPairName(callers), append(pairRows(), leased), one, callers)
	}
	for _, callers := range b.pairs {
		pairs(pairsName(callers), pairRows(), many, callers)
	}

	load(gatewayName, gatewayRows(), one, work{callers: gatewayCallers, limiters: 1})

	times := func(name string, beside rratelimiter.Rate, scripts ...string) {
		var rows []*contender
		for _, script := range scripts {
			rows = append(rows, &contender{name: script})
		}
		rows = selected(rows)
		var samples map[*contender]Sample // of a round; the first row of a round measures all
		asked := time.Duration((1 + b.scriptCalls) * len(many))
		if beside.Permits > 0 {
			asked *= 2
		}
		add(name, asked*40*time.Microsecond, rows, func(ctx context.Context, c *contender) (Sample, error) {
			if _, measured := samples[c]; !measured {
				var err error
				if samples, err = b.scriptTimes(ctx, rows, scene{b.addr, many, lasting, beside}); err != nil {
					return Sample{}, err
				}
			}
			sample := samples[c]
			delete(samples, c)
			return sample, nil
		})
	}
	times(scriptTimeName, rratelimiter.Rate{}, rowReturn1, rowBare, rowScript, rowLibrary)
	times(pairTimeName, lastingBeside, rowBare, rowLibrary)

	hundred, thousand := rratelimiter.PerSecond(100), rratelimiter.PerSecond(1000)
	crowd := slices.Concat(javaRows(o.java, redisson.Sync), contenders(rowLibrary), []*contender{{name: rowProcesses}})
	waitIn := func(s scene, name string, rows []*contender, callers int, arrive time.Duration) {
		ideal := idealTime(callers, s.rate, arrive)
		add(name, ideal+300*time.Millisecond, rows, func(ctx context.Context, c *contender) (Sample, error) {
			return b.wait(ctx, c, s, callers, arrive)
		})
	}
	wait := func(name string, rows []*contender, callers int, rate rratelimiter.Rate, arrive time.Duration) {
		waitIn(scene{addr: b.addr, names: one, rate: rate}, name, rows, callers, arrive)
	}
	wait(crowdName, crowd, b.waiting, hundred, 0)
	wait(arriveName, contenders(rowLibrary, rowGranularity), b.waiting, hundred, hundred.Interval)
	wait(crowdsName, contenders(rowLibrary), b.waitingMany, thousand, 0)
	both := scene{addr: b.addr, names: one, rate: hundred, beside: hundred}
	waitIn(both, pairCrowdName, []*contender{goRow(rowLibrary, allowAll(nil))}, b.waiting, 0)

	share := func(g sharing, rows ...string) {
		var all []*contender
		for _, name := range rows {
			all = append(all, &contender{name: name})
		}
		add(g.name, b.sharedTime+sharedWarm+500*time.Millisecond, all,
			func(ctx context.Context, c *contender) (Sample, error) { return b.shared(ctx, c, g) })
	}
	for _, demand := range demands {
		share(
			sharing{name: sharedName(demand), processes: sharers, rate: rratelimiter.PerSecond(5000), demand: demand},
			rowShared,
			rowSharedLease,
		)
	}
	if len(o.java) > 0 {
		share(
			sharing{name: besideName, processes: 2, rate: rratelimiter.PerSecond(1000), demand: 300, java: true},
			rowBeside,
			rowBesideLease,
		)
	}
	add(namesName, time.Duration(b.names)*40*time.Microsecond+7*namesLease, []*contender{{name: rowLease}}, b.once)
	records := time.Duration(b.outstanding) * 5 * time.Microsecond
	add(memoryName, records, contenders(rowLibrary, rowPerRequest, rowGranularity), b.memory)
	add(javaMemoryName, records, contenders(rowScript, rowLibrary), b.javaMemory)
	return all
}

// tenth returns a rate that is a tenth of the requests per second in a sample of bare PING.
func tenth(s Sample) rratelimiter.Rate {
	r := unlimited
	r.Permits = max(1, int64(perSecond(s)*r.Interval.Seconds()/10))
	return r
}

// load measures a contender whose callers send requests as fast as possible.
func (b *lab) load(ctx context.Context, c *contender, s scene, w work) (Sample, error) {
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	if c.rate.Permits > 0 {
		if s.rate = c.rate; s.pairs() {
			s.beside = abundantBeside
		}
	}
	if err := b.setScene(ctx, s); err != nil {
		return Sample{}, err
	}
	r, err := c.open(ctx, b, s)
	if err != nil {
		return Sample{}, err
	}
	defer r.close()
	warm := w
	warm.time = cmp.Or(c.warm, b.warm)
	if _, err := r.run(ctx, warm); err != nil {
		return Sample{}, err
	}
	return b.spent(ctx, c, func() (counts, error) { return r.run(ctx, w) })
}

// spent returns a sample with the results of run and the resources used during it.
func (b *lab) spent(ctx context.Context, c *contender, run func() (counts, error)) (Sample, error) {
	runtime.GC()
	before, err := b.read(ctx)
	if err != nil {
		return Sample{}, err
	}
	seen, err := run()
	if err != nil {
		return Sample{}, err
	}
	after, err := b.read(ctx)
	if err != nil {
		return Sample{}, err
	}
	sample := Sample{
		Seconds: seen.took.Seconds(), Requests: seen.requests, Denied: seen.denied, Permits: seen.permits,
		P50: micros(seen.p50), P99: micros(seen.p99),
	}
	sample.spend(before, after, c)
	return sample, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// far starts a proxy that delays each reply of a server, and returns its address.
func far(addr string, delay time.Duration) (through string, stop func(), err error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "far", "127.0.0.1:0", addr)
	if err := proxy.Start(); err != nil {
		return "", nil, err
	}
	toxic := fmt.Sprintf(`{"type": "latency", "attributes": {"latency": %d}}`, delay.Milliseconds())
	if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		proxy.Stop()
		return "", nil, err
	}
	return proxy.Listen, proxy.Stop, nil
}
