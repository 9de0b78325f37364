package main

import (
	"errors"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart.go draws the chart of requests per second on a hot limiter with 1,024 callers.

var (
	ownColour   = color.RGBA{0x00, 0x7d, 0x9c, 0xff} // this library
	javaColour  = color.RGBA{0xb0, 0x72, 0x19, 0xff} // Redisson
	otherColour = color.RGBA{0xa8, 0xad, 0xb5, 0xff}
	inkColour   = color.RGBA{0x33, 0x3a, 0x44, 0xff}
)

func drawChart(r *Report, file string) error {
	rows := slices.DeleteFunc(r.of(hotName(1024)), func(row *Row) bool { return len(row.Samples) == 0 || row.Fault != "" })
	if len(rows) == 0 {
		return errors.New("nothing to draw: " + hotName(1024) + " was not measured")
	}
	slices.SortStableFunc(rows, func(a, b *Row) int { return int(a.median(perSecond) - b.median(perSecond)) })

	p := plot.New()
	p.Title.Text = "One hot limiter, 1,024 callers: requests a second"
	style(&p.Title.TextStyle, 15, inkColour)
	p.Title.Padding = vg.Points(10)
	p.HideX()
	p.X.Min = 0
	p.Y.LineStyle.Width = 0
	p.Y.Tick.Length = 0
	p.Y.Padding = vg.Points(20) // room for wider fonts
	p.BackgroundColor = color.Transparent
	style(&p.Y.Tick.Label, 12, inkColour)

	const thick = 18
	var names []string
	var ends plotter.XYLabels
	for i, row := range rows {
		names = append(names, row.Name)
		value := row.median(perSecond)
		ends.XYs = append(ends.XYs, plotter.XY{X: value, Y: float64(i)})
		ends.Labels = append(ends.Labels, short(value))
	}
	for _, c := range []color.Color{otherColour, javaColour, ownColour} {
		values := make(plotter.Values, len(rows)) // 0: no bar
		for i, row := range rows {
			if colourOf(row.Name) == c {
				values[i] = row.median(perSecond)
			}
		}
		bars, err := plotter.NewBarChart(values, vg.Points(thick))
		if err != nil {
			return err
		}
		bars.Horizontal = true
		bars.Color = c
		bars.LineStyle.Width = 0
		p.Add(bars)
	}
	labels, err := plotter.NewLabels(ends)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		style(&labels.TextStyle[i], 12, inkColour)
		labels.TextStyle[i].YAlign = text.YCenter
	}
	labels.Offset = vg.Point{X: vg.Points(6), Y: vg.Points(2)}
	p.Add(labels)
	p.NominalY(names...)
	p.X.Max = rows[len(rows)-1].median(perSecond) * 1.1

	width, height := vg.Points(760), vg.Points(float64(60+thick*3/2*len(rows)))
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, whole.ClipPolygonXY([]vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}}))
	p.Draw(draw.Crop(whole, vg.Points(16), -vg.Points(16), vg.Points(10), -vg.Points(14)))
	var svg strings.Builder
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// The library names one font; the list adds fonts of the same widths.
	const fonts = "font-family:Liberation Sans"
	return os.WriteFile(file, []byte(strings.ReplaceAll(svg.String(), fonts, fonts+",Arial,Helvetica,sans-serif")), 0o644)
}

func style(s *text.Style, points float64, c color.Color) {
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(points)}
	s.Color = c
}

func colourOf(name string) color.Color {
	switch {
	case isOwn(name):
		return ownColour
	case isJava(name):
		return javaColour
	}
	return otherColour
}
