package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNumbersAreShort(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{thousands(0), "0"}, {thousands(999), "999"}, {thousands(1234567), "1,234,567"}, {thousands(-1000), "-1,000"},
		{thousands(-100), "-100"},
		{quantity(0), "0"}, {quantity(1234.5), "1,235"}, {quantity(99.96), "100.0"}, {quantity(12.345), "12.3"},
		{quantity(1.005), "1.00"}, {quantity(0.00123), "0.0012"},
		{short(1_234_567), "1.23 M"}, {short(76_543), "76.5 k"}, {percent(0.9), "90.0 %"},
		{size10(101.7e6), "102 MB"}, {size10(180_000), "180 KB"}, {size10(42), "42.0 B"},
		{duration(1_030_000), "1.03 s"}, {duration(2100), "2.10 ms"}, {duration(15), "15.0 µs"},
		{duration(0), "below 10 µs"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestGrid(t *testing.T) {
	g := grid{head: []string{"", "µs"}}
	g.add("a longer name", "1")
	g.pad("b")
	if text, want := g.text(), "                 µs\n  a longer name   1\n  b               –\n"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	g.words = true
	if text := g.markdown(); !strings.Contains(text, "|---|---|") {
		t.Errorf("words are set like figures: %q", text)
	}
	g.words = false
	if text, want := g.markdown(), "|  | µs |\n|---|---:|\n| a longer name | 1 |\n| b | – |\n"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

func TestPagesAreWrittenBetweenTheirMarks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "README.md")
	write := func(text string) {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + tableBegin + "old\n" + tableEnd + "\nafter\n")
	r := ideal()
	r.Rows[0].Missing = ""
	r.Verdicts = judge(r)
	for range 2 { // the second update replaces the first
		if err := updatePage(page, tablesText(r)); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := os.ReadFile(page)
	got := string(text)
	if !strings.HasPrefix(got, "before\n"+tableBegin) || !strings.HasSuffix(got, tableEnd+"\nafter\n") ||
		strings.Contains(got, "old") {
		t.Errorf("the text around the tables changed:\n%s", got)
	}
	for _, want := range []string{
		"28 of 28 goals met",
		"| " + rowLibrary + " | 10.00 M |",
		"1,000 at once, 100/s: " + rowProcesses,
		"longest script",
	} {
		if strings.Count(got, want) == 0 {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	write("no marks")
	if err := checkPages(page); err == nil {
		t.Error("a page without marks passes the check")
	}
	if err := updatePage(page, tablesText(r)); err == nil {
		t.Error("a page without marks was written")
	}
}

func TestReadmeHasTheChartAndOneTable(t *testing.T) {
	text := readmeText(ideal())
	for _, want := range []string{
		"](" + chartFile + ")",
		"| " + rowPing + " |",
		"| " + rowLibrary + " |",
		"| Redisson 4.7.0, async |",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not once in\n%s", want, text)
		}
	}
	if strings.Count(text, "|---|") != 1 || strings.Contains(text, rowPerRequest) {
		t.Errorf("more than a small table:\n%s", text)
	}
}

// The pages in the repository show the figures of bench/results.json.
func TestPagesShowTheResults(t *testing.T) {
	r, err := readReport(filepath.Base(jsonFile))
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{readmeFile: readmeText(r), tablesFile: tablesText(r)} {
		page, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), tableBegin+"\n"+text+"\n"+tableEnd) {
			t.Errorf("%s differs from %s; go run ./bench -update -from %s writes it", file, jsonFile, jsonFile)
		}
	}
}

func TestTheChartNamesEachRow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "docs", "bench.svg")
	if err := drawChart(ideal(), file); err != nil {
		t.Fatal(err)
	}
	svg, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer svg.Close()
	var text strings.Builder
	decoder := xml.NewDecoder(svg)
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			text.Write(data)
		}
	}
	for _, want := range []string{rowPing, rowLibrary, "Redisson 4.7.0, async", "10.00 M"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in the chart", want)
		}
	}
	again := filepath.Join(t.TempDir(), "bench.svg")
	if err := drawChart(ideal(), again); err != nil {
		t.Fatal(err)
	}
	one, _ := os.ReadFile(file)
	if other, _ := os.ReadFile(again); !bytes.Equal(one, other) {
		t.Error("the same figures make another chart")
	}
	if err := drawChart(&Report{}, file); err == nil {
		t.Error("a chart of nothing was drawn")
	}
}
