package options

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var promises = flag.String("promises", "", "judge only the promises that match this regular expression")

// TestStories judges random stories of random limiters.
func TestStories(t *testing.T) {
	tries := 1 // a story that fails is run again, to make it shorter: what happens at once has no certain order
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		for range tries {
			if faults := judged(t, s); faults != "" {
				tries = 5
				rt.Fatalf("%v%s", s, faults)
			}
		}
	})
}

// judged plays a story, and returns which promises it breaks.
func judged(t *testing.T, s *story) string {
	tr := play(t, s)
	var text strings.Builder
	only := regexp.MustCompile(*promises)
	for _, j := range judges {
		if !only.MatchString(j.promise) {
			continue
		}
		for _, fault := range j.judge(tr) {
			text.WriteString("broken: " + j.promise + "\n\t" + fault + "\n")
		}
	}
	return text.String()
}
