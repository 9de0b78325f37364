package series

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestLabelsAreBounded(t *testing.T) {
	made := map[string]int{}
	s := New(strings.ToUpper, 2, func(label string) string { made[label]++; return "<" + label + ">" })
	for _, c := range []struct{ limiter, want string }{
		{"a", "<A>"}, {"b", "<B>"}, {"c", "<other>"}, {"A", "<A>"}, {"d", "<other>"}, {"b", "<B>"},
	} {
		if got := s.Of(c.limiter); got != c.want {
			t.Errorf("%s: %s, expected %s", c.limiter, got, c.want)
		}
	}
	if len(made) != 3 || made["A"] != 1 || made["B"] != 1 || made[Other] != 1 {
		t.Errorf("made: %v", made)
	}
	if all := slices.Sorted(s.All()); !slices.Equal(all, []string{"<A>", "<B>", "<other>"}) {
		t.Errorf("all: %q", all)
	}
}

// Names of limiters may be any bytes; those that count take labels in UTF-8 alone.
func TestLabelsAreUTF8(t *testing.T) {
	s := New(func(limiter string) string { return limiter }, 0, func(label string) string { return label })
	for limiter, want := range map[string]string{
		"größe": "größe", "a\xffb": `"a\xffb"`, "a\xfeb": `"a\xfeb"`, `"a\xffb"`: `"\"a\\xffb\""`,
	} {
		if got := s.Of(limiter); got != want {
			t.Errorf("%q: %s, expected %s", limiter, got, want)
		}
	}
}

func TestWithoutLabelFunctionThereIsOneSeries(t *testing.T) {
	made := 0
	s := New(nil, 0, func(label string) string { made++; return "<" + label + ">" })
	for i := range 3 {
		if got := s.Of(fmt.Sprint(i)); got != "<>" {
			t.Errorf("%d: %s", i, got)
		}
	}
	if all := slices.Collect(s.All()); made != 1 || !slices.Equal(all, []string{"<>"}) {
		t.Errorf("%d made: %q", made, all)
	}
}

func TestEachSeriesIsMadeOnce(t *testing.T) {
	var made atomic.Int64
	s := New(func(limiter string) string { return limiter }, 0, func(string) int64 { return made.Add(1) })
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 2 * Most {
				s.Of(fmt.Sprint(i))
			}
		})
	}
	group.Wait()
	if made.Load() != Most+1 {
		t.Errorf("%d series were made, expected %d", made.Load(), Most+1)
	}
}
