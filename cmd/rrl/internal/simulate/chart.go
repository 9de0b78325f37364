package simulate

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// chart.go shows simulations: as a table with small charts for terminals, as pictures, and as tables of Markdown.

// The heads of all tables: of those in pages, and of narrow ones.
var (
	columns = []string{"granted", "largest window", "mean wait", "longest wait", "bytes", "calls a permit", "commands a permit"}
	narrow  = []string{"granted", "window", "mean wait", "longest", "bytes", "calls", "commands"}
)

// figures returns an algorithm's cells of a table, after its name.
func (o outcome) figures() []string {
	if o.Fault != "" {
		return append([]string{"not for this rate"}, make([]string, len(columns)-1)...)
	}
	return []string{
		render.Thousands(o.Granted), render.Thousands(o.Largest), render.Wait(rounded(o.MeanWait)), render.Wait(rounded(o.MaxWait)),
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

// showTable writes a simulation for a terminal or a log. All small charts have one scale. A terminal that is too narrow
// for the charts gets the figures alone.
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

// markdown returns the table of a page.
func (s simulation) markdown() string {
	var b strings.Builder
	row := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	row(append([]string{"algorithm"}, columns...)...)
	row(append([]string{"---"}, strings.Split(strings.Repeat("---: ", len(columns)-1)+"---:", " ")...)...)
	for _, o := range s.Outcomes {
		row(append([]string{o.Algorithm}, o.figures()...)...)
	}
	return b.String()
}

var (
	offeredColor = color.Gray{Y: 215}
	grantedColor = color.RGBA{R: 38, G: 110, B: 178, A: 255}
)

const chartColumns = 4

// draw draws one small chart for each algorithm: the demand in grey, the grants in front of it.
func (s simulation) draw(canvas draw.Canvas) error {
	rows := (len(s.Outcomes) + chartColumns - 1) / chartColumns
	highest := maximum(s.Bins)
	for _, o := range s.Outcomes {
		highest = max(highest, maximum(o.Bins))
	}
	plots := make([][]*plot.Plot, rows)
	for i := range plots {
		plots[i] = make([]*plot.Plot, chartColumns)
	}
	for i, o := range s.Outcomes {
		p := plot.New()
		p.Title.Text = fmt.Sprintf("%s: %s of %s, window %s", o.Algorithm,
			render.Thousands(o.Granted), render.Thousands(o.Offered), render.Thousands(o.Largest))
		if o.Fault != "" {
			p.Title.Text = o.Algorithm + ": not for this rate"
		}
		p.Title.TextStyle.Font.Size, p.Title.Padding = 9, 4
		p.X.Tick.Label.Font.Size, p.Y.Tick.Label.Font.Size = 8, 8
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, s.Seconds, 0, float64(highest)*1.05
		for _, layer := range []struct {
			sums []int64
			fill color.Color
		}{{s.Bins, offeredColor}, {o.Bins, grantedColor}} {
			area, err := s.area(layer.sums)
			if err != nil {
				return err
			}
			area.Color, area.LineStyle.Width = layer.fill, 0
			p.Add(area)
		}
		plots[i/chartColumns][i%chartColumns] = p
	}
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	title := draw.Canvas{Canvas: canvas.Canvas, Rectangle: canvas.Rectangle}
	heading := plot.New().Title.TextStyle
	heading.Font.Size, heading.XAlign, heading.YAlign = 12, draw.XCenter, draw.YTop
	title.FillText(heading, vg.Point{X: (title.Min.X + title.Max.X) / 2, Y: title.Max.Y - 6}, s.headline())
	tiles := draw.Tiles{Rows: rows, Cols: chartColumns, PadX: 8, PadY: 10, PadTop: 28, PadBottom: 6, PadLeft: 6, PadRight: 10}
	canvases := plot.Align(plots, tiles, canvas)
	for i := range s.Outcomes {
		plots[i/chartColumns][i%chartColumns].Draw(canvases[i/chartColumns][i%chartColumns])
	}
	return nil
}

// area returns the shape under a row of steps.
func (s simulation) area(sums []int64) (*plotter.Polygon, error) {
	corners := plotter.XYs{{X: 0, Y: 0}}
	for i, n := range sums {
		corners = append(corners,
			plotter.XY{X: float64(i) * s.Step, Y: float64(n)},
			plotter.XY{X: math.Min(float64(i+1)*s.Step, s.Seconds), Y: float64(n)})
	}
	return plotter.NewPolygon(append(corners, plotter.XY{X: s.Seconds, Y: 0}))
}

// save writes a picture in the format of its file name: .png or .svg.
func (s simulation) save(path string) error {
	width := vg.Length(chartColumns) * 230
	height := vg.Length((len(s.Outcomes)+chartColumns-1)/chartColumns)*130 + 34
	var picture io.WriterTo
	switch filepath.Ext(path) {
	case ".svg":
		canvas := vgsvg.New(width, height)
		if err := s.draw(draw.New(canvas)); err != nil {
			return err
		}
		picture = canvas
	case ".png":
		canvas := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(120))
		if err := s.draw(draw.New(canvas)); err != nil {
			return err
		}
		picture = vgimg.PngCanvas{Canvas: canvas}
	default:
		return fmt.Errorf("%s: pictures are .png or .svg", path)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = picture.WriteTo(file)
	return closing(file, err)
}

// closing closes a file that was written, and returns the first error.
func closing(file io.Closer, err error) error {
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}
