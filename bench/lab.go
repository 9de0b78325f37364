package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

// lab.go runs the redis-server of the benchmark and measures the rows of a workload in turn: each
// row once, then each row again, so that changes in the speed of the machine affect all rows alike.

// patience is the read timeout and the pool timeout: one of Redisson's scripts can block the server
// for a second.
const patience = time.Minute

// A lab is one redis-server and the processes that were started beside it.
type lab struct {
	size
	addr   string
	rdb    *redis.Client
	crew   *crew
	script string // the text that Redisson sends for tryAcquire; "" without Java
	javas  []*java
}

// measure runs the workloads and rows that the options select.
func measure(ctx context.Context, o options, p *progress) (*Report, error) {
	started := time.Now()
	folder, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	addr, stop, err := redistest.Open(folder)
	if err != nil {
		return nil, err
	}
	defer stop()
	b := &lab{
		size: full, addr: addr, rdb: redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience}), crew: &crew{},
	}
	defer b.rdb.Close()
	if o.quick {
		b.size = quick
	}
	report := &Report{
		At: started.UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU(), Quick: o.quick,
		Repeats: b.repeats,
	}
	info, err := b.info(ctx, "server")
	if err != nil {
		return nil, err
	}
	report.Redis = serverinfo.Server(info)

	plan := b.plan(o)
	if len(plan) == 0 {
		return nil, errors.New("nothing to measure: no workload matches -run")
	}
	if len(o.java) > 0 {
		p.say("starting Redisson " + strings.Join(o.java, " and ") + ", and warming it up")
		defer b.closeJava()
		if err := b.openJava(ctx, o.java); err != nil {
			return nil, fmt.Errorf("%w\n-java '' measures without Redisson", err)
		}
	}
	p.expect(plan, b.repeats)
	for _, w := range plan {
		rows := make([]*Row, len(w.rows))
		for i, c := range w.rows {
			rows[i] = &Row{Workload: w.name, Name: c.name}
		}
		for repeat := range b.repeats {
			for i, c := range w.rows {
				if rows[i].Missing != "" || rows[i].Fault != "" {
					p.skip(w)
					continue
				}
				p.begin(w, c, repeat)
				sample, err := w.measure(ctx, c)
				switch {
				case ctx.Err() != nil:
					return nil, ctx.Err()
				case errors.Is(err, rratelimiter.ErrInvalidOption) && strings.Contains(err.Error(), notOffered):
					rows[i].Missing = notOffered
				case err != nil:
					rows[i].Fault = err.Error()
				default:
					rows[i].Samples = append(rows[i].Samples, sample)
				}
				p.end(w, c, sample, rows[i].Fault)
			}
		}
		report.Rows = append(report.Rows, rows...)
	}
	p.over()
	report.Took = time.Since(started).Round(time.Second).Seconds()
	report.Verdicts = judge(report)
	return report, nil
}

// notOffered is the text by which ErrInvalidOption reports an option that this library does not
// have yet. The tables show it in place of the figures.
const notOffered = "not offered"

// clear removes all keys and all scripts, so that no sample depends on the one before.
func (b *lab) clear(ctx context.Context) error {
	if err := b.rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	return b.rdb.ScriptFlush(ctx).Err()
}

// setScene sets the rates of all limiters of a scene.
func (b *lab) setScene(ctx context.Context, s scene) error {
	err := b.setRates(ctx, s.names, s.rate)
	if err == nil && s.pairs() {
		others := s.others()
		err = b.setRates(ctx, others.names, others.rate)
	}
	return err
}

// setRates sets the rate of each limiter, none of which exists yet. It writes what SetRate would,
// in pipelines, which is faster for 10,000 limiters.
func (b *lab) setRates(ctx context.Context, names []string, rate rratelimiter.Rate) error {
	for part := range slices.Chunk(names, 1000) {
		_, err := b.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, name := range part {
				pipe.HSet(ctx, name, "rate", rate.Permits, "interval", rate.Interval.Milliseconds(), "type", "0")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A meter is a reading of the resources that the server and this process have used since their
// start.
type meter struct {
	cpu    float64 // of the server, in µs
	evals  int64
	pings  int64
	allocs int64 // objects on the heap of this process
}

func (b *lab) read(ctx context.Context) (meter, error) {
	info, err := b.info(ctx, "cpu", "commandstats")
	if err != nil {
		return meter{}, err
	}
	var m meter
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info[field], 64)
		if err != nil {
			return meter{}, fmt.Errorf("INFO says %s is %q", field, info[field])
		}
		m.cpu += seconds * 1e6
	}
	m.evals = calls(info["cmdstat_evalsha"]) + calls(info["cmdstat_eval"])
	m.pings = calls(info["cmdstat_ping"])
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	m.allocs = int64(memory.Mallocs)
	return m, nil
}

// spend stores in a sample the resources that were used between two readings.
func (s *Sample) spend(before, after meter, c *contender) {
	s.RedisCPU = after.cpu - before.cpu
	s.Commands = after.evals - before.evals
	if c.name == rowPing {
		s.Commands = after.pings - before.pings
	}
	if !c.java {
		s.Allocs = after.allocs - before.allocs
	}
}

// info returns the fields of sections of INFO.
func (b *lab) info(ctx context.Context, sections ...string) (map[string]string, error) {
	text, err := b.rdb.Info(ctx, sections...).Result()
	if err != nil {
		return nil, err
	}
	return serverinfo.Fields(text), nil
}

// calls returns the number of calls in a line of commandstats; 0 for the empty line of a command
// that was never called.
func calls(stat string) int64 {
	n, _ := strconv.ParseInt(statField(stat, "calls"), 10, 64)
	return n
}

// statField returns a field of a line of commandstats; "" if the line does not have it.
func statField(stat, name string) string {
	for part := range strings.SplitSeq(stat, ",") {
		if text, found := strings.CutPrefix(part, name+"="); found {
			return text
		}
	}
	return ""
}
