package endings

import (
	"context"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// An ending is one way in which a call can end. run brings it about.
type ending struct {
	name string
	run  func(c *cell) rig.Answer
	of   func(m rig.Method) bool // the methods that have it, if the page says so; nil: all
	bare bool                    // no server is needed
}

// short is a timeout that ends before anything else happens.
const short = 5 * ms

func several(m rig.Method) bool { return m.Several && !m.Grants }

var endings = []ending{
	{name: "granted", run: (*cell).ask},
	{name: "refused", run: func(c *cell) rig.Answer {
		c.use(rate.Permits - inUse)
		return c.ask()
	}},
	{name: "timed out queued", run: func(c *cell) rig.Answer {
		c.args.Timeout = short
		return c.behindACall(func(*call) {}, now)
	}},
	{name: "timed out in flight", run: func(c *cell) rig.Answer {
		c.args.Timeout = short
		return c.whileInFlight(func(*call) { time.Sleep(2 * short) }, atTheReply)
	}},
	{name: "timed out between calls", run: func(c *cell) rig.Answer {
		c.args.Timeout = short
		first := c.startFirst("Acquire", "AcquireAll", rate.Permits)
		c.waiting()
		answer := c.ask()
		first.stop()
		first.end()
		return answer
	}},
	{name: "context ended before the call", run: func(c *cell) rig.Answer {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return c.method.Call(ctx, c.args)
	}},
	{name: "context ended queued", run: func(c *cell) rig.Answer {
		return c.behindACall((*call).stop, now)
	}},
	{name: "context ended in flight", run: func(c *cell) rig.Answer {
		return c.whileInFlight((*call).stop, now)
	}},
	{name: "context ended between calls", run: func(c *cell) rig.Answer {
		return c.betweenCalls((*call).stop)
	}},
	{name: "client closed before the call", run: func(c *cell) rig.Answer {
		c.must(c.rdb.Close())
		return c.ask()
	}},
	{name: "client closed queued", run: func(c *cell) rig.Answer {
		return c.behindACall((*call).close, atTheReply)
	}},
	{name: "client closed in flight", run: func(c *cell) rig.Answer {
		return c.whileInFlight((*call).close, atTheReply)
	}},
	{name: "client closed between calls", run: func(c *cell) rig.Answer {
		return c.betweenCalls((*call).close)
	}},
	{name: "no rate", run: func(c *cell) rig.Answer {
		c.remove(keys.Config, keys.Value, keys.Permits, keys.ClientValue, keys.ClientPermits)
		clear(c.used)
		return c.ask()
	}},
	{name: "more than the rate", run: func(c *cell) rig.Answer {
		for i := range c.args.Permits {
			c.args.Permits[i] = rate.Permits + 1
		}
		return c.ask()
	}},
	{name: "no permits", run: func(c *cell) rig.Answer { return c.asking(0) }},
	{name: "a negative number of permits", run: func(c *cell) rig.Answer { return c.asking(-1) }},
	{name: "a configuration of another type", run: func(c *cell) rig.Answer {
		return c.foreign(keys.Config, keys.Config)
	}},
	{name: "free permits of another type", run: func(c *cell) rig.Answer {
		return c.foreign(keys.Value, keys.ClientValue)
	}},
	{name: "records of another type", run: func(c *cell) rig.Answer {
		return c.foreign(keys.Permits, keys.ClientPermits)
	}},
	{name: "a lost reply", run: func(c *cell) rig.Answer {
		c.tap.Plan(rig.Plan{Cut: true})
		return c.ask()
	}},
	{name: "all replies lost", bare: true, run: func(c *cell) rig.Answer {
		c.tap.Plan(slices.Repeat([]rig.Plan{{Cut: true}}, 1000)...)
		defer c.tap.Plan()
		c.alone = true
		return c.ask()
	}},
	{name: "Redis away", bare: true, run: func(c *cell) rig.Answer {
		c.rateIsKnown()
		time.Sleep(ms)
		c.away.Store(true)
		defer c.away.Store(false)
		c.alone = true
		return c.ask()
	}},
	{name: "one limiter twice", of: several, run: func(c *cell) rig.Answer {
		l := c.args.Limiters[0]
		c.args.Limiters = []*rratelimiter.Limiter{l, l}
		return c.ask()
	}},
	{name: "no limiter", of: several, run: func(c *cell) rig.Answer {
		c.args.Limiters, c.args.Permits = nil, nil
		return c.ask()
	}},
	{name: "sixty limiters", of: several, run: func(c *cell) rig.Answer {
		var names []string
		for i := range 60 {
			names = append(names, fmt.Sprint("{t}", i))
		}
		c.asks(names...)
		c.setRates(c.args.Limiters)
		return c.ask()
	}},
	{name: "limiters of two clients", of: several, run: func(c *cell) rig.Answer {
		c.args.Limiters[1] = rratelimiter.NewClient(c.admin, rratelimiter.WithClientID(c.client.ID())).
			RateLimiter(c.args.Limiters[1].Name())
		return c.ask()
	}},
	{name: "a nil limiter", of: several, run: func(c *cell) rig.Answer {
		c.args.Limiters[1] = nil
		return c.ask()
	}},
	{
		name: "different lengths", of: func(m rig.Method) bool { return m.Each },
		run: func(c *cell) rig.Answer {
			c.args.Permits = c.args.Permits[1:]
			return c.ask()
		},
	},
	{
		name: "a nil grant", of: func(m rig.Method) bool { return m.Grants },
		run: func(c *cell) rig.Answer {
			c.args.Grants = make([]*rratelimiter.Grant, len(c.args.Grants))
			return c.ask()
		},
	},
	{
		name: "a grant returned twice", of: func(m rig.Method) bool { return m.Grants },
		run: func(c *cell) rig.Answer {
			c.ask()
			return c.ask()
		},
	},
}

// When a call ends after something was done: before a reply comes that is held back, or after it.
const (
	now        = false
	atTheReply = true
)

// behindACall does something while the method is queued behind a call in flight.
func (c *cell) behindACall(do func(*call), ends bool) rig.Answer {
	c.hold()
	first := c.startFirst("TryAcquire", "AllowAll", 1)
	defer first.end()
	c.inFlight()
	asked := c.start()
	c.queued()
	do(asked)
	return c.endOf(asked, ends)
}

// whileInFlight does something while the call of the method is in flight.
func (c *cell) whileInFlight(do func(*call), ends bool) rig.Answer {
	c.hold()
	asked := c.start()
	c.inFlight()
	do(asked)
	return c.endOf(asked, ends)
}

// endOf waits until a call has ended, and lets the replies come before or after that.
func (c *cell) endOf(asked *call, ends bool) rig.Answer {
	if ends == atTheReply {
		c.open()
	} else {
		defer c.open()
	}
	return asked.end()
}

// betweenCalls does something while the method waits for permits.
func (c *cell) betweenCalls(do func(*call)) rig.Answer {
	c.use(rate.Permits - inUse)
	c.args.Timeout = time.Hour
	asked := c.start()
	c.waiting()
	do(asked)
	return asked.end()
}

func (c *call) stop() { c.cancel() }

func (c *call) close() { c.cell.must(c.cell.rdb.Close()) }

// asking calls the method with a number of permits.
func (c *cell) asking(n int64) rig.Answer {
	for i := range c.args.Permits {
		c.args.Permits[i] = n
	}
	return c.ask()
}

// remove removes keys of all limiters.
func (c *cell) remove(which ...int) {
	for _, l := range c.args.Limiters {
		for _, i := range which {
			c.must(c.admin.Del(context.Background(), rig.Keys(l)[i]).Err())
		}
	}
}

// foreign calls the method while a key is that of another program.
func (c *cell) foreign(key, ofClient int) rig.Answer {
	if c.option.of == rratelimiter.PerClient {
		key = ofClient
	}
	name := rig.Keys(c.args.Limiters[0])[key]
	c.must(c.admin.Del(context.Background(), name).Err())
	c.must(c.admin.LPush(context.Background(), name, "foreign").Err())
	return c.ask()
}

// rateIsKnown lets the client see the rate of the limiters.
func (c *cell) rateIsKnown() {
	for _, l := range c.args.Limiters {
		_, err := l.AvailablePermits(context.Background())
		c.must(err)
	}
}

func (c *cell) closed() bool { return c.rdb.Ping(context.Background()).Err() == redis.ErrClosed }

var all = flag.Bool("all", false, "run all cells of the table: minutes")

// TestEveryMethodEndsAsDocumented is a table of all methods, endings and options: each cell is a
// subtest. Without an option all cells run; with one, each ending meets some of the methods, and
// each method some of the endings.
func TestEveryMethodEndsAsDocumented(t *testing.T) {
	run(t, proof.Or(6, 18), func(ending) bool { return true }, inBubble)
}

func TestEveryMethodEndsAsDocumentedOnRedis(t *testing.T) {
	redistest.Shared(t) // starts what all cells share
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		rig.Soon(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
	})
	run(t, 60, func(e ending) bool { return !e.bare }, onRedis)
}

