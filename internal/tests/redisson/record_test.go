package redisson

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// TestRecordBytesAreRedissons has members that Redisson wrote for tryAcquire(2), with ids filled
// in.
func TestRecordBytesAreRedissons(t *testing.T) {
	tests := []struct {
		format  rratelimiter.RecordFormat
		id      string // hex, as the member
		permits uint32
		member  string
	}{
		{rratelimiter.Redisson313, "f41e875c", 2, "f41e875c 02000000"},
		{rratelimiter.Redisson316, "0102030405060708", 2, "0800000000000000 0102030405060708 02000000"},
		{rratelimiter.Redisson317, "0102030405060708", 2, "08 0102030405060708 02000000"},
		{
			rratelimiter.Redisson321,
			"0102030405060708090a0b0c0d0e0f10",
			2,
			"10 0102030405060708090a0b0c0d0e0f10 02000000",
		},
		{rratelimiter.Redisson317, "0000000000000000", 0, "08 0000000000000000 00000000"},
		{rratelimiter.Redisson317, "ffffffffffffffff", math.MaxUint32, "08 ffffffffffffffff ffffffff"},
		{rratelimiter.Redisson317, "0102030405060708", 0x04030201, "08 0102030405060708 01020304"},
	}
	for _, test := range tests {
		id, want := unhex(t, test.id), unhex(t, test.member)
		got, err := rratelimiter.PackRecord(test.format, id, test.permits)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, %d permits: %x, %v; want %x", test.format, test.permits, got, err, want)
		}
		unpacked, err := rratelimiter.UnpackRecord(want)
		if err != nil || !bytes.Equal(unpacked.ID, id) || unpacked.Permits != test.permits || !unpacked.At.IsZero() {
			t.Errorf("%v: %x was read as %+v, %v", test.format, want, unpacked, err)
		}
		if f, _, known := record.FormatOf(want); rratelimiter.RecordFormat(f) != test.format || !known {
			t.Errorf("%x was taken for %v, %v", want, f, known)
		}
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecordsNeedAnIDOfTheirFormatsLength(t *testing.T) {
	for f, length := range map[rratelimiter.RecordFormat]int{
		rratelimiter.Redisson313: 4,
		rratelimiter.Redisson316: 8,
		rratelimiter.Redisson317: 8,
		rratelimiter.Redisson321: 16,
	} {
		for wrong := range 20 {
			_, err := rratelimiter.PackRecord(f, make([]byte, wrong), 1)
			if wrong == length {
				if err != nil {
					t.Errorf("%v with %d bytes: %v", f, wrong, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), f.String()) {
				t.Errorf("%v with %d bytes: %v, want an error that names the format", f, wrong, err)
			}
		}
	}
	for _, f := range []rratelimiter.RecordFormat{-1, 4, math.MaxInt} {
		if _, err := rratelimiter.PackRecord(f, make([]byte, 8), 1); !errors.Is(err, rratelimiter.ErrInvalidOption) {
			t.Errorf("format %d: %v, want ErrInvalidOption", int(f), err)
		}
		if !strings.Contains(f.String(), "unknown") {
			t.Errorf("format %d is called %q", int(f), f)
		}
	}
}

func TestForeignMembersAreReadByTheirLastFourBytes(t *testing.T) {
	tests := []struct {
		member  string
		id      string
		permits uint32
	}{
		{"05000000", "", 5},
		{"aa05000000", "aa", 5},
		{"0001020305000000", "00010203", 5},            // 8 bytes: the oldest format
		{"030102030405000000", "0301020304", 5},        // a wrong length
		{"0401020304ffffff7f", "01020304", 0x7fffffff}, // an id of 4 bytes, as Redisson reads any length
		{"0b" + strings.Repeat("ab", 11) + "01000000", strings.Repeat("ab", 11), 1},
		{strings.Repeat("ff", 20) + "01000000", strings.Repeat("ff", 20), 1},
		// 20 bytes, but no length of 8 before the id
		{strings.Repeat("00", 16) + "01000000", strings.Repeat("00", 16), 1},
		{"ff" + strings.Repeat("ab", 255) + "01000000", strings.Repeat("ab", 255), 1},
	}
	for _, test := range tests {
		record, err := rratelimiter.UnpackRecord(unhex(t, test.member))
		if err != nil || hex.EncodeToString(record.ID) != test.id || record.Permits != test.permits {
			t.Errorf("%s was read as %x with %d permits, %v; want %s with %d",
				test.member, record.ID, record.Permits, err, test.id, test.permits)
		}
	}
	for length := range 4 {
		if _, err := rratelimiter.UnpackRecord(make([]byte, length)); err == nil ||
			!strings.Contains(err.Error(), "at least 4 bytes") {
			t.Errorf("%d bytes: %v, want an error with the right length", length, err)
		}
	}
	if _, err := rratelimiter.UnpackRecord(nil); err == nil {
		t.Error("nil was read as a record")
	}
}

func TestRecordsOwnTheirBytes(t *testing.T) {
	id := []byte("12345678")
	member, _ := rratelimiter.PackRecord(rratelimiter.Redisson317, id, 7)
	record, _ := rratelimiter.UnpackRecord(member)
	clear(member)
	clear(id)
	if string(record.ID) != "12345678" || record.Permits != 7 {
		t.Errorf("the record changed with the bytes it was read from: %+v", record)
	}
}

func FuzzUnpackRecord(f *testing.F) {
	for _, seed := range []string{"", "abc", "\x05\x00\x00\x00", "\x08\x01\x02\x03\x04\x05\x06\x07\x08\x02\x00\x00\x00",
		"\x10" + strings.Repeat("i", 16) + "\xff\xff\xff\xff",
		"\x08\x00\x00\x00\x00\x00\x00\x0012345678\x01\x00\x00\x00",
		"\xf4\x1e\x87\x5c\x02\x00\x00\x00", "\x0c\x00\x00\x00\x00\x00\x00\x00123456789012\x01\x00\x00\x00",
		strings.Repeat("\xff", 300)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, member []byte) {
		unpacked, err := rratelimiter.UnpackRecord(member)
		if len(member) < 4 {
			if err == nil {
				t.Fatalf("%x was read as %+v", member, unpacked)
			}
			return
		}
		if err != nil {
			t.Fatalf("%x: %v", member, err)
		}
		rest := member[:len(member)-4]
		if want := binary.LittleEndian.Uint32(member[len(member)-4:]); unpacked.Permits != want {
			t.Fatalf("%x holds %d permits, want %d", member, unpacked.Permits, want)
		}
		if !bytes.HasSuffix(rest, unpacked.ID) || len(rest)-len(unpacked.ID) > 8 {
			t.Fatalf("%x has the id %x", member, unpacked.ID)
		}
		format, _, known := record.FormatOf(member)
		if _, length, _ := format.Layout(); known && format != record.Redisson317 && len(unpacked.ID) == length {
			again, err := rratelimiter.PackRecord(rratelimiter.RecordFormat(format), unpacked.ID, unpacked.Permits)
			if err != nil || !bytes.Equal(again, member) {
				t.Fatalf("%x was read as %v and written as %x, %v", member, format, again, err)
			}
		}
	})
}

// originOf computes what records.lua does; TestOriginsAreReadAlike compares the two.
func originOf(member []byte) int64 {
	f, head, known := record.FormatOf(member)
	if !known || f == record.Redisson317 && len(member) < 10 {
		return -1
	}
	var bytes []byte
	if bytes = member[head : head+5]; f == record.Redisson313 {
		bytes = member[:4]
	}
	var number int64
	for _, b := range bytes {
		number = number<<8 | int64(b)
	}
	return number
}

// TestOriginsAreReadAlike compares the origin of the oldest record from records.lua with originOf.
func TestOriginsAreReadAlike(t *testing.T) {
	other := record.NewIdentity("other")
	permits := "\x05\x00\x00\x00"
	members := []string{
		"\xf4\x1e\x87\x5c" + permits,
		"\x08\x00\x00\x00\x00\x00\x00\x00\xfe\xdc\xba\x98\x76\x54\x32\x10" + permits,
		"\x08\xfe\xdc\xba\x98\x76\x54\x32\x10" + permits,
		"\x10" + "\xfe\xdc\xba\x98\x76\x54\x32\x10\xfe\xdc\xba\x98\x76\x54\x32\x10" + permits,
		"\x05\x01\x02\x03\x04\x05" + permits,
		"\x04\x01\x02\x03\x04" + permits,
		"\x08\xfe\xdc\xba\x98\x76\x54\x32\x10\xff" + permits,
		"12345678901234567890", permits, "no", "",
	}
	for _, f := range rig.Formats {
		members = append(members, string(other.AppendPrefix(nil, record.Format(f), 1))+permits)
		if f != rratelimiter.Redisson313 {
			members = append(
				members, string(record.AppendShare(other.AppendPrefix(nil, record.Format(f), 1), record.Format(f), 5))+
					permits,
			)
		}
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		for _, member := range members {
			l := r.Limiter("rl")
			r.WriteConfig(l, "rate", "5", "interval", "1000", "type", "0")
			r.WriteValue(l, "0")
			r.AddRecords(l, r.Millis(), member)
			// so that there is something to refuse
			r.AddRecords(l, r.Millis()+1, rig.MemberOf("98765432", 5))
			g, err := rig.OneCall(t.Context(), l, protocol.BatchAsk{Groups: rig.Groups(5, 1)})
			if err != nil || g.Granted(0, protocol.Group{}) != 0 {
				t.Fatalf("%x: granted %v, %v", member, g, err)
			}
			if want := originOf([]byte(member)); g.First.Origin != want {
				t.Errorf("%x comes, by the script, from %x, want %x", member, g.First.Origin, want)
			}
			r.Wipe()
		}
	})
}

