// Package demo runs workers, which wait for permits, and pollers, which do not, on one limiter, and
// on request also threads of a real Redisson. It shows the grants live or line by line. It checks
// the limit by the results of the callers and by the records in Redis. It does not parse commands.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// demo.go has the run of a demo, and the texts before and after.

// Options are what the flags of demo say.
type Options struct {
	// address is "" for a private server; rate is set if the limiter has none
	Address, Name, Rate string
	Load                Load
	Release             string        // of a Redisson whose threads make the same requests; "": none
	Lease               time.Duration // of workers and pollers; 0: none
	Length              time.Duration // 0: until the context ends
	Plain               bool          // lines of text, even on a terminal
	// called for each record, unless there are leases; nil: not called
	Seen func(Grant)
}

// A Grant is a record that the demo saw: its time, its permits, and whether Java wrote it.
type Grant struct {
	At      time.Time
	Permits int64
	Java    bool
}

// read checks the options and returns the rate.
func (o *Options) read() (rratelimiter.Rate, error) {
	rate, err := rratelimiter.ParseRate(o.Rate)
	switch {
	case err != nil:
		return rate, errors.New(connect.Redacted("--rate: " + err.Error()))
	case rate.Permits == 0:
		return rate, fmt.Errorf("--rate %v: it refuses every request", rate)
	case o.Load.Workers < 0 || o.Load.Pollers < 0 || o.Load.Workers+o.Load.Pollers == 0:
		return rate, errors.New("--workers and --pollers: at least one caller is needed")
	case o.Load.Workers+o.Load.Pollers > 10000:
		return rate, errors.New("--workers and --pollers: at most 10000 together")
	case o.Load.Permits < 1:
		return rate, fmt.Errorf("--permits %d: must be positive", o.Load.Permits)
	case !(o.Load.Demand >= 0 && o.Load.Demand <= 1e6):
		return rate, fmt.Errorf("--demand %v: must be 0 to 1000000", o.Load.Demand)
	case o.Length < 0:
		return rate, fmt.Errorf("--for %v: must not be negative", o.Length)
	case o.Lease < 0 || o.Lease%time.Millisecond != 0 || o.Lease > rate.Interval/10:
		return rate, fmt.Errorf("--lease %v: must be whole milliseconds, at most a tenth of the interval", o.Lease)
	case o.Name == "":
		return rate, errors.New("--name: must not be empty")
	}
	return rate, nil
}

// Run runs one demo from beginning to end. The error is a failure, or that the limit was not kept.
func Run(ctx context.Context, o Options, in io.Reader, out io.Writer) error {
	rate, err := o.read()
	if err != nil {
		return err
	}
	private, java, jar := o.Address == "", o.Release != "", ""
	if java {
		if err := redisson.Missing(ctx, private); err != nil {
			return err
		}
		if jar, err = build(ctx, o.Release, out); err != nil {
			return err
		}
		if private {
			address, stop, err := redisson.Server(ctx)
			if err != nil {
				return err
			}
			defer stop()
			o.Address = address
		}
	}
	s, err := connect.To(o.Address)
	if err != nil {
		return err
	}
	defer s.Close()
	if private && java {
		s.Private, s.Where = true, "a private redis-server"
	}
	if java && (s.Options == nil || s.Options.Network != "tcp") {
		return errors.New("--java: the address of --redis must be that of a single server, by host and port")
	}
	return s.Clean(demoOn(ctx, s, o, rate, jar, in, out))
}

