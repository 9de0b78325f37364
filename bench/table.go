package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// table.go makes tables of a report: all figures for the terminal, the most important ones for
// bench/README.md, and a few for README.md.

// A grid is a table. Its first column is text; the others are figures, or text if words is true.
type grid struct {
	head  []string
	rows  [][]string
	words bool
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// only returns the grid with its first column and those with these heads.
func (g grid) only(heads ...string) grid {
	few := grid{words: g.words}
	pick := func(row []string) []string {
		cells := row[:1:1]
		for i, head := range g.head {
			if slices.Contains(heads, head) {
				cells = append(cells, row[i])
			}
		}
		return cells
	}
	few.head = pick(g.head)
	for _, row := range g.rows {
		few.add(pick(row)...)
	}
	return few
}

// text returns the grid in aligned columns.
func (g grid) text() string {
	widths := make([]int, len(g.head))
	all := append([][]string{g.head}, g.rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range all {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line += "  " + cell + pad
			} else {
				line += "  " + pad + cell
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// markdown returns the grid as a Markdown table.
func (g grid) markdown() string {
	var b strings.Builder
	column := "---:|"
	if g.words {
		column = "---|"
	}
	b.WriteString("| " + strings.Join(g.head, " | ") + " |\n|---|" + strings.Repeat(column, len(g.head)-1) + "\n")
	for _, row := range g.rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	return b.String()
}

// fullText returns the whole report as text.
func fullText(r *Report) string {
	var b strings.Builder
	for _, workload := range r.workloads() {
		fmt.Fprintf(&b, "%s\n%s\n", workload, detail(r, workload).text())
	}
	b.WriteString("goals\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "  %-12s  %s: %s\n", v.Met, v.Workload, v.Goal)
		if v.Measured != "" {
			fmt.Fprintf(&b, "  %-12s  %s\n", "", v.Measured)
		}
	}
	fmt.Fprintf(&b, "\n%s; %s\n", summary(r.Verdicts), conditions(r))
	return b.String()
}

// conditions describes the conditions of the measurements.
func conditions(r *Report) string {
	text := fmt.Sprintf("%s, %s on the same machine, %d processors, medians of %d, %v in all",
		r.Go, r.Redis, r.CPUs, r.Repeats, time.Duration(r.Took)*time.Second)
	if r.Quick {
		text += "\na quick run: short samples and small crowds, not for quoting"
	}
	return text
}

// detail returns all figures of a workload.
func detail(r *Report, workload string) grid {
	rows := r.of(workload)
	var any Sample
	for _, row := range rows {
		if len(row.Samples) > 0 {
			any = row.Samples[0]
		}
	}
	switch {
	case workload == gatewayName:
		return gatewayDetail(r)
	case any.Ideal > 0:
		return waitingDetail(rows)
	case any.Bytes > 0:
		return memoryDetail(rows)
	case any.PerCall > 0:
		return scriptDetail(r, rows)
	case any.Limit > 0:
		return sharedDetail(rows)
	case any.Kept > 0:
		return namesDetail(rows)
	}
	return loadDetail(r, rows)
}

// fill adds the rows of a workload; cells returns the cells of a measured row.
func (g *grid) fill(rows []*Row, cells func(*Row) []string) {
	for _, row := range rows {
		switch {
		case row.Fault != "":
			g.pad(row.Name, "failed")
		case len(row.Samples) == 0:
			g.pad(row.Name, row.Missing)
		default:
			g.add(append([]string{row.Name}, cells(row)...)...)
		}
	}
}

func (g *grid) pad(cells ...string) {
	for len(cells) < len(g.head) {
		cells = append(cells, "–")
	}
	g.add(cells...)
}

func loadDetail(r *Report, rows []*Row) grid {
	denied := slices.ContainsFunc(rows, func(row *Row) bool { return row.median(deniedShare) > 0 })
	g := grid{
		head: []string{
			"", "requests/s", "x PING", "p50 µs", "p99 µs", "commands/permit", "Redis µs/permit", "allocs/request",
		},
	}
	if denied {
		g.head = append(g.head, "denied", "denials/command")
	}
	g.fill(rows, func(row *Row) []string {
		beside := "–"
		if ping := r.row(row.Workload, rowPing); ping != nil {
			beside = quantity(ratio(row, ping, perSecond, perSecond))
		}
		cells := []string{
			thousands(int64(row.median(perSecond))), beside, quantity(row.median(p50)), quantity(row.median(p99)),
			quantity(row.median(perPermit)), quantity(row.median(cpuPermit)), allocs(row),
		}
		if denied {
			cells = append(cells, percent(row.median(deniedShare)), quantity(row.median(deniedPerCall)))
		}
		return cells
	})
	return g
}

// allocs returns the allocations per request, or a dash for rows of other processes, for which they
// are not measured.
func allocs(row *Row) string {
	if row.median(allocations) == 0 {
		return "–"
	}
	return quantity(row.median(allocations))
}

func waitingDetail(rows []*Row) grid {
	g := grid{head: []string{"", "callers", "EVALs", "time s", "x the ideal", "p50 wait s", "p99 wait s", "Redis ms"}}
	g.fill(rows, func(row *Row) []string {
		return []string{
			thousands(int64(row.median(perCall))), thousands(int64(row.median(commands))),
			quantity(row.median(seconds)),
			fmt.Sprintf("%.4f", row.median(overIdeal)), quantity(row.median(p50) / 1e6),
			quantity(row.median(p99) / 1e6),
			quantity(row.median(redisCPU) / 1000),
		}
	})
	return g
}

func perCall(s Sample) float64  { return float64(s.Requests) }
func redisCPU(s Sample) float64 { return s.RedisCPU }

func memoryDetail(rows []*Row) grid {
	g := grid{
		head: []string{
			"", "permits", "records", "memory", "calls until all left", "longest script, CPU", "by the slow log",
		},
	}
	g.fill(rows, func(row *Row) []string {
		return []string{
			thousands(row.Samples[0].Permits), thousands(int64(row.median(records))), size10(row.median(setBytes)),
			thousands(int64(row.median(commands))), duration(row.median(longest)), duration(row.median(slowest)),
		}
	})
	return g
}

func scriptDetail(r *Report, rows []*Row) grid {
	g := grid{head: []string{"", "calls", "µs/call", "x the calls alone"}}
	g.fill(rows, func(row *Row) []string {
		beside := "–"
		if bare := r.row(row.Workload, rowBare); bare != nil {
			beside = quantity(ratio(row, bare, scriptTime, scriptTime))
		}
		return []string{thousands(int64(row.median(commands))), quantity(row.median(scriptTime)), beside}
	})
	return g
}

func sharedDetail(rows []*Row) grid {
	g := grid{
		head: []string{
			"", "requests/s", "denied", "used of the rate", "largest window", "by Java", "p50 µs", "p99 µs",
			"commands/permit",
		},
	}
	g.fill(rows, sharedCells)
	return g
}

func sharedCells(row *Row) []string {
	byJava := "–"
	if share := row.median(javaShare); share > 0 {
		byJava = percent(share)
	}
	return []string{
		thousands(int64(row.median(perSecond))), percent(row.median(deniedShare)), percent(row.median(used)),
		percent(row.median(largestWindow)), byJava,
		quantity(row.median(p50)), quantity(row.median(p99)), quantity(row.median(perPermit)),
	}
}

func namesDetail(rows []*Row) grid {
	g := grid{head: []string{"", "names/s", "commands/name", "kept", "goroutines"}}
	g.fill(rows, func(row *Row) []string {
		return []string{
			thousands(int64(row.median(perSecond))), quantity(row.median(perPermit)), size10(row.median(kept)),
			quantity(row.median(goroutines)),
		}
	})
	return g
}

// readmeText returns the chart and the table of README.md.
func readmeText(r *Report) string {
	columns := []column{
		{"1 limiter, 1 caller", hotName(1)}, {"1,024 callers", hotName(1024)}, {"90 % denied, 1,024", deniedName(1024)},
		{"10,000 limiters, 1,024", uniformName(1024)},
	}
	few := perSecondTable(r, columns, func(name string) bool {
		shown := []string{rowPing, rowRedisRate, rowLibrary, rowLease}
		return slices.Contains(shown, name) || isJava(name) && !isMinor(name)
	})
	return fmt.Sprintf(
		"![Requests per second on one limiter with 1,024 callers](%s)\n\nRequests per second (%s; %s):\n\n%s\n"+
			"One caller waits for each reply before it asks again, so the first column shows how long a call takes.\n",
		chartFile,
		r.At.Format("January 2006"),
		conditions(r),
		few.markdown(),
	)
}

// tablesText returns the tables of bench/README.md.
func tablesText(r *Report) string {
	var b strings.Builder
	fmt.Fprintf(
		&b, "Requests per second (%s; %s):\n\n%s\n", r.At.Format("January 2006"), conditions(r), overview(r).markdown(),
	)
	fmt.Fprintf(
		&b, "One hot limiter, 1,024 callers:\n\n%s\n",
		loadDetail(r, slices.DeleteFunc(r.of(hotName(1024)), func(row *Row) bool { return isMinor(row.Name) })).
			only("p50 µs", "p99 µs", "commands/permit", "Redis µs/permit").markdown(),
	)
	fmt.Fprintf(
		&b, "Callers that wait for one permit each (at best, 1,000 callers at 100/s take 9 s):\n\n%s\n",
		waitingOverview(r).markdown(),
	)
	fmt.Fprintf(
		&b, "Processes that share a limiter, with leases of a fiftieth of the interval and without:\n\n%s\n",
		sharedOverview(r).
			only("used of the rate", "largest window", "by Java", "p99 µs", "commands/permit").markdown(),
	)
	fmt.Fprintf(
		&b, "HTTP requests to a server with a guard, %d connections:\n\n%s\n", gatewayCallers,
		gatewayDetail(r).only("requests/s", "x the bare server", "allocs of the guard").markdown(),
	)
	fmt.Fprintf(&b, "1,000,000 permits outstanding:\n\n%s\n", memoryOverview(r).markdown())
	b.WriteString(summary(r.Verdicts))
	if open := openGoals(r); len(open.rows) > 0 {
		b.WriteString(":\n\n" + open.markdown())
	}
	return b.String()
}

// overview returns the requests per second of the contenders. The terminal shows the other
// workloads and rows, too.
func overview(r *Report) grid {
	columns := []column{
		{"1 limiter, 1 caller", hotName(1)}, {"1,024 callers", hotName(1024)},
		{"90 % denied, 1,024", deniedName(1024)}, {"20 ms away, 1,024", farName(farthest, 1024)},
		{"10,000 limiters, 1,024", uniformName(1024)},
		{"2 limits, 1 pair, 1,024", hotPairName(1024)}, {"2 limits, 10,000 pairs, 1,024", pairsName(1024)},
	}
	return perSecondTable(r, columns, func(name string) bool { return !isMinor(name) })
}

// isMinor reports whether the page leaves out a row, since another one shows much the same.
func isMinor(name string) bool {
	return slices.Contains([]string{rowReturn1, rowGranularity, rowAuto, rowMultiplexed}, name) ||
		strings.HasPrefix(name, "Redisson 3.17.5")
}

// A column is a workload in a table.
type column struct{ head, workload string }

// perSecondTable returns a table of requests per second, with a row for each contender whose name
// is shown.
func perSecondTable(r *Report, columns []column, shown func(name string) bool) grid {
	g := grid{head: []string{""}}
	var names []string
	for _, column := range columns {
		g.head = append(g.head, column.head)
		for _, row := range r.of(column.workload) {
			if shown(row.Name) && !slices.Contains(names, row.Name) {
				names = append(names, row.Name)
			}
		}
	}
	for _, name := range names {
		cells := []string{name}
		for _, column := range columns {
			cell := ""
			if row, why := found(r, column.workload, name); row != nil {
				cell = short(row.median(perSecond))
			} else if why != unknown {
				cell = why
			}
			cells = append(cells, cell)
		}
		g.add(cells...)
	}
	return g
}

func waitingOverview(r *Report) grid {
	g := grid{head: []string{"", "EVALs", "x the ideal"}}
	g.labelled(r, "1,000 at once, 100/s", crowdName, waitingCells)
	g.labelled(r, "1,000 within a second, 100/s", arriveName, waitingCells)
	g.labelled(r, "10,000 at once, 1,000/s", crowdsName, waitingCells)
	g.labelled(r, "1,000 at once, two limits of 100/s", pairCrowdName, waitingCells)
	return g
}

func waitingCells(row *Row) []string {
	return []string{
		thousands(int64(row.median(commands))), fmt.Sprintf("%.3f", row.median(overIdeal)),
	}
}

// labelled adds the rows of a workload with a label before each name.
func (g *grid) labelled(r *Report, label, workload string, cells func(*Row) []string) {
	from := len(g.rows)
	g.fill(r.of(workload), cells)
	for _, row := range g.rows[from:] {
		row[0] = label + ": " + row[0]
	}
}

func sharedOverview(r *Report) grid {
	g := sharedDetail(nil)
	for _, demand := range demands {
		g.labelled(r, fmt.Sprintf("demand %d %%", demand), sharedName(demand), sharedCells)
	}
	g.labelled(r, "beside Java", besideName, sharedCells)
	return g
}

func memoryOverview(r *Report) grid {
	g := grid{head: []string{"", "records", "memory", "longest script when all expire"}}
	g.labelled(r, "taken over an hour", memoryName, memoryCells)
	g.labelled(r, "written by Java, expired by", javaMemoryName, memoryCells)
	return g
}

func memoryCells(row *Row) []string {
	return []string{
		thousands(int64(row.median(records))), size10(row.median(setBytes)), duration(row.median(longest)),
	}
}

// openGoals returns the goals that are not met, or were not measured.
func openGoals(r *Report) grid {
	g := grid{head: []string{"goal that is not met", "measured"}, words: true}
	for _, v := range r.Verdicts {
		switch v.Met {
		case met:
		case notMet:
			g.add(v.Workload+": "+v.Goal, v.Measured)
		default:
			g.add(v.Workload+": "+v.Goal, v.Met)
		}
	}
	return g
}

// thousands formats a whole number with commas.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// quantity formats a number with three significant digits.
func quantity(x float64) string {
	switch size := math.Abs(x); {
	case size == 0:
		return "0"
	case size >= 100:
		return thousands(int64(math.Round(x)))
	case size >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case size >= 0.1:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// short formats a large number in thousands or millions.
func short(x float64) string {
	if x >= 1e6 {
		return strconv.FormatFloat(x/1e6, 'f', 2, 64) + " M"
	}
	return quantity(x/1e3) + " k"
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }

// size10 formats a number of bytes with decimal units.
func size10(x float64) string {
	switch {
	case x >= 1e6:
		return quantity(x/1e6) + " MB"
	case x >= 1e3:
		return quantity(x/1e3) + " KB"
	}
	return quantity(x) + " B"
}

// duration formats a number of µs.
func duration(x float64) string {
	switch {
	case x == 0:
		return "below 10 µs"
	case x >= 1e6:
		return quantity(x/1e6) + " s"
	case x >= 1e3:
		return quantity(x/1e3) + " ms"
	}
	return quantity(x) + " µs"
}
