// Package withjava tests rrl demo --java and the service of rrl rls with a real Redisson, and draws
// the picture of the README from one run.
//
// "go test ./cmd/rrl/withjava -update" records a run and draws it; with "-run Picture" it draws the
// recording in testdata.
package withjava

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
)

// picture.go draws the grants of a recorded demo: the permits of Go and of Java that are in use,
// under the line of the limit, and below them the permits that each was granted in a tenth of the
// interval.

// The demo that is recorded, and the part of it that is drawn.
const (
	permits  = 50
	interval = time.Second
	shown    = 6 * interval
)

// A recording has the grants of a demo, the oldest first.
type recording []demo.Grant

// write writes a recording as lines of text: ms since the first grant, who got it, permits.
func (r recording) write(file string) error {
	slices.SortFunc(r, func(a, b demo.Grant) int { return a.At.Compare(b.At) })
	var b strings.Builder
	for _, g := range r {
		by := "go"
		if g.Java {
			by = "java"
		}
		fmt.Fprintln(&b, g.At.Sub(r[0].At).Milliseconds(), by, g.Permits)
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// readRecording reads what write has written.
func readRecording(file string) (recording, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r recording
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		var ms, n int64
		var by string
		if _, err := fmt.Sscan(lines.Text(), &ms, &by, &n); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, lines.Text(), err)
		}
		r = append(r, demo.Grant{At: time.UnixMilli(ms), Permits: n, Java: by == "java"})
	}
	return r, nil
}

// within returns the permits of Go and of Java that were granted after one time since the first
// grant, until another.
func (r recording) within(after, until time.Duration) (inGo, inJava int64) {
	for _, g := range r {
		if at := g.At.Sub(r[0].At); at <= after || at > until {
			continue
		}
		if g.Java {
			inJava += g.Permits
		} else {
			inGo += g.Permits
		}
	}
	return inGo, inJava
}

// The places of the picture, in its units.
const (
	left, right     = 44.0, 622.0
	top, bottom     = 84.0, 244.0  // of the permits in use; the limit is at the top
	barTop, barZero = 282.0, 352.0 // of the bars
)

// draw returns the picture of a recording, as SVG with a second set of colours for dark screens.
func (r recording) draw() ([]byte, error) {
	const step, tenth = interval / 50, interval / 10
	x := func(at time.Duration) float64 { return left + (right-left)*float64(at)/float64(shown) }
	point := func(at time.Duration, n int64) string {
		return number(x(at)) + "," + number(bottom-(bottom-top)*float64(n)/permits)
	}
	zero, ofGo, ofBoth := []string{}, []string{}, []string{} // the lower and upper edges of the areas
	for at := time.Duration(0); at <= shown; at += step {
		inGo, inJava := r.within(at-interval, at)
		zero, ofGo, ofBoth = append(zero, point(at, 0)), append(ofGo, point(at, inGo)),
			append(ofBoth, point(at, inGo+inJava))
	}
	area := func(lower, upper []string) string {
		lower = slices.Clone(lower)
		slices.Reverse(lower)
		return strings.Join(slices.Concat(upper, lower), " ")
	}

	var most int64
	var counts [][2]int64
	for at := time.Duration(0); at < shown; at += tenth {
		inGo, inJava := r.within(at-1, at+tenth-1)
		counts = append(counts, [2]int64{inGo, inJava})
		most = max(most, inGo+inJava)
	}
	type bar struct{ Class, X, Y, Width, Height string }
	var bars []bar
	for i, n := range counts {
		y := barZero
		for side, class := range []string{"go", "java"} {
			height := (barZero - barTop) * float64(n[side]) / float64(most)
			y -= height
			bars = append(
				bars,
				bar{
					class,
					number(x(time.Duration(i)*tenth) + 0.75),
					number(y),
					number(x(tenth) - left - 1.5),
					number(height),
				},
			)
		}
	}
	seconds := map[int]string{} // the place of each
	for i := range int(shown/interval) + 1 {
		seconds[i] = number(x(time.Duration(i) * interval))
	}
	inGo, inJava := r.within(-1, shown)
	percent := int(math.Round(100 * float64(inGo) / float64(inGo+inJava)))
	var b bytes.Buffer
	err := picture.Execute(&b, map[string]any{
		"Go": area(zero, ofGo), "Java": area(ofGo, ofBoth), "Bars": bars, "Seconds": seconds, "Permits": permits,
		"Most": most,
		"InGo": percent, "InJava": 100 - percent,
	})
	return b.Bytes(), err
}

func number(x float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0") }

var picture = template.Must(
	template.New("").
		Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="640" height="384" viewBox="0 0 640 384" role="img" aria-labelledby="title">
<title id="title">Permits of Go and Java on one limit of {{.Permits}} per second: never more than {{.Permits}} in use</title>
<style>
svg { background: #fff; font: 15px system-ui, "Segoe UI", "Liberation Sans", Arial, Helvetica, sans-serif }
text { fill: #1f2328 } .faint { fill: #59636e } .head { font-size: 17px; font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
.go { fill: #007d9c } .java { fill: #b07219 } .on { fill: #fff; font-weight: 600 }
.limit { stroke: #cf222e; stroke-width: 2.5 } .red { fill: #cf222e; font-weight: 600 } .axis { stroke: #59636e }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } text { fill: #e6edf3 } .faint { fill: #9198a1 } .go { fill: #4cc3e6 } .java { fill: #e3a04a } .on { fill: #0d1117 }
.limit { stroke: #ff7b72 } .red { fill: #ff7b72 } .axis { stroke: #9198a1 }
}
</style>
<text class="head" x="12" y="26">Go and Java share one limit of {{.Permits}} permits per second</text>
<text class="faint" x="12" y="50">permits granted in the last second, at each moment</text>
<polygon class="go" points="{{.Go}}"/>
<polygon class="java" points="{{.Java}}"/>
<path class="limit" d="M44 84H622"/>
<text class="red end" x="622" y="76">limit</text>
<text class="end" x="38" y="89">{{.Permits}}</text>
<text class="end" x="38" y="244">0</text>
<text class="on middle" x="333" y="118">Java (Redisson): {{.InJava}} %</text>
<text class="on middle" x="333" y="222">Go (this library): {{.InGo}} %</text>
<text class="faint" x="12" y="270">permits granted in each tenth of a second</text>
{{range .Bars}}<rect class="{{.Class}}" x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="{{.Height}}"/>
{{end}}<path class="axis" d="M44 352H622"/>
<text class="end" x="38" y="290">{{.Most}}</text>
<text class="end" x="38" y="352">0</text>
{{range $second, $x := .Seconds}}<text class="middle" x="{{$x}}" y="372">{{$second}} s</text>
{{end}}</svg>
`),
)