// TestATakenIDIsLeftAlone adds the exact member that the next grant would write, and the one after
// it.
func TestATakenIDIsLeftAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 2 * len(rig.Formats) {
			f, options := rig.Formats[i/2],
				[]rratelimiter.LimiterOption{rratelimiter.WithRecordFormat(rig.Formats[i/2])}
			if i%2 == 1 {
				options = append(options, rratelimiter.WithRecordPerRequest())
			}
			for _, counter := range []uint64{41, 1<<24 - 2, math.MaxUint64 - 1} {
				r := rig.New(t, s)
				l := r.Limiter("rl", options...)
				r.SetRate(l, rratelimiter.PerMinute(100))
				rig.Core(r.Client).Identity().StartAt(counter)
				taken, free := []string{r.Prefix(f), r.Prefix(f)}, r.Prefix(f)
				if f == rratelimiter.Redisson313 && taken[1] < taken[0] {
					// it has few ids, so the next byte counts, too
					free = string([]byte{taken[0][0], taken[0][1] + 1, 0, 0})
				}
				for i, prefix := range taken {
					r.AddRecords(l, r.Millis()-int64(10*(i+1)), prefix+"\x07\x00\x00\x00")
				}
				r.WriteValue(l, "86")
				rig.Core(r.Client).Identity().StartAt(counter)
				if !r.Try(l, 7) {
					t.Fatalf("%v: not granted", f)
				}
				want := rratelimiter.State{Rate: rratelimiter.PerMinute(100), Available: 79, Used: 21, Records: 3,
					Oldest: r.Now().Add(-20e6), Newest: r.Now(), Consistent: true}
				r.SameState(l, want)
				members := r.Members(l)
				if len(members) != 3 {
					t.Fatalf("%v: %d members", f, len(members))
				}
				if members[2].Member != free+"\x07\x00\x00\x00" {
					t.Errorf("%v: wrote %x after %x", f, members[2].Member, taken)
				}
				r.Wipe()
			}
		}
	})
}

