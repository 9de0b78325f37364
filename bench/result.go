package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// result.go holds the measured figures and computes medians. It does not depend on how they are
// measured or shown.

// A Sample is one measurement of one row in one workload. A figure that was not measured is 0.
type Sample struct {
	Seconds  float64 `json:"seconds"`
	Ideal    float64 `json:"ideal_seconds,omitempty"` // shortest possible time for waiting callers
	Requests int64   `json:"requests"`
	Denied   int64   `json:"denied,omitempty"`
	Permits  int64   `json:"permits"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	// EVALSHA and EVAL that Redis executed; PING in the row of PING
	Commands int64   `json:"commands"`
	RedisCPU float64 `json:"redis_cpu_us"` // of the server's process
	Allocs   int64   `json:"allocs,omitempty"`
	PerCall  float64 `json:"us_per_call,omitempty"` // of a script, by INFO commandstats

	Records int64   `json:"records,omitempty"`    // in the permits set
	Bytes   int64   `json:"bytes,omitempty"`      // of the permits set, by MEMORY USAGE
	Longest float64 `json:"longest_us,omitempty"` // longest script, by processor time
	Slowest float64 `json:"slowest_us,omitempty"` // longest script, by the slow log

	Limit float64 `json:"limit,omitempty"` // permits that the rate allows in the time
	// permits that a Java process got at the same time
	ByJava int64 `json:"by_java,omitempty"`
	// permits in any window of the interval, as a part of the rate
	Window float64 `json:"window,omitempty"`
	// on the heap of this process, of names that were used once
	Kept       int64 `json:"kept_bytes,omitempty"`
	Goroutines int64 `json:"goroutines,omitempty"` // left of them
}

// A Row has all samples of one contender in one workload, one for each repetition.
type Row struct {
	Workload string   `json:"workload"`
	Name     string   `json:"row"`
	Samples  []Sample `json:"samples,omitempty"`
	// reason why there are no samples: the library does not offer the option yet
	Missing string `json:"missing,omitempty"`
	Fault   string `json:"fault,omitempty"` // text of the error
}

// A Report is one run of the program.
type Report struct {
	At       time.Time `json:"at"`
	Go       string    `json:"go"`
	Redis    string    `json:"redis"`
	CPUs     int       `json:"cpus"`
	Quick    bool      `json:"quick,omitempty"`
	Repeats  int       `json:"repeats"`
	Took     float64   `json:"took_seconds"`
	Rows     []*Row    `json:"rows"`
	Verdicts []Verdict `json:"goals"`
}

func readReport(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r.Verdicts = judge(r)
	return r, nil
}

func (r *Report) write(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// failed returns the errors of all failed measurements, nil if there are none.
func (r *Report) failed() error {
	var all []error
	for _, row := range r.Rows {
		if row.Fault != "" {
			all = append(all, fmt.Errorf("%s, %s: %s", row.Workload, row.Name, row.Fault))
		}
	}
	return errors.Join(all...)
}

// row returns a row that was measured; nil if it was not.
func (r *Report) row(workload, name string) *Row {
	for _, row := range r.Rows {
		if row.Workload == workload && row.Name == name && len(row.Samples) > 0 && row.Fault == "" {
			return row
		}
	}
	return nil
}

// workloads returns the names of the workloads that have rows, in order.
func (r *Report) workloads() (names []string) {
	for _, row := range r.Rows {
		if !slices.Contains(names, row.Workload) {
			names = append(names, row.Workload)
		}
	}
	return names
}

// of returns the rows of a workload.
func (r *Report) of(workload string) (rows []*Row) {
	for _, row := range r.Rows {
		if row.Workload == workload {
			rows = append(rows, row)
		}
	}
	return rows
}

// A metric computes a figure of a sample.
type metric func(Sample) float64

func perSecond(s Sample) float64       { return float64(s.Requests) / s.Seconds }
func perPermit(s Sample) float64       { return float64(s.Commands) / float64(max(s.Permits, 1)) }
func cpuPermit(s Sample) float64       { return s.RedisCPU / float64(max(s.Permits, 1)) }
func allocations(s Sample) float64     { return float64(s.Allocs) / float64(max(s.Requests, 1)) }
func deniedShare(s Sample) float64     { return float64(s.Denied) / float64(max(s.Requests, 1)) }
func deniedPerCall(s Sample) float64   { return float64(s.Denied) / float64(max(s.Commands, 1)) }
func p50(s Sample) float64             { return s.P50 }
func p99(s Sample) float64             { return s.P99 }
func commands(s Sample) float64        { return float64(s.Commands) }
func seconds(s Sample) float64         { return s.Seconds }
func overIdeal(s Sample) float64       { return s.Seconds / s.Ideal }
func scriptTime(s Sample) float64      { return s.PerCall }
func records(s Sample) float64         { return float64(s.Records) }
func setBytes(s Sample) float64        { return float64(s.Bytes) }
func slowest(s Sample) float64         { return s.Slowest }
func used(s Sample) float64            { return float64(s.Permits+s.ByJava) / s.Limit }
func largestWindow(s Sample) float64   { return s.Window }
func javaShare(s Sample) float64       { return float64(s.ByJava) / float64(max(s.ByJava+s.Permits, 1)) }
func kept(s Sample) float64            { return float64(s.Kept) }
func goroutines(s Sample) float64      { return float64(s.Goroutines) }
func commandsASecond(s Sample) float64 { return float64(s.Commands) / s.Seconds }
func longest(s Sample) float64         { return s.Longest }

// bounded returns an upper bound of the duration of the longest script: the smaller one of the
// processor time of the server and the time in the slow log.
func bounded(s Sample) float64 {
	if s.Slowest == 0 {
		return s.Longest
	}
	return min(s.Longest, s.Slowest)
}

// median returns the median of a figure over the repetitions.
func (r *Row) median(m metric) float64 {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = m(s)
	}
	return median(values)
}

// ratio returns the median of the ratios of a figure of a to a figure of b, each within one
// repetition, so that a machine that slows down for a while does not change it.
func ratio(a, b *Row, of, by metric) float64 {
	var values []float64
	for i := range min(len(a.Samples), len(b.Samples)) {
		values = append(values, of(a.Samples[i])/by(b.Samples[i]))
	}
	return median(values)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
