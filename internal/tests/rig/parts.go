package rig

import (
	"slices"
	"time"
)

// A Part is a time in which nothing changes.
type Part struct{ From, To time.Duration }

// Parts cuts the time between two moments, which may be the same one, at the changes within it.
func Parts(from, to time.Duration, changes []time.Duration) (parts []Part) {
	slices.Sort(changes)
	for _, at := range slices.Compact(changes) {
		if at > from && at < to {
			parts = append(parts, Part{from, at})
			from = at
		}
	}
	return append(parts, Part{from, to})
}