// TestAllIDsAreTaken: in the oldest format a client has only 65,536 ids.
func TestAllIDsAreTaken(t *testing.T) {
	rig.Long(t)
	server := redistest.Real(t)
	rdb := server.Client()
	client := rratelimiter.NewClient(rdb, rig.Patient)
	l := client.RateLimiter("ids", rratelimiter.WithRecordFormat(rratelimiter.Redisson313))
	rig.MustSet(t, l, rratelimiter.PerHour(1_000_000))
	prefix := rig.Core(client).Identity().AppendPrefix(nil, record.Redisson313, 1)
	for page := range 256 {
		records := make([]redis.Z, 256)
		for i := range records {
			records[i] = redis.Z{
				Score:  float64(time.Now().UnixMilli()),
				Member: string(prefix[:2]) + string([]byte{byte(page), byte(i), 1, 0, 0, 0}),
			}
		}
		if err := rdb.ZAdd(t.Context(), "{ids}:permits", records...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.Set(t.Context(), "{ids}:value", 1_000_000-65_536, 0).Err(); err != nil {
		t.Fatal(err)
	}
	rig.MustTry(t, l, 1, true)
	if n := rdb.ZCard(t.Context(), "{ids}:permits").Val(); n != 65_537 {
		t.Errorf("%d records", n)
	}
}

// TestWhatIsFreeIsOneRecord: AcquireUpTo is one request with one record, however many permits it
// takes.
func TestWhatIsFreeIsOneRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRecordPerRequest())
		r.SetRate(l, rratelimiter.PerMinute(4294967295))
		if got, err := l.AcquireUpTo(t.Context(), 3_000_000_000); err != nil || got != 3_000_000_000 {
			t.Error(got, err)
		}
		if got, err := l.AcquireUpTo(t.Context(), 3_000_000_000); err != nil || got != 1_294_967_295 {
			t.Error(got, err)
		}
		if members := r.Members(l); len(members) != 2 {
			t.Errorf("%d records", len(members))
		}
	})
}

