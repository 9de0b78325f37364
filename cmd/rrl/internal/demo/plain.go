package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// plain.go shows a demo as lines, about two a second: for logs, pipes and terminals without cursor
// movement.

const plainEvery = 500 * time.Millisecond

const (
	plainLegend     = "a line: time, [bar] permits in use / rate, outcomes, throughput, largest window"
	plainLegendJava = "a line: time, [bar] permits in use by Go (G) and Java (J) / rate, granted, throughput, largest window"
)

func showPlain(ctx context.Context, f func(columns int) figures, out io.Writer) error {
	legend := plainLegend
	if f(0).release != "" {
		legend = plainLegendJava
	}
	if _, err := fmt.Fprintln(out, legend); err != nil {
		return err
	}
	ticker := time.NewTicker(plainEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if _, err := fmt.Fprintln(out, plainLine(f(0))); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// plainLine returns one line, in ASCII. It fits 80 columns while the figures are small.
func plainLine(f figures) string {
	throughput := "-"
	if f.over > 0 {
		throughput = f.perInterval()
	}
	bar, results := render.Bar(f.used, f.rate.Permits, 10, "#", "."), fmt.Sprintf(
		"granted %d denied %d waiting %d", f.granted, f.denied, f.waiting,
	)
	if f.release != "" {
		bar = both(f.now().inGo, f.now().inJava, f.rate.Permits, 10, ".")
		inGo, inJava := shares(f.granted, f.java.granted)
		results = fmt.Sprintf("Go %d (%s) Java %d (%s)", f.granted, inGo, f.java.granted, inJava)
	}
	line := fmt.Sprintf(
		"%5.1fs [%s] %d/%d %s, %s, largest %d", f.elapsed.Seconds(), bar, f.used, f.rate.Permits, results, throughput,
		f.largest,
	)
	if f.others > 0 {
		line += fmt.Sprintf(", others %d", f.others)
	}
	if f.largest > f.rate.Permits {
		line += ": " + f.kept()
	}
	return line
}
