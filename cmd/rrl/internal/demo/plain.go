package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// plain.go shows a demo as lines, about two a second: for logs, pipes and terminals without cursor movement.

const plainEvery = 500 * time.Millisecond

const plainLegend = "each line: time, [bar] permits in use / rate, ..., throughput, largest window"

func showPlain(ctx context.Context, f func(columns int) figures, out io.Writer) error {
	if _, err := fmt.Fprintln(out, plainLegend); err != nil {
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
		throughput = perInterval(f.average, f.rate)
	}
	line := fmt.Sprintf("%5.1fs [%s] %d/%d granted %d denied %d waiting %d, %s, largest %d", f.elapsed.Seconds(),
		render.Bar(f.used, f.rate.Permits, 10, "#", "."), f.used, f.rate.Permits, f.granted, f.denied, f.waiting, throughput, f.largest)
	if f.others > 0 {
		line += fmt.Sprintf(", others %d", f.others)
	}
	if f.largest > f.rate.Permits {
		line += ": " + f.kept()
	}
	return line
}