// TestUpToTakesAllThatHasExpired: more records have expired than one call removes. Whichever reply
// is lost, AcquireUpTo takes all permits, once and in one record, and a Grant of TakeUpTo gives all
// of them back.
func TestUpToTakesAllThatHasExpired(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n = 5000
		for _, cut := range []int{-1, 0, 1, 2} {
			for _, wanted := range []int64{n, n + 1, n - 1} {
				r := rig.New(t, s)
				r.Wipe()
				c, tap := r.Tapped()
				l := c.RateLimiter("rl")
				r.WriteConfig(l, "rate", fmt.Sprint(n), "interval", "3000", "type", "0")
				r.WriteValue(l, "0")
				r.AddRecords(l, r.Millis(), rig.ManyMembers(n)...)
				r.Advance(3 * time.Second)
				plans := make([]rig.Plan, 4)
				if cut >= 0 {
					plans[cut].Cut = true
				}
				tap.Plan(plans...)
				want := min(n, wanted)
				g, err := l.TakeUpTo(t.Context(), wanted)
				if got := g.Permits(); got != want || err != nil {
					t.Fatalf("call %d cut: %d of %d, %v", cut, got, wanted, err)
				}
				r.SameState(
					l,
					rratelimiter.State{
						Rate:      rratelimiter.Rate{Permits: n, Interval: 3 * time.Second},
						Available: n - want,
						Used:      want, Records: 1, Oldest: r.Now(), Newest: r.Now(), Consistent: true,
					},
				)
				if back, err := g.Return(t.Context(), want); back != want || err != nil {
					t.Errorf("%d of %d came back, %v", back, want, err)
				}
				if free := r.Free(l); free != n {
					t.Errorf("%d are free after all came back", free)
				}
			}
		}
	})
}

// TestARecordPerRequestHasItsOwnIDs makes two limiters of one client write records of several
// requests alternately.
func TestARecordPerRequestHasItsOwnIDs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRecordPerRequest())
		r.SetRate(l, rratelimiter.PerMinute(1000))
		for range 5 {
			g, err := rig.OneCall(t.Context(), l, protocol.BatchAsk{Groups: rig.Groups(2, 3, 1, 2)})
			if err != nil || g.Granted(0, protocol.Group{}) != 3 || g.Granted(1, protocol.Group{}) != 2 {
				t.Fatal(g, err)
			}
		}
		r.SameState(
			l,
			rratelimiter.State{
				Rate:      rratelimiter.PerMinute(1000),
				Available: 960,
				Used:      40,
				Records:   25,
				Oldest:    r.Now(),
				Newest:    r.Now(), Consistent: true,
			},
		)
		ids := map[string]bool{}
		for _, z := range r.Members(l) {
			ids[z.Member[:len(z.Member)-4]] = true
		}
		if len(ids) != 25 {
			t.Errorf("25 records have %d ids", len(ids))
		}
	})
}

