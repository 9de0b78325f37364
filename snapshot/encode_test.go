package snapshot_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/rratelimiter/rratelimiter/snapshot"
)

// full returns a snapshot with a value in each field.
func full() *snapshot.Snapshot {
	at := time.UnixMilli(1767225600123).UTC()
	return &snapshot.Snapshot{
		Name: "orders", Note: "Redisson 3.17.5", Server: "7.0.15", TakenAt: at, HostTime: at.Add(5 * time.Millisecond),
		OneStep: true,
		Config: &snapshot.Config{TTL: time.Hour, Fields: []snapshot.Field{
			{Name: "rate", Value: "10"}, {Name: "interval", Value: "1000"}, {Name: "type", Value: "\xff odd"}}},
		Shared: snapshot.State{
			Value: &snapshot.Value{Text: "4", TTL: 2 * time.Minute},
			Permits: &snapshot.Permits{Records: []snapshot.Record{
				{Member: []byte("\x08GoABCDEF\x04\x00\x00\x00"), Score: 1767225599723},
				{Member: []byte("\x10ABCDEFGHIJKLMNOP\x02\x00\x00\x00"), Score: 1767225600123.5},
				{Member: []byte("?"), Score: math.Inf(1)},
			}},
		},
		Clients: []snapshot.ClientState{
			{ID: "A", State: snapshot.State{Value: &snapshot.Value{}}},
			{
				ID: "B",
				State: snapshot.State{
					Permits: &snapshot.Permits{Records: []snapshot.Record{{Member: []byte{}, Score: 1}}},
				},
			},
		},
	}
}

func encoded(t testing.TB, s *snapshot.Snapshot) []byte {
	t.Helper()
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEncodedComesBack(t *testing.T) {
	for _, s := range []*snapshot.Snapshot{
		full(),
		{Shared: snapshot.State{Value: &snapshot.Value{}}},
		{Name: "x", Config: &snapshot.Config{Fields: []snapshot.Field{{}}}, TakenAt: time.UnixMilli(-1).UTC()},
	} {
		got, err := snapshot.Decode(encoded(t, s))
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%v\n%v\nnot\n%v", err, got, s)
		}
	}
}

// The files in testdata and in bug reports must stay readable, so these bytes must never change
// their meaning.
func TestSeveralSnapshotsComeBack(t *testing.T) {
	one, other := full(), full()
	other.Name, other.Clients = "other", nil
	data := append(encoded(t, one), encoded(t, other)...)
	all, err := snapshot.DecodeAll(data)
	if err != nil || !reflect.DeepEqual(all, []*snapshot.Snapshot{one, other}) {
		t.Errorf("%v, %v came back", all, err)
	}
	if all, err := snapshot.DecodeAll(nil); len(all) > 0 || err != nil {
		t.Errorf("%v, %v came back from nothing", all, err)
	}
	for _, wrong := range [][]byte{data[:len(data)-1], append(data[:len(data):len(data)], 0)} {
		if all, err := snapshot.DecodeAll(wrong); all != nil || !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("%v, %v came back", all, err)
		}
	}
	if _, err := snapshot.Decode(data); !errors.Is(err, snapshot.ErrInvalid) {
		t.Errorf("two are one: %v", err)
	}
}

func TestBytesOfVersion1(t *testing.T) {
	s := &snapshot.Snapshot{
		Name:     "n",
		TakenAt:  time.UnixMilli(1).UTC(),
		HostTime: time.UnixMilli(2).UTC(),
		OneStep:  true,
		Config:   &snapshot.Config{Fields: []snapshot.Field{{Name: "rate", Value: "1"}}},
		Shared: snapshot.State{Value: &snapshot.Value{Text: "0", TTL: 3 * time.Millisecond}, Permits: &snapshot.Permits{
			Records: []snapshot.Record{{Member: []byte{0xff}, Score: 1}}}},
	}
	want := "\x9a\xc4\x15rratelimiter snapshot\x01\xc4\x01n\xc4\x00\xc4\x00\x01\x02\xc3" +
		"\x92\x00\x92\xc4\x04rate\xc4\x011" +
		"\x91\x93\xc0\x92\x03\xc4\x010\x92\x00\x92\xc4\x01\xff\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"
	if got := string(encoded(t, s)); got != want {
		t.Errorf("\n%q\nnot\n%q", got, want)
	}
}

