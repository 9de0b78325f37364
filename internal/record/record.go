// Package record has the bytes of a record, a member of the permits set, and the ids that a client
// gives its records.
package record

import (
	"crypto/rand"
	"encoding/binary"
	"hash/fnv"
	"sync/atomic"
)

// idMark starts every id of a Go client, so that clients can tell Go records from Redisson's, whose
// ids are random. In the format Redisson313, whose ids have four bytes, only its first byte is
// used.
const idMark = "Go"

// An Identity makes the ids of one client's records: idMark, a tag of the client, with a
// granularity a share (see AppendShare), and a counter with a random start. Ids are unique within a
// client, and almost certainly between clients.
type Identity struct {
	tag     [6]byte // from a hash of the client id
	counter atomic.Uint64
}

func NewIdentity(clientID string) *Identity {
	id := &Identity{}
	hash := fnv.New64a()
	hash.Write([]byte(clientID))
	sum := hash.Sum64()
	for i := range id.tag {
		id.tag[i] = byte(sum >> (8 * i))
	}
	var start [8]byte
	rand.Read(start[:])
	id.StartAt(binary.LittleEndian.Uint64(start[:]))
	return id
}

// StartAt sets the counter of the ids.
func (i *Identity) StartAt(counter uint64) { i.counter.Store(counter) }

// AppendPrefix appends the bytes of a record before its permits, for the first of n records with
// consecutive ids.
func (i *Identity) AppendPrefix(prefix []byte, f Format, n int) []byte {
	head, length, _ := f.Layout()
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

// ShareLength is the number of bytes in an id that hold the share of AppendShare.
const ShareLength = 4

// AppendShare inserts a share before the counter of a prefix made by AppendPrefix: the number of
// permits of the record that were granted to the call that wrote it. A record that later calls
// joined (WithGranularity) still shows that number.
func AppendShare(prefix []byte, f Format, share uint32) []byte {
	head, length, _ := f.Layout()
	prefix = append(prefix, 0, 0, 0, 0)
	at := len(head) + tagEnd(length)
	copy(prefix[at+4:], prefix[at:])
	binary.LittleEndian.PutUint32(prefix[at:], share)
	prefix[0] += 4 // length of the id
	return prefix
}

// EndOf returns the last three bytes of the id in a prefix, as a number.
func EndOf(prefix []byte) int64 {
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

// NoOrigin is the origin in a script's reply if there is no live record.
const NoOrigin = -2

// A Kind is the writer of a record, as far as its id shows it.
type Kind int

const (
	Other Kind = iota // Redisson or an unknown writer
	Self              // this client
	Go                // another Go client, identified by its tag
)

// Origin returns the origin of this client's records in a format, as scripts read it. In
// Redisson313 it is the first two of its four bytes, since the others count.
func (i *Identity) Origin(f Format) int64 {
	if f == Redisson313 {
		return int64(idMark[0])<<8 | int64(i.tag[0])
	}
	mark := int64(idMark[0])<<8 | int64(idMark[1])
	return mark<<24 | int64(i.tag[0])<<16 | int64(i.tag[1])<<8 | int64(i.tag[2])
}

// KindOf decodes the origin in a script's reply: the first five bytes of an id as a number (four
// bytes in Redisson313), or a negative number if there is no id.
func (i *Identity) KindOf(origin int64) (k Kind, tag uint32) {
	own := uint32(i.tag[0])<<16 | uint32(i.tag[1])<<8 | uint32(i.tag[2])
	switch {
	case origin < 0:
		return Other, 0
	case origin>>24 == int64(idMark[0])<<8|int64(idMark[1]):
		tag = uint32(origin & 0xffffff)
	case origin>>24 == int64(idMark[0]):
		tag, own = uint32(origin>>16&0xff), own>>16
	default:
		return Other, 0
	}
	if tag == own {
		return Self, tag
	}
	return Go, tag
}
