package snapshot

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// encode.go encodes and decodes the bytes of a snapshot. They are one msgpack array:
//
//	"rratelimiter snapshot", 1 (the version of the format), name, note, server version,
//	server time in ms, host time in ms, one step (bool),
//	configuration: nil, or [TTL, [name, value, name, value, ...]]
//	[[nil, state] for the shared state, then [id, state] for each client]
//
// where a state is two elements: value, nil or [TTL, text], and permits, nil or [TTL, [member,
// score, ...]]. TTLs are in ms, 0 for none. Texts, members too, are msgpack binaries, since Redis
// texts need not be UTF-8; scores are float64. It is written and read by hand: the library's own
// decoding of a slice allocates as many elements as the bytes claim to hold.

const (
	magic         = "rratelimiter snapshot"
	formatVersion = 1
)

// Encode returns the snapshot as bytes (msgpack), which Decode reads. Equal snapshots give equal
// bytes.
func (s *Snapshot) Encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("encode a snapshot: %w", err)
	}
	var buf bytes.Buffer
	w := writer{msgpack.NewEncoder(&buf)}
	w.UseCompactInts(true)
	w.array(10)
	w.text(magic)
	w.EncodeInt(formatVersion)
	w.text(s.Name)
	w.text(s.Note)
	w.text(s.Server)
	w.EncodeInt(s.TakenAt.UnixMilli())
	w.EncodeInt(s.HostTime.UnixMilli())
	w.EncodeBool(s.OneStep)
	if s.Config == nil {
		w.EncodeNil()
	} else {
		w.key(s.Config.TTL)
		w.array(2 * len(s.Config.Fields))
		for _, f := range s.Config.Fields {
			w.text(f.Name)
			w.text(f.Value)
		}
	}
	w.array(1 + len(s.Clients))
	w.array(3)
	w.EncodeNil()
	w.state(s.Shared)
	for _, c := range s.Clients {
		w.array(3)
		w.text(c.ID)
		w.state(c.State)
	}
	return buf.Bytes(), nil
}

// A writer writes to memory, which never fails.
type writer struct{ *msgpack.Encoder }

func (w writer) array(n int)           { w.EncodeArrayLen(n) }
func (w writer) text(text string)      { w.EncodeBytes([]byte(text)) }
func (w writer) key(ttl time.Duration) { w.array(2); w.EncodeInt(ttl.Milliseconds()) }

func (w writer) state(s State) {
	if s.Value == nil {
		w.EncodeNil()
	} else {
		w.key(s.Value.TTL)
		w.text(s.Value.Text)
	}
	if s.Permits == nil {
		w.EncodeNil()
		return
	}
	w.key(s.Permits.TTL)
	w.array(2 * len(s.Permits.Records))
	for _, r := range s.Permits.Records {
		w.text(string(r.Member))
		w.EncodeFloat64(r.Score)
	}
}

// Decode reads the bytes of Encode. For any other bytes, the error is ErrInvalid and says what is
// wrong.
func Decode(data []byte) (*Snapshot, error) {
	rest := bytes.NewReader(data)
	r := &reader{rest: rest, from: msgpack.NewDecoder(rest)}
	s := r.snapshot()
	if r.err == nil && rest.Len() > 0 {
		r.fail("%d bytes stand behind its end", rest.Len())
	}
	if r.err == nil {
		r.err = s.check()
	}
	if r.err != nil {
		return nil, fmt.Errorf("decode a snapshot: %w", r.err)
	}
	return s, nil
}

// DecodeAll reads the bytes of several calls of Encode, one after the other, as in a file that
// holds several limiters. For empty data the result is empty. If the data is not a sequence of
// encoded snapshots, the error is ErrInvalid and says what is wrong, and where.
func DecodeAll(data []byte) ([]*Snapshot, error) {
	rest := bytes.NewReader(data)
	var all []*Snapshot
	for rest.Len() > 0 {
		r := &reader{rest: rest, from: msgpack.NewDecoder(rest)}
		s := r.snapshot()
		if r.err == nil {
			r.err = s.check()
		}
		if r.err != nil {
			return nil, fmt.Errorf("decode snapshot %d: %w", len(all)+1, r.err)
		}
		all = append(all, s)
	}
	return all, nil
}

// A reader reads until the first error, then nothing more.
type reader struct {
	rest *bytes.Reader
	from *msgpack.Decoder
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = invalid(format, args...)
	}
}

