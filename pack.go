package rratelimiter

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"
)

// pack.go encodes and decodes records: members of the permits set, each of which is one grant. It does not use Redis.

// RecordFormat is the encoding of a record. Limiters read every format. They must write one that all Redisson clients
// of the limiter can read.
type RecordFormat int

// The formats, named after the first Redisson release that writes them.
const (
	Redisson317 RecordFormat = iota // struct.pack('Bc0I') with ids of 8 bytes: 3.17.0 to 3.20.1; the default
	Redisson321                     // the same with ids of 16 bytes: 3.21.0 and later
	Redisson316                     // struct.pack('Lc0I'): 3.16.4 to 3.16.8
	Redisson313                     // struct.pack('fI'): 3.13.3 to 3.16.3
)

// String returns the Redisson releases that write the format.
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

// layout returns the parts of a record before the permits: the bytes that encode the length of the id, and that length.
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

// A Record is one grant as it is stored in the permits set.
type Record struct {
	ID      []byte    // distinguishes grants of the same time and size
	Permits uint32    // number of permits granted
	At      time.Time // time of the grant: the member's score (ms, with fractions); UnpackRecord leaves it zero
}

// PackRecord returns the member of the permits set for a grant. The id must have the length of the format: 4 bytes for
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

// UnpackRecord decodes a member of the permits set in any format. The permits are its last four bytes; the id is what
// precedes them, without the length prefix that some formats have. A member of fewer than four bytes is an error.
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

// formatOf guesses the format of a member from its length, and returns the number of bytes before the id.
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
		return Redisson317, 1, true // Redisson reads ids of any length
	}
	return 0, 0, false
}

// idMark starts every id of a Go client, so that clients can tell Go records from Redisson's, whose ids are random. In
// the format Redisson313, whose ids have four bytes, only its first byte is used.
const idMark = "Go"

// An identity makes the ids of one client's records: idMark, a tag of the client, with a granularity a share (see
// appendShare), and a counter with a random start. Ids are unique within a client, and almost certainly between
// clients.
type identity struct {
	tag     [6]byte // from a hash of the client id
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

// prefix returns the bytes of a record before its permits, for the first of n records with consecutive ids.
func (i *identity) prefix(f RecordFormat, n int) string { return string(i.appendPrefix(nil, f, n)) }

// appendPrefix is prefix, appended to a buffer of the caller.
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

// appendShare inserts a share before the counter of a prefix made by appendPrefix: the number of permits of the record
// that were granted to the call that wrote it. A record that later calls joined (WithGranularity) still shows that
// number.
func appendShare(prefix []byte, f RecordFormat, share uint32) []byte {
	head, length, _ := f.layout()
	prefix = append(prefix, 0, 0, 0, 0)
	at := len(head) + tagEnd(length)
	copy(prefix[at+4:], prefix[at:])
	binary.LittleEndian.PutUint32(prefix[at:], share)
	prefix[0] += 4 // length of the id
	return prefix
}

// endOf returns the last three bytes of the id in a prefix, as a number.
func endOf(prefix []byte) int64 {
	end := prefix[len(prefix)-3:]
	return int64(end[0])<<16 | int64(end[1])<<8 | int64(end[2])
}

// tagEnd returns the offset of the counter in an id of the given length (bytes).
func tagEnd(length int) int {
	switch length {
	case 4:
		return 2
	case 8:
		return 5
	}
	return 8
}

// A kind is the writer of a record, as far as its id shows it.
type kind int

const (
	kindOther kind = iota // Redisson or an unknown writer
	kindSelf              // this client
	kindGo                // another Go client, identified by its tag
)

// kindOf decodes the origin in a script's reply: the first five bytes of an id as a number (four bytes in Redisson313),
// or a negative number if there is no id.
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
