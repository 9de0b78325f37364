package render

import (
	"slices"
	"strings"
)

// chart.go draws bars and small charts as text.

// Bar draws a part of a whole in a number of cells. It is full only if the part is the whole, and
// empty only if the part is zero.
func Bar(part, whole int64, cells int, full, free string) string {
	if cells <= 0 || whole <= 0 {
		return ""
	}
	part = min(max(part, 0), whole)
	n := int(float64(part) / float64(whole) * float64(cells))
	if part < whole {
		n = min(n, cells-1)
	}
	if part > 0 {
		n = max(n, 1)
	}
	return strings.Repeat(full, n) + strings.Repeat(free, cells-n)
}

// Sparks draws counts as columns with a height relative to the highest; zeros are not drawn.
func Sparks(counts []int64) string {
	return Heights(counts, slices.Max(append([]int64{1}, counts...)), 0)
}

// Heights draws figures as columns, up to the height of the highest; figures up to none are not
// drawn.
func Heights(figures []int64, highest, none int64) string {
	steps := []rune("▁▂▃▄▅▆▇█")
	line := make([]rune, len(figures))
	for i, n := range figures {
		line[i] = ' '
		if n > none {
			line[i] = steps[int(float64(min(n, highest))/float64(max(highest, 1))*float64(len(steps)-1))]
		}
	}
	return string(line)
}
