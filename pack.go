package rratelimiter

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"
)

// pack.go knows the bytes of a record: a member of the permits set, which stands for one grant. It knows nothing of Redis.

// RecordFormat is the way in which a grant is written. Any format is read, always; what the Redissons of a fleet can't
// read must not be written.
type RecordFormat int

// The formats, named after the first Redisson release that writes them.
const (
	Redisson317 RecordFormat = iota // struct.pack('Bc0I') with ids of 8 bytes: 3.17.0 to 3.20.1; the default
	Redisson321                     // the same with ids of 16 bytes: 3.21.0 and later
	Redisson316                     // struct.pack('Lc0I'): 3.16.4 to 3.16.8
	Redisson313                     // struct.pack('fI'): 3.13.3 to 3.16.3
)

// String names the format by its releases.
func (f RecordFormat) String() string {
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

// layout is what a format puts before the permits: bytes that tell the length of the id, then the id.
func (f RecordFormat) layout() (head []byte, idLength int, known bool) {
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

// A Record is one grant as it is stored.
type Record struct {
	ID      []byte    // tells grants of the same time and size apart
	Permits uint32    // how many were granted
	At      time.Time // when: the score of the member, so not known to PackRecord and UnpackRecord
}

// PackRecord writes the member of the permits set for a grant. The id must have the length of the format: 4 bytes for
// Redisson313, 8 for Redisson316 and Redisson317, 16 for Redisson321. (Limiters with WithGranularity write ids that are
// four bytes longer.)
func PackRecord(f RecordFormat, id []byte, permits uint32) ([]byte, error) {
	head, length, known := f.layout()
	if !known {
		return nil, invalidOption("%v", f)
	}
	if len(id) != length {
		return nil, fmt.Errorf("rratelimiter: a record of %v has an id of %d bytes, not %d", f, length, len(id))
	}
	member := make([]byte, 0, len(head)+len(id)+4)
	member = append(append(member, head...), id...)
	return binary.LittleEndian.AppendUint32(member, permits), nil
}

// UnpackRecord reads a member of the permits set, in any format: the permits are its last four bytes, and the id is what
// stands before them, less the length where the format has one. A member of fewer than four bytes is no record.
func UnpackRecord(member []byte) (Record, error) {
	if len(member) < 4 {
		return Record{}, fmt.Errorf("rratelimiter: a record has at least 4 bytes, this has %d", len(member))
	}
	id, permits := member[:len(member)-4], member[len(member)-4:]
	if _, head, known := formatOf(member); known {
		id = id[head:]
	}
	return Record{ID: append([]byte(nil), id...), Permits: binary.LittleEndian.Uint32(permits)}, nil
}

// formatOf guesses the format of a member, with the number of bytes before the id.
func formatOf(member []byte) (f RecordFormat, head int, known bool) {
	length := len(member)
	switch {
	case length == 8:
		return Redisson313, 0, true
	case (length == 20 || length == 24) && binary.LittleEndian.Uint64(member) == uint64(length-12):
		return Redisson316, 8, true
	case (length == 21 || length == 25) && int(member[0]) == length-5:
		return Redisson321, 1, true
	case length > 5 && int(member[0]) == length-5:
		return Redisson317, 1, true // ids of any length, as Redisson reads them
	}
	return 0, 0, false
}

// Every id of a Go client starts with these, so that clients know each other's records from Redisson's, whose ids are
// random. In the oldest format, which has but four bytes, the first one must do.
const idMark = "Go"

// An identity makes the ids of one client's records: the mark, a tag of the client, with a granularity a share, and a
// counter that starts at random. So ids never meet within a client, and hardly between two.
type identity struct {
	tag     [6]byte
	counter atomic.Uint64
}

func newIdentity(clientID string) *identity {
	id := &identity{}
	hash := fnv.New64a()
	hash.Write([]byte(clientID))
	sum := hash.Sum64()
	for i := range id.tag {
		id.tag[i] = byte(sum >> (8 * i))
	}
	var start [8]byte
	rand.Read(start[:])
	id.counter.Store(binary.LittleEndian.Uint64(start[:]))
	return id
}

// prefix makes the bytes of a record before its permits, for the first of n records whose ids follow each other.
func (i *identity) prefix(f RecordFormat, n int) string { return string(i.appendPrefix(nil, f, n)) }

// appendPrefix is prefix for those who have the memory.
func (i *identity) appendPrefix(prefix []byte, f RecordFormat, n int) []byte {
	head, length, _ := f.layout()
	first := i.counter.Add(uint64(n)) - uint64(n) + 1
	var count [8]byte
	binary.BigEndian.PutUint64(count[:], first)
	prefix = append(prefix, head...)
	switch length {
	case 4:
		prefix = append(append(append(prefix, idMark[0]), i.tag[0]), count[6:]...)
	case 8:
		prefix = append(append(append(prefix, idMark...), i.tag[:3]...), count[5:]...)
	default:
		prefix = append(append(append(prefix, idMark...), i.tag[:]...), count[:]...)
	}
	return prefix
}

// appendShare puts a share before the counter of a prefix that was just appended: how many permits of its record the call
// was granted that wrote it. So records that others joined tell that, too (WithGranularity).
func appendShare(prefix []byte, f RecordFormat, share uint32) []byte {
	head, length, _ := f.layout()
	prefix = append(prefix, 0, 0, 0, 0)
	at := len(head) + tagEnd(length)
	copy(prefix[at+4:], prefix[at:])
	binary.LittleEndian.PutUint32(prefix[at:], share)
	prefix[0] += 4 // the length of the id
	return prefix
}

// endOf is the last three bytes of an id, given a prefix, as a number.
func endOf(prefix []byte) int64 {
	end := prefix[len(prefix)-3:]
	return int64(end[0])<<16 | int64(end[1])<<8 | int64(end[2])
}

// tagEnd is where the counter starts in an id of a length.
func tagEnd(length int) int {
	switch length {
	case 4:
		return 2
	case 8:
		return 5
	}
	return 8
}

// A kind tells whose record it is, as far as its id shows.
type kind int

const (
	kindOther kind = iota // not a Go client's: Redisson's, or from a hand unknown
	kindSelf              // this client's
	kindGo                // another Go client's, told apart by its tag
)

// kindOf reads the origin that a script answers: the first five bytes of an id as a number, four in the oldest format.
func (i *identity) kindOf(origin int64) (k kind, tag uint32) {
	own := uint32(i.tag[0])<<16 | uint32(i.tag[1])<<8 | uint32(i.tag[2])
	switch {
	case origin < 0:
		return kindOther, 0
	case origin>>24 == int64(idMark[0])<<8|int64(idMark[1]):
		tag = uint32(origin & 0xffffff)
	case origin>>24 == int64(idMark[0]):
		tag, own = uint32(origin>>16&0xff), own>>16
	default:
		return kindOther, 0
	}
	if tag == own {
		return kindSelf, tag
	}
	return kindGo, tag
}
