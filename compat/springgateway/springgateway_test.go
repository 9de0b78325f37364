// Package springgateway tests that NewSpringBucket of package classic shares the buckets of Spring
// Cloud Gateway: this library and the script in the gateway's jars grant the same and leave the
// same bytes in Redis, whichever of them made the calls before, and also while a charge of this
// library has left a debt. Only the TTLs of a debt differ. server_test.go has real gateways and
// their HTTP clients.
package springgateway

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/maven"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// jars are those of pom.xml, which have all three scripts of the releases 3.0.6 to 5.0.4. Each has
// the beginning of a key as it stands in the gateway's code: \x01 is where Java puts a text.
var jars = map[string]string{
	"spring-cloud-gateway-server-3.1.9.jar": "request_rate_limiter.{", // and then the key
	// the id of the route and the key
	"spring-cloud-gateway-server-4.2.0.jar":         "request_rate_limiter.{\x01.\x01}.",
	"spring-cloud-gateway-server-4.3.5.jar":         "request_rate_limiter.{\x01.\x01}.",
	"spring-cloud-gateway-server-webflux-5.0.4.jar": "request_rate_limiter.{\x01.\x01}.",
}

// build runs Maven and returns the folder of the jars. It takes seconds, and the first time on a
// machine a download of 50 MB.
func build(t *testing.T, args ...string) string {
	t.Helper()
	if programs := maven.Missing(t.Context()); len(programs) > 0 {
		t.Fatalf("the jars of Spring Cloud Gateway need %v: apt-get install openjdk-17-jdk-headless maven", programs)
	}
	unlock, err := maven.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	folder, output := t.TempDir(), &maven.Tail{Max: 16 << 10}
	args = append([]string{"-q", "-Dout=" + folder}, args...)
	for range 3 {
		if err = maven.Package(t.Context(), ".", output, args...); err == nil {
			return folder
		}
		args = append(args, "-U") // otherwise Maven does not repeat a failed download
	}
	t.Fatalf("%v\n%s", err, output)
	return ""
}

