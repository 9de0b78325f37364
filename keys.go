package rratelimiter

import (
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/hashtag"
)

// keys.go has Redisson's names of a limiter's keys, and their cluster slots. It does not depend on what the keys hold.

// Indexes of a limiter's keys, in the order in which every script takes them.
const (
	keyConfig = iota
	keyValue
	keyClientValue
	keyPermits
	keyClientPermits
	keyCount
)

// keyNames returns the keys of the limiter with a mapped name, for the client with an id. As in Redisson, a name that
// contains "{" is not put into braces again, even if its keys are then in different slots.
func keyNames(name, clientID string) [keyCount]string {
	value, permits := suffixed(name, "value"), suffixed(name, "permits")
	return [keyCount]string{name, value, suffixed(value, clientID), permits, suffixed(permits, clientID)}
}

func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// mostKeyBytes is the largest total length of a limiter's keys, in bytes: half of what Redis buffers from a client
// before it closes the connection (client-query-buffer-limit, 1 GB), because renaming sends the keys of two limiters.
// Redisson's calls send the same keys, so its names are bounded in the same way.
const mostKeyBytes = 512 << 20

// checkLength returns an error if a mapped name and a client id of these lengths (bytes) are too long.
func checkLength(name, clientID int) error {
	const parts = len("{}:permits:")
	if keyCount*(name+parts)+2*clientID > mostKeyBytes {
		return invalidOption("the name has %d bytes and the client id %d: Redis would not take the keys", name, clientID)
	}
	return nil
}

// slot returns the cluster slot of a key: CRC-16/XMODEM of its hash tag, modulo 16384.
func slot(key string) int {
	var crc uint16
	for _, b := range []byte(hashtag.Of(key)) {
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

// sameSlot returns whether all keys are in one cluster slot.
func sameSlot(keys []string) bool {
	for _, key := range keys[1:] {
		if hashtag.Of(key) != hashtag.Of(keys[0]) && slot(key) != slot(keys[0]) {
			return false
		}
	}
	return true
}

// sameTag returns whether all keys have the same hash tag, and so are on one server however keys are distributed.
func sameTag(keys []string) bool {
	for _, key := range keys[1:] {
		if hashtag.Of(key) != hashtag.Of(keys[0]) {
			return false
		}
	}
	return true
}
