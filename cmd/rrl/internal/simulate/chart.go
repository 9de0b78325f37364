package simulate

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-analyze/charts"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// chart.go shows simulations: as a table with small charts for terminals, as pictures, and as
// tables of Markdown.

// narrow has the heads of the figures in a terminal.
var narrow = []string{"granted", "window", "mean wait", "longest", "bytes", "calls", "commands"}

// figures returns an algorithm's cells of a table, after its name.
func (o outcome) figures() []string {
	if o.Fault != "" {
		return append([]string{"not for this rate"}, make([]string, len(narrow)-1)...)
	}
	return []string{
		render.Thousands(o.Granted), render.Thousands(o.Largest), render.Wait(rounded(o.MeanWait)),
		render.Wait(rounded(o.MaxWait)),
		render.Thousands(o.Memory), ratio(o.Calls), ratio(o.Commands),
	}
}

func rounded(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds*1000)) * time.Millisecond
}

func ratio(x float64) string { return fmt.Sprintf("%.2f", x) }

// headline describes what was simulated.
func (s simulation) headline() string {
	return fmt.Sprintf("%s: %s; limit %s", s.Trace, s.About, s.Rate)
}

// showTable writes a simulation for a terminal or a log. All small charts have one scale. A
// terminal that is too narrow for the charts gets the figures alone.
func (s simulation) showTable(to *render.Output) error {
	highest := maximum(s.Bins)
	for _, o := range s.Outcomes {
		highest = max(highest, maximum(o.Bins))
	}
	chart := func(sums []int64) string {
		return strings.TrimSuffix(render.Sparks(append(sums[:len(sums):len(sums)], highest)), "█")
	}
	t := render.Table{Right: map[int]bool{}, Drop: []int{1, 8, 7, 6, 4}}
	row := func(cells ...string) {
		t.Rows = append(t.Rows, append(cells, make([]string, 2+len(narrow)-len(cells))...))
	}
	row(append([]string{"", "each " + span.Text(s.trace.step)}, narrow...)...)
	for column := range narrow {
		t.Right[2+column] = true
	}
	offered := int64(0)
	for _, n := range s.Bins {
		offered += n
	}
	row("offered", chart(s.Bins), render.Thousands(offered))
	for _, o := range s.Outcomes {
		row(append([]string{o.Algorithm, chart(o.Bins)}, o.figures()...)...)
	}
	to.Say("%s\n", s.headline())
	t.Write(to)
	to.Say("\nwindow: most permits in any %s; waits: from a run in which refused callers wait;\n"+
		"all other columns: from a second run, in which they do not try again; bytes: %s; calls, commands: round trips, and what the server executes, for each permit",
		span.Text(s.trace.rate.Interval), s.Weighed)
	return to.Failed
}

func maximum(sums []int64) (highest int64) {
	for _, n := range sums {
		highest = max(highest, n)
	}
	return highest
}

// markdown returns the table of a page: the largest window of each trace.
func markdown(all []simulation) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	row := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	head := []string{"algorithm"}
	for _, s := range all {
		head = append(head, s.Trace)
	}
	row(head...)
	b.WriteString("|---|" + strings.Repeat("---:|", len(all)) + "\n")
	for i, o := range all[0].Outcomes {
		cells := []string{o.Algorithm}
		for _, s := range all {
			cells = append(cells, s.Outcomes[i].figures()[1])
		}
		row(cells...)
	}
	return b.String()
}

// The layout of a picture, in pixels: charts in columns below a heading. Each has a plot between
// margins for its title, its axes and their labels.
const (
	chartColumns                      = 4
	chartWidth, chartHeight           = 460, 260
	headHeight                        = 56
	marginLeft, marginTop             = 64, 32
	marginRight, marginBottom         = 16, 36
	headingSize, titleSize, labelSize = 18, 13, 12
	tick, gap                         = 6, 4
)

var (
	offeredColor = charts.Color{R: 215, G: 215, B: 215, A: 255}
	grantedColor = charts.Color{R: 38, G: 110, B: 178, A: 255}
)

// A picture is a canvas with black lines and texts.
type picture struct{ *charts.Painter }

func (p picture) line(points ...charts.Point) { p.LineStroke(points, charts.ColorBlack, 1) }

