package main

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestExportRefusesWhatItCannotDo(t *testing.T) {
	s := shop{t: t, s: redistest.Embedded(t)}
	s.fails(1, "--every: -1s is negative", "export", "--every", "-1s")
	s.fails(1, "--most: 0 must be at least 1", "export", "--most", "0")
	s.fails(1, "--listen: ", "export", "--listen", "nowhere:no")
}
