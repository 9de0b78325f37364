package rratelimiter

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// pack.go encodes and decodes records: members of the permits set, each of which is one grant. It
// does not use Redis.

// RecordFormat is the encoding of a record. Limiters read every format. They must write a format
// that all Redisson clients of the limiter can read.
type RecordFormat int

// The formats, named after the first Redisson release that writes them.
const (
	// struct.pack('Bc0I') with ids of 8 bytes: 3.17.0 to 3.20.1; the default
	Redisson317 RecordFormat = iota
	Redisson321              // the same with ids of 16 bytes: 3.21.0 and later
	Redisson316              // struct.pack('Lc0I'): 3.16.4 to 3.16.8
	Redisson313              // struct.pack('fI'): 3.13.3 to 3.16.3
)

// String returns the Redisson releases that write the format.
func (f RecordFormat) String() string { return record.Format(f).String() }

// A Record is one or more grants as they are stored in the limiter's sorted set, the key
// {NAME}:permits.
type Record struct {
	ID      []byte // distinguishes grants of the same time and size
	Permits uint32 // number of permits granted
	// At is the member's score (ms, with fractions): the time of the grant, or the end of its
	// period (WithGranularity, WithLease). UnpackRecord leaves it zero.
	At time.Time
}

// PackRecord returns the member of the sorted set that stores a grant. The id must have the length
// that the format prescribes: 4 bytes for Redisson313, 8 for Redisson316 and Redisson317, 16 for
// Redisson321. (Limiters with WithGranularity or WithLease write ids that are four bytes longer.)
func PackRecord(f RecordFormat, id []byte, permits uint32) ([]byte, error) {
	head, length, known := record.Format(f).Layout()
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

// UnpackRecord decodes a member of the permits set in any format. The last four bytes of the member
// are the number of permits. The bytes before them are the id, without the length prefix that some
// formats have. A member of fewer than four bytes is an error.
func UnpackRecord(member []byte) (Record, error) {
	if len(member) < 4 {
		return Record{}, fmt.Errorf("rratelimiter: a record has at least 4 bytes, this has %d", len(member))
	}
	id, permits := member[:len(member)-4], member[len(member)-4:]
	if _, head, known := record.FormatOf(member); known {
		id = id[head:]
	}
	return Record{ID: append([]byte(nil), id...), Permits: binary.LittleEndian.Uint32(permits)}, nil
}