// content returns a file of a jar.
func content(t *testing.T, jar, name string) []byte {
	t.Helper()
	archive, err := zip.OpenReader(jar)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	file, err := archive.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// scripts returns the different scripts of the jars, each with the first jar that has it.
func scripts(t *testing.T) map[string]*redis.Script {
	t.Helper()
	folder, all, seen := build(t), map[string]*redis.Script{}, map[string]bool{}
	for jar, key := range jars {
		path := filepath.Join(folder, jar)
		class := content(t, path, "org/springframework/cloud/gateway/filter/ratelimit/RedisRateLimiter.class")
		if !bytes.Contains(class, []byte(key)) {
			t.Errorf("%s has no key %q", jar, key)
		}
		text := string(content(t, path, "META-INF/scripts/request_rate_limiter.lua"))
		if !seen[text] {
			seen[text], all[jar] = true, redis.NewScript(text)
		}
	}
	return all
}

// The ids of a course: the gateway alone uses the first, this library the second, and both the
// third, in random turns.
const theirs, ours, mixed = 0, 1, 2

var ids = [...]string{theirs: "theirs", ours: "ours", mixed: "mixed"}

// A course is a random history of one bucket, kept under the ids. It runs on the server's clock, as
// the gateway does. Time passes as the stored time moves into the past.
type course struct {
	*testing.T
	rdb       *redis.Client
	script    *redis.Script
	random    *rand.Rand
	p         classic.Spring
	state     []any // the texts of the tokens and of the time before the next request; nil: no key
	decisions map[bool]int
	inDebts   int // requests that left a debt
}

func keys(id string) []string {
	return []string{"request_rate_limiter.{" + id + "}.tokens", "request_rate_limiter.{" + id + "}.timestamp"}
}

// change changes the parameters, or what is stored, as time and operators do.
func (c *course) change() {
	switch c.random.Intn(30) {
	case 0:
		if c.inDebt(c.state) {
			c.state = []any{nil, nil} // the new bucket may be too small to accept the debt
		}
		rate := 1 + c.random.Int63n(1+int64(math.Pow(10, 6*c.random.Float64())))
		c.p = classic.Spring{ReplenishRate: float64(rate), BurstCapacity: rate + c.random.Int63n(5*rate)}
		switch c.random.Intn(8) {
		case 0:
			c.p.BurstCapacity = math.MaxUint32
		case 1:
			c.p = classic.Spring{ReplenishRate: float64(1e7 + c.random.Int63n(2e9)), BurstCapacity: 1<<53 - 1}
		case 2, 3:
			c.p.ReplenishRate *= c.random.Float64()
		}
	case 1:
		c.state[c.random.Intn(2)] = nil // evicted
	case 2:
		c.state = []any{nil, nil} // expired
	}
	if c.state[1] == nil {
		return
	}
	var second int64
	if _, err := fmt.Sscan(c.state[1].(string), &second); err != nil {
		c.Fatal(err)
	}
	switch c.random.Intn(12) {
	case 0:
		second -= c.random.Int63n(1 + int64(3*float64(c.p.BurstCapacity)/c.p.ReplenishRate))
	case 1, 2:
		second -= c.random.Int63n(3)
	case 3:
		second += c.random.Int63n(100) // the server's clock has gone back
	}
	c.state[1] = fmt.Sprint(second)
}

// request returns a number of tokens that the capacity holds.
func (c *course) request() int64 {
	if c.random.Intn(4) == 0 {
		return 1 + c.random.Int63n(c.p.BurstCapacity)
	}
	return 1 + c.random.Int63n(min(c.p.BurstCapacity, max(3, int64(c.p.ReplenishRate/2))))
}

// ask takes tokens from a bucket, by the gateway's script, which Java gives these arguments, or by
// this library.
func (c *course) ask(id string, byGateway bool, n int64) (answer string) {
	c.Helper()
	if byGateway {
		reply, err := c.script.Run(c.Context(), c.rdb, keys(id), c.p.ReplenishRate, c.p.BurstCapacity, "",
			n).Int64Slice()
		if err != nil {
			c.Fatal(err)
		}
		return fmt.Sprintf("granted %t, %d left", reply[0] == 1, max(0, reply[1]))
	}
	r, err := classic.NewSpringBucket(c.rdb, id, c.p).Allow(c.Context(), n)
	if err != nil {
		c.Fatal(err)
	}
	return fmt.Sprintf("granted %t, %d left", r.Allowed, r.Remaining)
}

// put makes the states of all ids that of the course, without a TTL, and returns the time by the
// server's clock.
func (c *course) put() time.Time {
	c.Helper()
	commands := c.rdb.Pipeline()
	for _, id := range ids {
		commands.Del(c.Context(), keys(id)...)
		for i, text := range c.state {
			if text != nil {
				commands.Set(c.Context(), keys(id)[i], text, 0)
			}
		}
	}
	now := commands.Time(c.Context())
	if _, err := commands.Exec(c.Context()); err != nil {
		c.Fatal(err)
	}
	return now.Val()
}

// margin is more than the server's clock goes back within a step.
const margin = 100 * time.Millisecond

// An outcome is an answer, and what is stored after it.
type outcome struct {
	answer string
	state  []any
	ttls   [2]float64 // s
}

// look reads what is stored for an id, and returns the time by the server's clock. The TTLs are
// those that were set, provided that this was less than a second minus the margin ago.
func (o *outcome) look(c *course, id string) time.Time {
	c.Helper()
	commands := c.rdb.Pipeline()
	state := commands.MGet(c.Context(), keys(id)...)
	ttls := [2]*redis.DurationCmd{commands.PTTL(c.Context(), keys(id)[0]), commands.PTTL(c.Context(), keys(id)[1])}
	now := commands.Time(c.Context())
	if _, err := commands.Exec(c.Context()); err != nil {
		c.Fatal(err)
	}
	o.state = state.Val()
	if text, ok := o.state[0].(string); ok { // releases of Redis write different digits of the same part of a token
		if tokens, err := strconv.ParseFloat(text, 64); err == nil && tokens != math.Trunc(tokens) {
			o.state[0] = strconv.FormatFloat(tokens, 'g', -1, 64)
		}
	}
	for i, ttl := range ttls {
		o.ttls[i] = math.Ceil((ttl.Val() - margin).Seconds())
	}
	if c.inDebt(o.state) {
		o.ttls = [2]float64{}
	}
	return now.Val()
}

// inDebt tells whether a state has fewer tokens than none.
func (c *course) inDebt(state []any) bool {
	text, _ := state[0].(string)
	return strings.HasPrefix(text, "-")
}

// charge charges tokens, with this library, and goes on with the state that this leaves.
func (c *course) charge() {
	c.Helper()
	c.put()
	n := 1 + c.random.Int63n(3*c.p.BurstCapacity)
	if _, err := classic.NewSpringBucket(c.rdb, ids[ours], c.p).Charge(c.Context(), n); err != nil &&
		!errors.Is(err, rratelimiter.ErrDebtBound) {
		c.Fatal(err)
	}
	var left outcome
	left.look(c, ids[ours])
	c.state = left.state
}

// step makes one request to each of the ids, and compares. If a second begins meanwhile, or nearly
// passes, it repeats them.
func (c *course) step() {
	c.Helper()
	c.change()
	if c.random.Intn(8) == 0 {
		c.charge()
	}
	n, byGateway := c.request(), [...]bool{theirs: true, ours: false, mixed: c.random.Intn(2) == 0}
	var outcomes [len(ids)]outcome
	for again := true; again; {
		began, ended := c.put(), time.Time{}
		for i, id := range ids {
			outcomes[i].answer = c.ask(id, byGateway[i], n)
			ended = outcomes[i].look(c, id)
		}
		again = ended.Unix() != began.Unix() || ended.Sub(began) > time.Second-2*margin
	}
	want := outcomes[theirs]
	for i, got := range outcomes {
		if !reflect.DeepEqual(got, want) {
			c.Fatalf("%+v, %q, %d tokens: the gateway: %+v, %s: %+v", c.p, c.state, n, want, ids[i], got)
		}
	}
	c.decisions[strings.HasPrefix(want.answer, "granted true")]++
	if c.inDebt(want.state) {
		c.inDebts++
	}
	c.state = want.state
}

func TestSpringBucketIsTheGateways(t *testing.T) {
	const courses, steps = 7, 100
	scripts := scripts(t)
	redistest.EachRelease(t, func(t *testing.T) {
		rdb, decisions, debts := redistest.Real(t).Client(), map[bool]int{}, 0
		for jar, script := range scripts {
			for seed := range int64(courses) {
				c := &course{
					T:         t,
					rdb:       rdb,
					script:    script,
					random:    rand.New(rand.NewSource(seed)),
					decisions: decisions,
					p:         classic.Spring{ReplenishRate: float64(1 + seed), BurstCapacity: 1 + 3*seed},
					state:     []any{nil, nil},
				}
				for range steps {
					c.step()
				}
				debts += c.inDebts
			}
			t.Logf("%s: the same", jar)
		}
		if least := len(scripts) * courses * steps / 5; decisions[true] < least || decisions[false] < least {
			t.Errorf("granted and refused: %v: too few of a kind", decisions)
		}
		if debts < len(scripts)*courses*steps/20 {
			t.Errorf("only %d requests were made in debt", debts)
		}
		t.Logf("granted and refused: %v, in debt %d", decisions, debts)
	})
}
