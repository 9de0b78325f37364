package withjava

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/window"
)

const (
	recorded = "testdata/grants.txt"
	drawn    = "../../../docs/go-and-java.svg"
)

func TestPictureOfTheReadmeShowsTheRecording(t *testing.T) {
	r, err := readRecording(recorded)
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.draw()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(drawn, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(drawn); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not the picture of %s (%v); -update draws it", drawn, recorded, err)
	}
}

// Redisson's times are whole ms, so the bound holds for windows of the interval less a ms. On a
// busy machine calls overtake each other, and a new recording may fail here: see witness in package
// demo.
func TestRecordingKeepsTheLimit(t *testing.T) {
	r, err := readRecording(recorded)
	if err != nil {
		t.Fatal(err)
	}
	c := window.NewChecker(interval - time.Millisecond)
	for _, g := range r {
		c.Add(window.Grant{Permits: g.Permits, Start: g.At, End: g.At})
	}
	if largest, at := c.Largest(); largest > permits {
		t.Errorf("%d permits in the window that begins at %v", largest, at)
	}
}