// demoOn runs a demo on a server; jar is that of the JVM, if there is one.
func demoOn(
	ctx context.Context, s *connect.Server, o Options, rate rratelimiter.Rate, jar string, in io.Reader, out io.Writer,
) error {
	outer := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	owner := rratelimiter.NewClient(s.Redis)
	limiter := owner.RateLimiter(o.Name)
	created, err := limiter.TrySetRate(ctx, rate)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Where, err)
	}
	wanted := rate
	if rate, err = limiter.Config(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.Where, err)
	}
	o.Load.rate, o.Load.lease, o.Load.java = rate, o.Lease, jar != ""

	render.Line(out, 0, fmt.Sprintf("Limiter %s on %s, rate %v", render.Printable(o.Name), s.Where, rate))
	sides := ""
	if jar != "" {
		sides = fmt.Sprintf("Go and Java (Redisson %s), each: ", o.Release)
	}
	render.Line(out, 0, sides+count(o.Load.Workers, "worker", "blocks", "block")+" in Acquire, "+
		count(o.Load.Pollers, "poller", "tries", "try")+" TryAcquire")
	if !created && rate != wanted {
		render.Line(
			out, 0,
			fmt.Sprintf("The limiter was there already, with the rate %v. That one stays and is used, not %v.",
				rate, wanted),
		)
	} else if !created {
		fmt.Fprintln(out, "The limiter was there already, with this rate.")
	}
	java := ""
	if !s.Private && jar == "" {
		java = javaSnippet(s, o.Name, rate, o.Load.Permits)
		fmt.Fprintf(out, "\n%s\n", java)
	}
	d := &course{server: s, name: o.Name, length: o.Length, began: time.Now(), release: o.Release}
	switch {
	case o.Load.Permits > rate.Permits:
		err = fmt.Errorf("--permits %d: the rate %v never grants so many at once", o.Load.Permits, rate)
	case jar != "" && rate.Type == rratelimiter.PerClient:
		err = fmt.Errorf("--java: Go and Java do not share the rate %v", rate)
	case jar != "":
		d.java, err = redisson.Start(ctx, jar, settings(s, o))
	}
	if err != nil {
		if created {
			_, remove := limiter.Delete(context.WithoutCancel(ctx))
			err = errors.Join(err, remove)
		}
		return err
	}
	if d.java != nil {
		defer d.java.Close()
	}

	d.traffic = newTraffic(o.Load, stop)
	// Workers and pollers are two clients, so that they share only through Redis. With a rate for
	// each client they are one: there would be nothing to share.
	workers := rratelimiter.NewClient(s.Redis, rratelimiter.WithObserver(d.traffic))
	options := []rratelimiter.Option{rratelimiter.WithObserver(d.traffic)}
	if rate.Type == rratelimiter.PerClient {
		options = append(options, rratelimiter.WithClientID(workers.ID()))
	}
	pollers := rratelimiter.NewClient(s.Redis, options...)
	d.witness = newWitness(s.Redis, o.Name, rate, workers.ID(), func() int64 {
		_, most := d.traffic.own()
		return most
	})
	d.witness.told = o.Seen

	var limiterOptions []rratelimiter.LimiterOption
	if o.Lease > 0 {
		limiterOptions = append(limiterOptions, rratelimiter.WithLease(o.Lease))
		d.witness.live = &liveRecords{}
	}
	err = d.run(
		ctx, stop, workers.RateLimiter(o.Name, limiterOptions...), pollers.RateLimiter(o.Name, limiterOptions...),
		view(o, java, in, out),
	)
	if outer.Err() != nil && err == context.Cause(outer) {
		err = nil // Ctrl-C is a regular end
	}
	least, most := d.traffic.own()
	v := d.witness.judge(d.traffic.checker, least, most)
	d.summary(out, v)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	left := d.leave(after, out, created, v, workers.RateLimiter(o.Name))
	return errors.Join(err, v.err(), left)
}

// A show displays figures until ctx ends, or the user quits.
type show func(ctx context.Context, figures func(columns int) figures) error

// view returns how to display a demo.
func view(o Options, java string, in io.Reader, out io.Writer) show {
	if !o.Plain && render.IsTerminal(out) {
		return func(ctx context.Context, f func(int) figures) error { return showLive(ctx, f, java, in, out) }
	}
	return func(ctx context.Context, f func(int) figures) error { return showPlain(ctx, f, out) }
}