// text writes a line. before is the part of its width that lies left of x: from 0 to 1.
func (p picture) text(line string, x, y int, before, size float64) {
	style := charts.FontStyle{FontSize: size, FontColor: charts.ColorBlack}
	p.Text(line, x-int(before*float64(p.MeasureText(line, 0, style).Width())), y, 0, style)
}

// draw draws one small chart for each algorithm, all with the same scale.
func (s simulation) draw(format string) ([]byte, error) {
	highest := max(maximum(s.Bins), 1)
	for _, o := range s.Outcomes {
		highest = max(highest, maximum(o.Bins))
	}
	rows := (len(s.Outcomes) + chartColumns - 1) / chartColumns
	width, height := chartColumns*chartWidth, headHeight+rows*chartHeight
	p := picture{charts.NewPainter(charts.PainterOptions{OutputFormat: format, Width: width, Height: height})}
	p.FilledRect(0, 0, width, height, charts.ColorWhite, charts.ColorWhite, 0)
	p.text(s.headline(), width/2, headHeight/2, 0.5, headingSize)
	for i, o := range s.Outcomes {
		s.chart(p, o, highest, i%chartColumns*chartWidth, headHeight+i/chartColumns*chartHeight)
	}
	drawn, err := p.Bytes()
	if format == charts.ChartOutputSVG { // the library writes no size
		size := fmt.Sprintf(`<svg width="%d" height="%d" `, width/2, height/2)
		drawn = bytes.Replace(drawn, []byte("<svg "), []byte(size), 1)
	}
	return drawn, err
}

// chart draws the chart of one algorithm: the demand in grey, the grants in front of it.
func (s simulation) chart(p picture, o outcome, highest int64, left, top int) {
	right, bottom := left+chartWidth-marginRight, top+chartHeight-marginBottom
	left, top = left+marginLeft, top+marginTop
	title := fmt.Sprintf("%s: %s of %s, window %s", o.Algorithm,
		render.Thousands(o.Granted), render.Thousands(o.Offered), render.Thousands(o.Largest))
	if o.Fault != "" {
		title = o.Algorithm + ": not for this rate"
	}
	p.text(title, (left+right)/2, top-marginTop/2, 0.5, titleSize)

	at := func(seconds float64, permits int64) charts.Point {
		return charts.Point{
			X: left + int(math.Round(seconds/s.Seconds*float64(right-left))),
			Y: bottom - int(math.Round(float64(permits)/float64(highest)*float64(bottom-top))),
		}
	}
	area := func(sums []int64, fill charts.Color) {
		corners := []charts.Point{at(0, 0)}
		for i, n := range sums {
			corners = append(corners, at(float64(i)*s.Step, n), at(math.Min(float64(i+1)*s.Step, s.Seconds), n))
		}
		p.FillArea(append(corners, at(s.Seconds, 0), at(0, 0)), fill)
	}
	area(s.Bins, offeredColor)
	area(o.Bins, grantedColor)

	p.line(at(0, highest), at(0, 0), at(s.Seconds, 0))
	for i := range 5 {
		seconds := s.Seconds * float64(i) / 4
		end := at(seconds, 0)
		end.Y += tick
		p.line(at(seconds, 0), end)
		p.text(fmt.Sprintf("%g", math.Round(seconds*1000)/1000), end.X, end.Y+gap+labelSize, 0.5, labelSize)
	}
	for _, permits := range []int64{0, highest / 2, highest} {
		end := at(0, permits)
		end.X -= tick
		p.line(at(0, permits), end)
		p.text(render.Thousands(permits), end.X-gap, end.Y+labelSize/2, 1, labelSize)
	}
}

// save writes a picture in the format of its file name: .png or .svg.
func (s simulation) save(path string) error {
	formats := map[string]string{".svg": charts.ChartOutputSVG, ".png": charts.ChartOutputPNG}
	format, known := formats[filepath.Ext(path)]
	if !known {
		return fmt.Errorf("%s: pictures are .png or .svg", path)
	}
	picture, err := s.draw(format)
	if err != nil {
		return err
	}
	return os.WriteFile(path, picture, 0o644)
}

// closing closes a file that was written, and returns the first error.
func closing(file io.Closer, err error) error {
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}
