package redistest

import "testing"

func TestEachProcessHasPortsOfItsOwn(t *testing.T) {
	var one, other portBlock // as two processes have them
	seen := map[int]bool{}
	for range blockSize - 1 {
		seen[one.next()] = true
	}
	for range blockSize - 1 {
		seen[other.next()] = true
	}
	defer one.guard.Close()
	defer other.guard.Close()
	if len(seen) != 2*(blockSize-1) {
		t.Errorf("%d ports for two blocks of %d", len(seen), blockSize-1)
	}
	if seen[one.first] || seen[other.first] {
		t.Error("the first port of a block is the guard's")
	}
	if again := one.next(); !seen[again] {
		t.Errorf("%d is not in the block", again)
	}
}