// read reads one element.
func read[T any](r *reader, what string, decode func() (T, error)) (value T) {
	if r.err != nil {
		return value
	}
	got, err := decode()
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		r.fail("the data ends within this element: %s", what)
	case err != nil:
		r.fail("%s: %v", what, err)
	default:
		return got
	}
	return value
}

// array reads the number of elements that follow. Each takes a byte at least. -1 is nil, which an
// optional array may be.
func (r *reader) array(what string, optional bool) int {
	n := read(r, what, r.from.DecodeArrayLen)
	switch {
	case n < 0 && !optional:
		r.fail("%s: nil", what)
	case n > r.rest.Len():
		r.fail("%s: %d elements, but only %d bytes are left", what, n, r.rest.Len())
	}
	if r.err != nil {
		return -1
	}
	return n
}

// tuple reads an array that must have that many elements, and reports whether it is present.
func (r *reader) tuple(what string, length int, optional bool) bool {
	n := r.array(what, optional)
	if n >= 0 && n != length {
		r.fail("%s: %d elements, not %d", what, n, length)
	}
	return r.err == nil && n == length
}

// pairs reads the number of pairs that follow.
func (r *reader) pairs(what string) int {
	n := r.array(what, false)
	if n < 0 || n%2 != 0 {
		r.fail("%s: %d elements, not an even number of them", what, n)
		return 0
	}
	return n / 2
}

func (r *reader) bytes(what string) []byte {
	n := read(r, what, r.from.DecodeBytesLen)
	switch {
	case n < 0:
		r.fail("%s: nil", what)
	case n > r.rest.Len():
		r.fail("%s: a text of %d bytes, but only %d bytes are left", what, n, r.rest.Len())
	}
	if r.err != nil {
		return nil
	}
	text := make([]byte, n)
	r.from.ReadFull(text) // as many are there
	return text
}

func (r *reader) text(what string) string { return string(r.bytes(what)) }

func (r *reader) time(what string) time.Time {
	return time.UnixMilli(read(r, what, r.from.DecodeInt64)).UTC()
}

func (r *reader) ttl(what string) time.Duration {
	ms := read(r, what, r.from.DecodeInt64)
	if ms < 0 || life(ms).Milliseconds() != max(ms, 1) {
		r.fail("%s: %d ms", what, ms)
	}
	return time.Duration(ms) * time.Millisecond
}

func (r *reader) snapshot() *Snapshot {
	s := &Snapshot{}
	n := r.array("beginning", false)
	if n < 2 || r.text("beginning") != magic {
		r.err = invalid("these bytes are no snapshot of a limiter")
		return nil
	}
	if version := read(r, "version", r.from.DecodeInt); r.err == nil && version != formatVersion {
		r.fail("format version %d, only %d is known", version, formatVersion)
	}
	if n != 10 {
		r.fail("%d elements, not 10", n)
	}
	s.Name, s.Note, s.Server = r.text("name"), r.text("note"), r.text("server version")
	s.TakenAt, s.HostTime = r.time("server time"), r.time("host time")
	s.OneStep = read(r, "one step", r.from.DecodeBool)
	if r.tuple("configuration", 2, true) {
		s.Config = &Config{TTL: r.ttl("TTL of the configuration")}
		for range r.pairs("fields") {
			s.Config.Fields = append(s.Config.Fields, Field{r.text("field"), r.text("field")})
			if r.err != nil {
				break
			}
		}
	}
	states := r.array("states", false)
	if states < 1 {
		r.fail("no shared state")
	}
	for i := 0; i < states && r.tuple("state", 3, false); i++ {
		if i == 0 {
			if read(r, "shared state", r.from.DecodeBytesLen) != -1 {
				r.fail("the first state is not the shared one")
			}
			s.Shared = r.state()
		} else {
			s.Clients = append(s.Clients, ClientState{ID: r.text("client id"), State: r.state()})
		}
	}
	return s
}

func (r *reader) state() (s State) {
	if r.tuple("value", 2, true) {
		s.Value = &Value{TTL: r.ttl("TTL of a value")}
		s.Value.Text = r.text("value")
	}
	if r.tuple("permits", 2, true) {
		s.Permits = &Permits{TTL: r.ttl("TTL of permits")}
		for range r.pairs("records") {
			record := Record{Member: r.bytes("record"), Score: read(r, "score", r.from.DecodeFloat64)}
			if r.err != nil {
				break
			}
			s.Permits.Records = append(s.Permits.Records, record)
		}
	}
	return s
}
