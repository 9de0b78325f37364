package recent

import "testing"

// The values that are used stay, and of the others only so many are kept.
func TestValuesThatAreUsedStay(t *testing.T) {
	var r Values[int, int]
	made := 0
	get := func(key int) *int {
		return r.Get(key, func() *int {
			made++
			return new(int)
		})
	}
	used := get(-1)
	for i := range 5 * Most {
		get(i)
		if i%1000 == 0 && get(-1) != used {
			t.Fatalf("a value that is used is made again after %d others", i)
		}
	}
	if n := len(r.young) + len(r.old); n > 2*Most || made != 5*Most+1 {
		t.Errorf("%d are kept, %d were made", n, made)
	}
}
