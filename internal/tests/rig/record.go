package rig

import (
	"encoding/binary"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// Formats are all formats of records.
var Formats = []rratelimiter.RecordFormat{
	rratelimiter.Redisson313, rratelimiter.Redisson316, rratelimiter.Redisson317, rratelimiter.Redisson321,
}

// Prefix returns the bytes of the next record of the rig's client, without its permits.
func (r *Rig) Prefix(f rratelimiter.RecordFormat) string {
	return string(Core(r.Client).Identity().AppendPrefix(nil, record.Format(f), 1))
}

// MemberOf returns a record as Redisson 3.17 writes it.
func MemberOf(id string, permits uint32) string {
	return string(binary.LittleEndian.AppendUint32([]byte("\x08"+id), permits))
}

// PermitsOf returns the permits of a record: its last four bytes, in each format.
func PermitsOf(member string) int64 {
	return int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:])))
}
