// Package keys has Redisson's names of a limiter's keys, the cluster slots of keys, and how names
// are made of texts that clients choose and of their addresses. It does not depend on what the keys
// hold.
package keys

import (
	"fmt"
	"strconv"
	"strings"
)

// Indexes of a limiter's keys, in the order in which every script takes them.
const (
	Config = iota
	Value
	ClientValue
	Permits
	ClientPermits
	Count
)

// Names returns the keys of the limiter with a mapped name, for the client with an id. As in
// Redisson, a name that contains "{" is not put into braces again, even if its keys are then in
// different slots.
func Names(name, clientID string) [Count]string {
	value, permits := suffixed(name, "value"), suffixed(name, "permits")
	return [Count]string{name, value, suffixed(value, clientID), permits, suffixed(permits, clientID)}
}

func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// MaxBytes is the largest total length of a limiter's keys, in bytes: half of what Redis buffers
// from a client before it closes the connection (client-query-buffer-limit, 1 GB), because renaming
// sends the keys of two limiters. Redisson's calls send the same keys, so its names are bounded in
// the same way.
const MaxBytes = 512 << 20

// CheckLength returns an error if a mapped name and a client id of these lengths (bytes) are too
// long.
func CheckLength(name, clientID int) error {
	const parts = len("{}:permits:")
	if Count*(name+parts)+2*clientID > MaxBytes {
		return fmt.Errorf("the name has %d bytes and the client id %d: Redis would not take the keys", name, clientID)
	}
	return nil
}

// Slot returns the cluster slot of a key: CRC-16/XMODEM of its hash tag, modulo 16384.
func Slot(key string) int {
	var crc uint16
	for _, b := range []byte(Tag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}

// SameSlot returns whether all keys are in one cluster slot.
func SameSlot(keys []string) bool {
	for _, key := range keys[1:] {
		if Tag(key) != Tag(keys[0]) && Slot(key) != Slot(keys[0]) {
			return false
		}
	}
	return true
}

// SameTag returns whether all keys have the same hash tag, and so are on one server however keys
// are distributed.
func SameTag(keys []string) bool {
	for _, key := range keys[1:] {
		if Tag(key) != Tag(keys[0]) {
			return false
		}
	}
	return true
}

// Tagged returns a name that has a hash tag, or else the name in braces, which has one unless the
// name begins with "}" or is empty.
func Tagged(name string) string {
	if Tag(name) != name {
		return name
	}
	return "{" + name + "}"
}

// Tag is the part of a key that decides its slot: what the first pair of braces holds, if that is
// anything, else the whole key.
func Tag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// Quoted quotes a name for an error text: on one line, and at most its first 200 bytes.
func Quoted(name string) string {
	const most = 200
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:most], len(name))
}