func TestRecordFormats(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		rdb, clock := server.Client(), rig.NewHandClock()
		client := rratelimiter.NewClient(rdb, rratelimiter.WithClock(clock.Now), rig.Patient)
		rig.MustSet(t, client.RateLimiter("all"), rratelimiter.PerSecond(100))
		var used int64
		for format, length := range map[rratelimiter.RecordFormat]int{
			rratelimiter.Redisson313: 8,
			rratelimiter.Redisson316: 20,
			rratelimiter.Redisson317: 13,
			rratelimiter.Redisson321: 21,
		} {
			for _, name := range []string{fmt.Sprint("only", int(format)), "all"} {
				l := client.RateLimiter(
					name, rratelimiter.WithRecordFormat(format), rratelimiter.WithRate(rratelimiter.PerSecond(100)),
				)
				rig.MustTry(t, l, 7, true)
				if name == "all" {
					used += 7
					continue
				}
				members := rdb.ZRange(t.Context(), "{"+name+"}:permits", 0, -1).Val()
				if len(members) != 1 || len(members[0]) != length {
					t.Fatalf("%v: %q", format, members)
				}
				if r, err := rratelimiter.UnpackRecord([]byte(members[0])); err != nil || r.Permits != 7 {
					t.Errorf("%v: %+v, %v", format, r, err)
				}
				if n := binary.LittleEndian.Uint32([]byte(members[0])[length-4:]); n != 7 {
					t.Errorf("%v: %d permits", format, n)
				}
				clock.Advance(500 * ms)
				rig.MustTry(t, l, 94, false)
				rig.MustTry(t, l, 93, true)
				clock.Advance(500 * ms)
				rig.MustTry(t, l, 8, false)
				rig.MustTry(t, l, 7, true)
				clock.Advance(-time.Second)
			}
		}
		all := client.RateLimiter("all")
		if s := rig.State(t, all); s.Used != used || s.Records != 4 || !s.Consistent {
			t.Errorf("all formats together: %+v", s)
		}
		clock.Advance(time.Second)
		if n, err := all.AvailablePermits(t.Context()); n != 100 || err != nil {
			t.Errorf("all formats together: %d, %v", n, err)
		}
	})
}

// With short intervals scores have fractions of a ms, but not in the oldest format.
func TestScoresOfTheOldestFormatAreWhole(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Advance(300 * time.Microsecond)
		for _, f := range rig.Formats {
			l := r.Limiter(
				fmt.Sprint("rl", int(f)), rratelimiter.WithRecordFormat(f),
				rratelimiter.WithRate(rratelimiter.Rate{Permits: 9, Interval: 100 * ms}),
			)
			r.Try(l, 1)
			r.Try(l, 2) // the first grant and the next one take different ways
			for _, m := range r.Members(l) {
				if whole := m.Score == math.Trunc(m.Score); whole != (f == rratelimiter.Redisson313) {
					t.Errorf("%v: a record at %v", f, m.Score)
				}
			}
		}
	})
}

func TestRecordPerRequest(t *testing.T) {
	for _, format := range []rratelimiter.RecordFormat{rratelimiter.Redisson313, rratelimiter.Redisson317} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			sizes := func(name string) map[uint32]int {
				found := map[uint32]int{}
				for _, member := range p.Redis.ZRange(t.Context(), "{"+name+"}:permits", 0, -1).Val() {
					r, err := rratelimiter.UnpackRecord([]byte(member))
					if err != nil {
						t.Error(err)
					}
					found[r.Permits]++
				}
				return found
			}
			for name, opts := range map[string][]rratelimiter.LimiterOption{
				"sum":  nil,
				"each": {rratelimiter.WithRecordPerRequest()},
			} {
				l := p.RateLimiter(
					name,
					append(opts, rratelimiter.WithRate(rratelimiter.PerSecond(10000)),
						rratelimiter.WithRecordFormat(format))...)
				plug := p.Wire.Hang()
				b.Try(l, 7)
				var all []*rig.Call
				for i := range 400 {
					if i%2 == 0 {
						all = append(all, b.Acquire(l, int64(1+i%3)))
					} else {
						all = append(all, b.Try(l, int64(1+i%3)))
					}
				}
				plug()
				for _, c := range all {
					b.Granted("a caller", c, 0)
				}
				found := sizes(name)
				if name == "each" && (found[7] != 1 || found[1] != 134 || found[2] != 133 || found[3] != 133) {
					t.Errorf("a record for each: %v", found)
				}
				if name == "sum" && len(found) > 5 {
					t.Errorf("a record for each call: %v", found)
				}
				if s := rig.State(t, l); s.Used != 7+134+2*133+3*133 || !s.Consistent {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}
