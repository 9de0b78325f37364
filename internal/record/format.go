package record

import (
	"encoding/binary"
	"fmt"
)

// format.go knows which releases of Redisson write which format.

// A Format is the encoding of a record.
type Format int

// The formats, named after the first Redisson release that writes them.
const (
	Redisson317 Format = iota
	Redisson321
	Redisson316
	Redisson313
)

// String returns the Redisson releases that write the format.
func (f Format) String() string {
	switch f {
	case Redisson313:
		return "Redisson 3.13.3 to 3.16.3"
	case Redisson316:
		return "Redisson 3.16.4 to 3.16.8"
	case Redisson317:
		return "Redisson 3.17.0 to 3.20.1"
	case Redisson321:
		return "Redisson 3.21.0 and later"
	}
	return fmt.Sprintf("unknown format %d", int(f))
}

// Layout returns the parts of a record before the permits: the bytes that encode the length of the
// id, and that length.
func (f Format) Layout() (head []byte, idLength int, known bool) {
	switch f {
	case Redisson313:
		return nil, 4, true
	case Redisson316:
		return []byte{8, 0, 0, 0, 0, 0, 0, 0}, 8, true
	case Redisson317:
		return []byte{8}, 8, true
	case Redisson321:
		return []byte{16}, 16, true
	}
	return nil, 0, false
}

// FormatOf guesses the format of a member from its length, and returns the number of bytes before
// the id.
func FormatOf(member []byte) (f Format, head int, known bool) {
	length := len(member)
	switch {
	case length == 8:
		return Redisson313, 0, true
	case (length == 20 || length == 24) && binary.LittleEndian.Uint64(member) == uint64(length-12):
		return Redisson316, 8, true
	case (length == 21 || length == 25) && int(member[0]) == length-5:
		return Redisson321, 1, true
	case length > 5 && int(member[0]) == length-5:
		return Redisson317, 1, true // Redisson reads ids of any length
	}
	return 0, 0, false
}