// A course is a running demo.
type course struct {
	server  *connect.Server
	name    string
	length  time.Duration
	began   time.Time
	ended   time.Time
	traffic *traffic
	witness *witness
	java    *redisson.Process // nil if there is no Java
	release string            // of its Redisson; "" if there is no Java
}

// run runs callers, witness and view until the time is up, the user quits, or something fails.
func (d *course) run(
	ctx context.Context, stop context.CancelCauseFunc, workers, pollers *rratelimiter.Limiter, show show,
) error {
	if err := d.witness.begin(ctx); err != nil {
		return err
	}
	d.began = time.Now()
	if d.length > 0 {
		timer := time.AfterFunc(d.length, func() { stop(nil) })
		defer timer.Stop()
	}
	watching, enough := context.WithCancel(context.WithoutCancel(ctx))
	defer enough()
	var callers, watch sync.WaitGroup
	callers.Go(func() { d.traffic.run(ctx, workers, pollers) })
	if d.java != nil {
		callers.Go(func() {
			if err := d.java.Run(ctx, d.traffic.answeredInJava); err != nil {
				stop(err)
			}
		})
	}
	watch.Go(func() {
		if err := d.witness.watch(watching); err != nil {
			stop(err)
		}
	})
	if err := show(ctx, d.figures); err != nil {
		stop(fmt.Errorf("show: %w", err))
	}
	stop(nil)
	d.ended = time.Now() // a JVM may take a second to end
	d.witness.end(d.ended)
	callers.Wait()
	enough()
	watch.Wait()
	err := d.last(context.WithoutCancel(ctx))
	if cause := context.Cause(ctx); cause != context.Canceled {
		return cause // the first failure says most
	}
	return err
}

// last makes the last polls. Calls that were in flight when their callers stopped still complete,
// and leave records. What is unused of leases comes back when they are over, within 2.25 times
// their length.
func (d *course) last(ctx context.Context) error {
	time.Sleep(3 * d.traffic.load.lease)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for deadline := time.Now().Add(300 * time.Millisecond); ; time.Sleep(5 * time.Millisecond) {
		if err := d.witness.look(ctx); err != nil {
			return err
		}
		if _, most := d.traffic.own(); most == d.witness.picture(0).recorded || time.Now().After(deadline) {
			return nil
		}
	}
}

// figures returns what a view may show.
func (d *course) figures(columns int) figures {
	f := figures{
		name: render.Printable(d.name), where: d.server.Where, alone: d.server.Private,
		release: d.release, length: d.length, elapsed: time.Since(d.began), picture: d.witness.picture(columns),
	}
	t := d.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	f.callers = append(f.callers, t.callers...)
	f.side, f.java, f.repaired = t.side, t.java, t.repaired
	for _, c := range t.callers {
		if c.blocks && c.state == asking {
			f.waiting++
		}
	}
	return f
}

