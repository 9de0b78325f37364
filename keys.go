package rratelimiter

import (
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/hashtag"
)

// keys.go knows how Redisson names the keys of a limiter, and where these lie on a cluster. It knows nothing of what the
// keys hold.

// The keys of a limiter, in the order in which every script takes them.
const (
	keyConfig = iota
	keyValue
	keyClientValue
	keyPermits
	keyClientPermits
	keyCount
)

// keyNames lists the keys of a limiter with a raw name, for the client with an id. A name that holds a brace is not put
// into braces again, whether or not that keeps the keys in one slot: Redisson does the same, and its keys are ours.
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

// mostKeyBytes is how many bytes all keys of a limiter may have together: half of what Redis takes from a client before it
// cuts the connection (client-query-buffer-limit, 1 GB), since renaming sends the keys of two. Redisson's calls send the
// same keys, so its names are not longer.
const mostKeyBytes = 512 << 20

// checkLength says whether a raw name and a client id of so many bytes are too long.
func checkLength(name, clientID int) error {
	const parts = len("{}:permits:")
	if keyCount*(name+parts)+2*clientID > mostKeyBytes {
		return invalidOption("the name has %d bytes and the client id %d: Redis would not take the keys", name, clientID)
	}
	return nil
}

// slot is the cluster slot of a key: CRC-16/XMODEM of its hash tag, modulo the 16384 slots.
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

// sameSlot tells whether a cluster serves all the keys together.
func sameSlot(keys []string) bool {
	for _, key := range keys[1:] {
		if hashtag.Of(key) != hashtag.Of(keys[0]) && slot(key) != slot(keys[0]) {
			return false
		}
	}
	return true
}

// sameTag tells whether every way of spreading keys over servers keeps these together.
func sameTag(keys []string) bool {
	for _, key := range keys[1:] {
		if hashtag.Of(key) != hashtag.Of(keys[0]) {
			return false
		}
	}
	return true
}