// run runs the cells without an option, and one in so many of those with one.
func run(
	t *testing.T, part int, chosen func(ending) bool, on func(t *testing.T, m rig.Method, o option, body func(*cell)),
) {
	spec := readSpec(t)
	for i, m := range rig.Methods {
		t.Run(m.Name, func(t *testing.T) {
			for j, e := range endings {
				if !chosen(e) || e.of != nil && !e.of(m) {
					continue
				}
				t.Run(e.name, func(t *testing.T) {
					for k, o := range options() {
						want := spec.returns(m, e.name, o.name)
						if want == "–" || k > 0 && (i+j+k)%part > 0 && !*all {
							continue
						}
						t.Run(o.name, func(t *testing.T) {
							t.Parallel()
							on(t, m, o, func(c *cell) {
								c.prepare()
								c.judge(e.run(c), want)
								c.works()
							})
						})
					}
				})
			}
		})
	}
}

// A spec is the tables of docs/endings.md.
type spec struct {
	table map[string]map[rig.Kind]string // by ending
	kinds [][]string                     // kinds, and their methods
	rules [][]string                     // exceptions: options, methods or kinds, endings, what is returned
}

// returns says what a method returns. The last rule that fits counts.
func (s *spec) returns(m rig.Method, ending, option string) string {
	want := s.table[ending][m.Kind]
	if m.Kind == rig.Knows {
		if s.table[ending][rig.Reads] == "–" || strings.HasSuffix(ending, "in flight") {
			return "–"
		}
		return "answered"
	}
	first, _, _ := strings.Cut(option, " per client") // its rows are those of the option
	for _, rule := range s.rules {
		if fits(rule[0], first) && fits(rule[1], m.Name, string(m.Kind)) && fits(rule[2], ending) {
			want = rule[3]
		}
	}
	return want
}

