package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-analyze/charts"
)

// chart.go draws the chart of requests per second on a hot limiter with 1,024 callers.

// The colours of the bars: this library, Redisson, others.
var palette = charts.MakeTheme(charts.ThemeOption{
	TextColor:       charts.Color{R: 0x33, G: 0x3a, B: 0x44, A: 0xff},
	BackgroundColor: charts.ColorWhite,
	SeriesColors: []charts.Color{
		{R: 0x00, G: 0x7d, B: 0x9c, A: 0xff}, {R: 0xb0, G: 0x72, B: 0x19, A: 0xff},
		{R: 0xa8, G: 0xad, B: 0xb5, A: 0xff},
	},
})

// colourOf returns the index of a row's colour.
func colourOf(name string) int {
	switch {
	case isOwn(name):
		return 0
	case isJava(name):
		return 1
	}
	return 2
}

func drawChart(r *Report, file string) error {
	rows := slices.DeleteFunc(r.of(hotName(1024)), func(row *Row) bool {
		return len(row.Samples) == 0 || row.Fault != ""
	})
	if len(rows) == 0 {
		return errors.New("nothing to draw: " + hotName(1024) + " was not measured")
	}
	slices.SortStableFunc(rows, func(a, b *Row) int { return int(a.median(perSecond) - b.median(perSecond)) })

	var names []string
	bars := make([][]float64, 3) // for each colour, with no value for rows of another colour
	for i, row := range rows {
		names = append(names, row.Name)
		for colour := range bars {
			bars[colour] = append(bars[colour], charts.GetNullValue())
		}
		bars[colourOf(row.Name)][i] = row.median(perSecond)
	}
	chart := charts.NewBarChartOptionWithData(bars)
	chart.Horizontal, chart.StackSeries, chart.BarSize = true, charts.Ptr(true), 0.66
	chart.Theme = palette
	chart.Title.Text = "One hot limiter, 1,024 callers: requests a second"
	chart.Title.FontStyle.FontSize, chart.Title.Offset = 15, charts.OffsetCenter
	chart.Legend.Show = charts.Ptr(false)
	chart.CategoryAxis.Labels = names
	chart.CategoryAxis.LabelFontStyle.FontSize = 12
	chart.ValueAxis[0].Show = charts.Ptr(false)
	chart.ValueAxis[0].Min, chart.ValueAxis[0].Max = charts.Ptr(0.0),
		charts.Ptr(rows[len(rows)-1].median(perSecond)*1.1)
	for i := range chart.SeriesList {
		label := &chart.SeriesList[i].Label
		label.Show, label.FontStyle.FontSize = charts.Ptr(true), 12
		label.ValueFormatter = short
	}
	const width = 1000
	height := 80 + 36*len(rows)
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height})
	if err := p.BarChart(chart); err != nil {
		return err
	}
	svg, err := p.Bytes()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// The library writes no size, and names one font; the list adds fonts of about the same widths.
	const fonts = "'Roboto Medium',"
	text := strings.ReplaceAll(string(svg), fonts, fonts+"Roboto,Arial,Helvetica,")
	text = strings.Replace(text, "<svg ", fmt.Sprintf(`<svg width="%d" height="%d" `, width, height), 1)
	return os.WriteFile(file, []byte(text), 0o644)
}