// summary writes the result.
func (d *course) summary(out io.Writer, v verdict) {
	t, p := d.traffic, d.witness.picture(0)
	t.mu.Lock()
	defer t.mu.Unlock()
	took := d.ended.Sub(d.began)
	line := func(what, format string, args ...any) {
		render.Line(out, 18, fmt.Sprintf("  %-16s", what)+fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(out, "\nSummary of %v\n", took.Round(10*time.Millisecond))
	granted := func(s side) string {
		return fmt.Sprintf("%s: %s to workers, %s to pollers",
			render.Number(s.granted, "permit"), render.Thousands(s.granted-s.polled), render.Thousands(s.polled))
	}
	all := t.granted + t.java.granted
	if d.java == nil {
		line("granted", "%s; %s to Redis", granted(t.side), render.Number(t.calls, "call"))
	} else {
		inGo, inJava := shares(t.granted, t.java.granted)
		line("Go", "%s, %s; %s to Redis", inGo, granted(t.side), render.Number(t.calls, "call"))
		line("Java", "%s, %s", inJava, granted(t.java))
	}
	if t.load.lease > 0 {
		line(
			"leases", "%s taken ahead of demand, %s of them given back", render.Number(t.ahead, "permit"),
			render.Thousands(t.returned),
		)
	}
	if v.others > 0 {
		line("others", "%s granted to other processes", render.Number(v.others, "permit"))
	}
	if d.java == nil {
		line("denied", "%s of pollers", render.Number(t.denied, "request"))
		line("longest wait", "%s", render.Wait(t.longest))
	} else {
		line("denied",
			"%s of pollers in Go, %s in Java", render.Number(t.denied, "request"), render.Thousands(t.java.denied))
		line("longest wait", "%s in Go, %s in Java", render.Wait(t.longest), render.Wait(t.java.longest))
	}
	if p.over > 0 {
		over := "interval"
		if p.over > 1 {
			over = render.Number(int64(p.over), over)
		}
		line("throughput", "%s of %s, over the last %s", p.perInterval(), render.Thousands(p.rate.Permits), over)
	}
	line("largest window", "%s of at most %s in any %s, by when Redis made the grants",
		render.Thousands(v.largest), render.Thousands(p.rate.Permits), span.Text(p.rate.Interval))
	if v.scores > v.largest {
		line(
			"",
			"(%s by when the clients sent the calls, which can overtake each other on the way; only the line above counts: docs/guide/clocks.md)",
			render.Thousands(v.scores),
		)
	}
	line(
		"", "(at least %s by the callers' own log, which does not know when a waiting caller was granted)",
		render.Thousands(v.log),
	)
	switch {
	case v.recorded == all:
		line("records", "%s; callers got as many", render.Number(v.recorded, "permit"))
	case v.complete:
		line("records", "%s, all seen; callers got %s", render.Number(v.recorded, "permit"), render.Thousands(all))
	case v.recorded > all:
		line(
			"records", "%s seen; callers got %s; more may have gone unseen", render.Number(v.recorded, "permit"),
			render.Thousands(all),
		)
	default:
		line("records", "%s seen; callers got %s; the demo read them too late, so the rest has gone unseen",
			render.Number(v.recorded, "permit"), render.Thousands(all))
	}
	switch {
	case v.recorded <= all: // no more than callers got
	case v.doubt > 0 && t.load.lease > 0:
		line(
			"", "(the difference: up to %s taken ahead, or in calls that were in flight when their callers stopped)",
			render.Number(v.doubt, "permit"),
		)
	case v.doubt > 0:
		line(
			"", "(the difference: up to %s in calls that were in flight when their callers stopped)",
			render.Number(v.doubt, "permit"),
		)
	}
	if p.changed != "" {
		line("note", "%s; the window is counted anew since", p.changed)
	}
	if t.repaired != "" {
		line("repaired", "%s", t.repaired)
	}
	if len(v.faults) == 0 {
		line("limit", "kept")
		return
	}
	line("limit", "NOT KEPT")
	if v.others > 0 {
		line("", "unless another client released permits, or removed the limiter, meanwhile")
	}
}

// leave removes the limiter if the demo made it and no other client uses it, and prints what it
// did.
func (d *course) leave(
	ctx context.Context, out io.Writer, created bool, v verdict, limiter *rratelimiter.Limiter,
) error {
	name := render.Printable(d.name)
	switch {
	case d.server.Private:
		return nil
	case !created:
		fmt.Fprintf(out, "The limiter %s was there before the demo and stays.\n", name)
	case v.others > 0 || d.witness.picture(0).changed != "":
		fmt.Fprintf(out, "The demo made the limiter %s, but others use it now, so it stays.\n", name)
	default:
		if _, err := limiter.Delete(ctx); err != nil {
			return fmt.Errorf("remove the demo's limiter: %w", err)
		}
		fmt.Fprintf(out, "The demo made the limiter %s and has removed it.\n", name)
	}
	return nil
}

// count returns "4 workers block" or "1 worker blocks".
func count(n int, what, one, many string) string {
	if n == 1 {
		return "1 " + what + " " + one
	}
	return fmt.Sprintf("%d %ss %s", n, what, many)
}