// fits reports whether a list has one of some names; an empty list fits all.
func fits(list string, names ...string) bool {
	return list == "" || slices.ContainsFunc(strings.Split(list, ", "), func(s string) bool {
		return slices.Contains(names, s)
	})
}

// readSpec reads the tables. A table begins with its head; the first column of the two that count
// is "ending" or "option".
func readSpec(t *testing.T) *spec {
	page, err := os.ReadFile("../../../docs/endings.md")
	if err != nil {
		t.Fatal(err)
	}
	s := &spec{table: map[string]map[rig.Kind]string{}}
	var head []string
	for line := range strings.Lines(strings.ReplaceAll(string(page), "`", "")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 {
			head = nil
			continue
		}
		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case head == nil:
			head = cells
		case strings.HasPrefix(cells[0], "-"):
		case head[0] == "option":
			s.rules = append(s.rules, cells)
		case head[0] == "ending":
			for name := range strings.SplitSeq(cells[0], ", ") {
				s.table[name] = s.byKind(cells[1])
			}
		case head[0] == "kind":
			s.kinds = append(s.kinds, cells)
		}
	}
	return s
}

// byKind reads a cell such as "a; K, L: b": the kinds K and L return b, and all others a. Without
// "a", the others return "–".
func (s *spec) byKind(cell string) map[rig.Kind]string {
	all := map[rig.Kind]string{}
	for _, kind := range s.kinds {
		all[rig.Kind(kind[0])] = "–"
	}
	for part := range strings.SplitSeq(cell, "; ") {
		kinds, returned, some := strings.Cut(part, ": ")
		if !some {
			for kind := range all {
				all[kind] = part
			}
			continue
		}
		for kind := range strings.SplitSeq(kinds, ", ") {
			all[rig.Kind(kind)] = returned
		}
	}
	return all
}

// The page has a row for each ending, and the methods of each kind.
func TestThePageIsComplete(t *testing.T) {
	s := readSpec(t)
	for _, e := range endings {
		if s.table[e.name] == nil {
			t.Errorf("docs/endings.md has no row %q", e.name)
		}
	}
	if len(s.table) != len(endings) {
		t.Errorf("docs/endings.md has %d endings, but %d are tried", len(s.table), len(endings))
	}
	for _, m := range rig.Methods {
		name, _, _ := strings.Cut(m.Name, ",")
		if m.Kind != rig.Knows && !slices.ContainsFunc(s.kinds, func(row []string) bool {
			return row[0] == string(m.Kind) && slices.Contains(strings.FieldsFunc(row[1], func(r rune) bool {
				return strings.ContainsRune(",:; ", r)
			}), name)
		}) {
			t.Errorf("docs/endings.md does not list %s as a method of the kind %q", name, m.Kind)
		}
	}
}

// Pure getters, which make no call and do not depend on the state of the process.
var getters = []string{
	"Limiter.Name", "Limiter.Client", "Limiter.DenyCache", "Limiter.MaxDebt",
	"Client.ID", "Client.Redis", "Client.KeyOf", "Client.Observer", "Client.RateLimiter",
	"Grant.Permits",
}

// A new method must be added to rig.Methods.
func TestEveryMethodIsInTheTable(t *testing.T) {
	for _, of := range []reflect.Type{
		reflect.TypeFor[*rratelimiter.Limiter](), reflect.TypeFor[*rratelimiter.Client](),
		reflect.TypeFor[*rratelimiter.Grant](), reflect.TypeFor[rratelimiter.GrantAll](),
	} {
		_, name, _ := strings.Cut(of.String(), ".")
		for i := range of.NumMethod() {
			method := of.Method(i)
			full := name + "." + method.Name
			if !slices.Contains(getters, full) && !slices.ContainsFunc(rig.Methods, func(m rig.Method) bool {
				first, _, _ := strings.Cut(m.Name, ",")
				return first == full || first == method.Name && (name == "Limiter" || name == "Client")
			}) {
				t.Errorf("nothing tries %s: add it to rig.Methods", full)
			}
		}
	}
}
