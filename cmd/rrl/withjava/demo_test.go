package withjava

import (
	"bytes"
	"errors"
	"flag"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
)

var update = flag.Bool("update", false, "write the recording, or draw it to docs/")

func TestGoAndJavaShareTheLimitOfTheDemo(t *testing.T) {
	o := demo.Options{
		Name: "rrl-demo", Rate: "50/s", Load: demo.Load{Workers: 4, Pollers: 2, Permits: 1, Demand: 1.2},
		Release: redisson.Release, Length: 5 * time.Second,
	}
	var grants recording
	if *update {
		o.Length = shown + 2*interval
		o.Seen = func(g demo.Grant) { grants = append(grants, g) }
	}
	var out bytes.Buffer
	err := demo.Run(t.Context(), o, strings.NewReader(""), &out)
	for range 4 {
		if !errors.Is(err, rratelimiter.ErrUnavailable) { // a call of Go takes longer than a second on a busy machine
			break
		}
		out.Reset()
		grants = nil
		err = demo.Run(t.Context(), o, strings.NewReader(""), &out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	figure := func(pattern string) int {
		found := regexp.MustCompile(pattern).FindStringSubmatch(out.String())
		if found == nil {
			t.Fatalf("no %s in\n%s", pattern, out.String())
		}
		n, _ := strconv.Atoi(found[1]) // digits
		return n
	}
	inGo, inJava := figure(`\n  Go +\d+ %, (\d+) permits: `), figure(`\n  Java +\d+ %, (\d+) permits: `)
	largest := figure(`\n  largest window +(\d+) of at most 50 in any 1s`)
	if inGo == 0 || inJava == 0 || largest > 50 {
		t.Errorf("%d permits in Go, %d in Java, largest window %d", inGo, inJava, largest)
	}
	for _, want := range []string{"on a private redis-server", "Redisson " + redisson.Release, "limit           kept"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if *update {
		if err := grants.write(recorded); err != nil {
			t.Fatal(err)
		}
	}
}
