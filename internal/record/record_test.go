package record

import (
	"bytes"
	"math"
	"strings"
	"sync"
	"testing"
)

var formats = []Format{Redisson313, Redisson316, Redisson317, Redisson321}

func prefixOf(i *Identity, f Format, n int) string { return string(i.AppendPrefix(nil, f, n)) }

func TestIDsOfAProcessNeverRepeat(t *testing.T) {
	const workers, each = 4, 25_000
	for _, f := range []Format{Redisson316, Redisson317, Redisson321} {
		identity := NewIdentity("client")
		made := make([][]string, workers)
		var wait sync.WaitGroup
		for w := range workers {
			wait.Go(func() {
				for range each {
					made[w] = append(made[w], prefixOf(identity, f, 1))
				}
			})
		}
		wait.Wait()
		seen := make(map[string]bool, workers*each)
		for _, prefixes := range made {
			for _, prefix := range prefixes {
				if seen[prefix] {
					t.Fatalf("%v: the prefix %x was made twice", f, prefix)
				}
				seen[prefix] = true
			}
		}
	}
}

func TestIDsIdentifyTheirClient(t *testing.T) {
	me, other := NewIdentity("me"), NewIdentity("other")
	if me.tag == other.tag {
		t.Fatal("two clients have one tag")
	}
	if again := NewIdentity("me"); again.tag != me.tag {
		t.Errorf("a client has the tag %x, and the tag %x after a restart", me.tag, again.tag)
	}
	for _, f := range formats {
		member := []byte(prefixOf(me, f, 1) + "\x02\x00\x00\x00")
		head, length, _ := f.Layout()
		if len(member) != len(head)+length+4 || !bytes.HasPrefix(member, head) {
			t.Fatalf("%v: the client wrote %x", f, member)
		}
		id := string(member[len(head) : len(head)+length])
		mark, tag := idMark, 3
		if f == Redisson313 {
			mark, tag = idMark[:1], 1
		}
		if f == Redisson321 {
			tag = 6
		}
		if want := mark + string(me.tag[:tag]); !strings.HasPrefix(id, want) {
			t.Errorf("%v: the id %x does not start with %x", f, id, want)
		}
	}
}

// originOf returns the origin of a member as scripts compute it.
func originOf(member []byte) int64 {
	f, head, known := FormatOf(member)
	if !known || f == Redisson317 && len(member) < 10 {
		return -1
	}
	var bytes []byte
	if bytes = member[head : head+5]; f == Redisson313 {
		bytes = member[:4]
	}
	var number int64
	for _, b := range bytes {
		number = number<<8 | int64(b)
	}
	return number
}

func TestKindsOfRecords(t *testing.T) {
	me, other := NewIdentity("me"), NewIdentity("other")
	permits := "\x01\x00\x00\x00"
	for _, f := range formats {
		if k, _ := me.KindOf(originOf([]byte(prefixOf(me, f, 1) + permits))); k != Self {
			t.Errorf("%v: an own record is taken for %d", f, k)
		}
		if f != Redisson313 {
			if k, _ := me.KindOf(originOf(append(AppendShare([]byte(prefixOf(me, f, 1)), f, 5),
				permits...))); k != Self {
				t.Errorf("%v: an own record with a share is taken for %d", f, k)
			}
		}
		k, tag := me.KindOf(originOf([]byte(prefixOf(other, f, 1) + permits)))
		if k != Go {
			t.Errorf("%v: another Go client's record is taken for %d", f, k)
		}
		want := uint32(other.tag[0])<<16 | uint32(other.tag[1])<<8 | uint32(other.tag[2])
		if f == Redisson313 {
			want >>= 16
		}
		if tag != want {
			t.Errorf("%v: another Go client's tag is %x, want %x", f, tag, want)
		}
	}
	for _, member := range []string{
		"\xf4\x1e\x87\x5c\x02\x00\x00\x00",                               // 3.13.6
		"\x08\x00\x00\x00\x00\x00\x00\x00\x12\x34567890\x01\x00\x00\x00", // no known format
		"\x08" + "\x9a\x01\x02\x03\x04\x05\x06\x07" + permits,
		"\x10" + "\x9a\x01\x02\x03\x04\x05\x06\x07\x9a\x01\x02\x03\x04\x05\x06\x07" + permits,
		"\x08" + "GO345678" + permits,
		"\x08" + "oG345678" + permits,
		"", "x", permits, "Go" + permits,
	} {
		if k, tag := me.KindOf(originOf([]byte(member))); k != Other || tag != 0 {
			t.Errorf("%x is taken for kind %d of tag %x", member, k, tag)
		}
	}
}

// TestACounterThatOverflowsStaysInItsID makes the counter pass each length to which a format
// truncates it.
func TestACounterThatOverflowsStaysInItsID(t *testing.T) {
	for _, start := range []uint64{math.MaxUint16 - 1, 1<<24 - 2, math.MaxUint32 - 1, math.MaxUint64 - 1} {
		for _, f := range formats {
			identity := NewIdentity("client")
			identity.StartAt(start)
			seen := map[string]bool{}
			length := len(prefixOf(identity, f, 1))
			for range 4 {
				prefix := prefixOf(identity, f, 1)
				if k, _ := identity.KindOf(originOf([]byte(prefix + "\x01\x00\x00\x00"))); k != Self {
					t.Errorf("%v after %x: %x is taken for kind %d", f, start, prefix, k)
				}
				if len(prefix) != length || seen[prefix] {
					t.Errorf("%v after %x: the prefix %x, after %v", f, start, prefix, seen)
				}
				seen[prefix] = true
			}
		}
	}
}

func TestPrefixesForSeveralRecordsLeaveRoom(t *testing.T) {
	identity := NewIdentity("client")
	identity.StartAt(100)
	first, second := prefixOf(identity, Redisson317, 3), prefixOf(identity, Redisson317, 1)
	if first[len(first)-1] != 101 || second[len(second)-1] != 104 {
		t.Errorf("three ids from %x, the next from %x", first, second)
	}
}
