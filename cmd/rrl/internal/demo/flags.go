package demo

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
)

// flags.go has what rrl demo and the program in cmd/rrl/demo share: flags and help.

// Help describes a demo.
const Help = `demo sets the rate of a limiter and lets two kinds of callers use it, as if they were two processes: workers that
block in Acquire until their permits are granted, and pollers that TryAcquire and are denied when none are free.

It needs no installation: a server is embedded. With --redis it uses a real one, where a Java service can join; it
prints the Java code. A limiter that exists already keeps its rate and stays; only one that the demo made is removed.

With --java, a JVM with a real Redisson uses the limiter, too, with as many workers and pollers as there are in Go. That
needs a JDK, Maven, which gets the jars of Redisson the first time, and redis-server. The demo starts a redis-server in
place of the embedded one, unless there is --redis.

With --lease, each process takes permits from Redis ahead of demand, and then grants requests from these without
another call to Redis; the summary has the number of calls. The saving is largest with many pollers that want less than
the rate, as in the last example. If they want almost the rate, few permits are taken ahead, and while workers wait,
none.

Meanwhile an independent checker reads the records in Redis. It computes the largest number of permits in any window of
one interval. If that is above the rate, the demo fails with exit code 1.`

// Flags adds the flags of a demo to f. When they are parsed, options returns what they say.
func Flags(f *pflag.FlagSet) (options func() (Options, error)) {
	var o Options
	var java bool
	var release string
	f.StringVar(&o.Address, "redis", "", "`address` of a Redis: host:port, redis://, rediss:// or unix://, "+
		"a cluster as redis://host:port,host:port; without it a server is embedded")
	f.StringVar(&o.Name, "name", "rrl-demo", "`name` of the limiter")
	f.StringVar(&o.Rate, "rate", "50/s",
		"`rate` to set if the limiter has none: permits/interval, such as 50/s, 5/250ms, 1000/h")
	f.IntVar(&o.Load.Workers, "workers", 4, "callers that block in Acquire")
	f.IntVar(&o.Load.Pollers, "pollers", 2, "callers that TryAcquire")
	f.Int64Var(&o.Load.Permits, "permits", 1, "permits that each request asks for")
	f.Float64Var(&o.Load.Demand, "demand", 1.2,
		"permits that the workers want, as a `multiple` of the rate; 0: they never pause")
	f.DurationVar(&o.Lease, "lease", 0, "`length` of a lease, such as 20ms, at most a tenth of the interval: "+
		"each process takes permits ahead of demand")
	f.BoolVar(&java, "java", false, "workers and pollers in Java, too, with a real Redisson")
	f.StringVar(&release, "release", redisson.Release, "`release` of Redisson for --java: 3.17.0 or later")
	f.DurationVar(&o.Length, "for", 5*time.Second, "duration, with --java 15s; 0: until Ctrl-C")
	f.BoolVar(&o.Plain, "plain", false, "plain lines instead of a live view, as when the output is no terminal")
	f.SortFlags = false
	return func() (Options, error) {
		if f.Changed("release") && !java {
			return o, errors.New("--release is for --java")
		}
		if java {
			if err := redisson.Usable(release); err != nil {
				return o, fmt.Errorf("--release: %w", err)
			}
			o.Release = release
			if !f.Changed("for") {
				o.Length = 15 * time.Second
			}
		}
		return o, nil
	}
}