func TestDecodeSaysWhatIsWrong(t *testing.T) {
	data := encoded(t, full())
	change := func(offset int, to string) []byte {
		changed := bytes.Clone(data)
		copy(changed[offset:], to)
		return changed
	}
	const version = 3 + len("rratelimiter snapshot")
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "no snapshot"},
		{"text", []byte("limiter"), "no snapshot"},
		{"other msgpack", []byte{0x92, 0xa1, 'x', 0x01}, "no snapshot"},
		{"newer", change(version, "\x02"), "format version 2"},
		{"another length", change(0, "\x9b"), "11 elements, not 10"},
		{"cut", data[:len(data)-1], "the data ends within"},
		{"more", append(bytes.Clone(data), 0), "1 bytes stand behind"},
		{"4 billion elements", append(bytes.Clone(data[:version+1]), 0xdd, 0xff, 0xff, 0xff, 0xff, 0x01), "name"},
		{
			"4 billion clients", bytes.Replace(data, []byte("\x93\x93\xc0"), []byte("\xdd\xff\xff\xff\xff\x93\xc0"), 1),
			"4294967295 elements, but only",
		},
		{
			"4 GB of text", append(bytes.Clone(data[:version+1]), 0xc6, 0xff, 0xff, 0xff, 0xff, 'x'),
			"4294967295 bytes, but only 1 bytes are left",
		},
		{"deep", append(bytes.Clone(data[:version+1]), bytes.Repeat([]byte{0x91}, 1e6)...), "name"},
		{"no number", bytes.Replace(data, []byte("\xcb\x7f\xf0"), []byte("\xcb\x7f\xf8"), 1), "no number"},
		{
			"the same client twice", bytes.Replace(data, []byte("\xc4\x01B"), []byte("\xc4\x01A"), 1),
			`client "A" is there twice`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := snapshot.Decode(c.data)
			if s != nil || !errors.Is(err, snapshot.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

func TestEveryCutIsRefused(t *testing.T) {
	data := encoded(t, full())
	for n := range data {
		if s, err := snapshot.Decode(data[:n]); s != nil || !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("%d of %d bytes: %v, %v", n, len(data), s, err)
		}
	}
}

func TestImpossibleSnapshots(t *testing.T) {
	for name, change := range map[string]func(s *snapshot.Snapshot){
		"no key":      func(s *snapshot.Snapshot) { *s = snapshot.Snapshot{Name: "x"} },
		"no field":    func(s *snapshot.Snapshot) { s.Config.Fields = nil },
		"field twice": func(s *snapshot.Snapshot) { s.Config.Fields[1].Name = "rate" },
		"no record":   func(s *snapshot.Snapshot) { s.Shared.Permits.Records = nil },
		"record twice": func(s *snapshot.Snapshot) {
			s.Shared.Permits.Records[1].Member = s.Shared.Permits.Records[0].Member
		},
		"client twice":   func(s *snapshot.Snapshot) { s.Clients[1].ID = "A" },
		"no score":       func(s *snapshot.Snapshot) { s.Clients[1].Permits.Records[0].Score = math.NaN() },
		"config's life":  func(s *snapshot.Snapshot) { s.Config.TTL = -1 },
		"value's life":   func(s *snapshot.Snapshot) { s.Clients[0].Value.TTL = -1 },
		"permits's life": func(s *snapshot.Snapshot) { s.Shared.Permits.TTL = -1 },
	} {
		s := full()
		change(s)
		if _, err := s.Encode(); !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("%s: encoded with %v", name, err)
		}
		if err := s.Restore(t.Context(), nil); !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("%s: restored with %v", name, err)
		}
	}
}

func TestString(t *testing.T) {
	s := full()
	want := `limiter "orders"
  note      Redisson 3.17.5
  taken     2026-01-01T00:00:00.123Z by the server's clock (7.0.15), 2026-01-01T00:00:00.128Z by the host's; in one step
  config    rate=10 interval=1000 type="\xff odd"; lives for 1h0m0s
  value     4; lives for 2m0s
  permits   6 in 3 records; lives for ever
            1767225599723 (-0.400 s)  4 by Go  08476f41424344454604000000
            1.7672256001235e+12 (+0.001 s)  2 by others  104142434445464748494a4b4c4d4e4f5002000000
            +Inf  0 by no record  3f
client "A"
  value     ""; lives for ever
  permits   none
client "B"
  value     none
  permits   0 in 1 record; lives for ever
            1 (-1767225600.122 s)  0 by no record  
`
	if got := s.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.Shared.Permits.Records = nil
	for i := range 100 {
		s.Shared.Permits.Records = append(s.Shared.Permits.Records,
			snapshot.Record{Member: []byte{byte(i), 1, 0, 0, 0}})
	}
	s.Config, s.OneStep = nil, false
	text := s.String()
	for _, want := range []string{
		"config    none",
		"piece by piece",
		"100 in 100 records",
		"1d01000000\n            ... 40 more ...\n",
		"  4601000000",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data := encoded(f, full())
	f.Add(data)
	f.Add(encoded(f, &snapshot.Snapshot{Shared: snapshot.State{Value: &snapshot.Value{}}}))
	f.Add([]byte{})
	f.Add(data[:len(data)/2])
	any, _ := msgpack.Marshal(map[string]any{"name": []int{1, 2}})
	f.Add(any)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := snapshot.Decode(data)
		if err != nil {
			if s != nil || !errors.Is(err, snapshot.ErrInvalid) {
				t.Fatalf("%v, %v", s, err)
			}
			return
		}
		_ = s.String()
		again, err := snapshot.Decode(encoded(t, s))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%v\n%v\nnot\n%v", err, again, s)
		}
	})
}
