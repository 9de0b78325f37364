package survey

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// read.go reads one limiter, record by record.

// page is how many records are read in one step.
const page = 1000

// A Sum is some records and the permits in them.
type Sum struct {
	Records int
	Permits int64
}

func (s *Sum) add(permits int64) {
	s.Records++
	s.Permits += permits
}

// A Writer is who wrote live records, as far as these show it.
type Writer struct {
	// of a Go client, as hexadecimal digits: six, or two (then it is only likely); "" for Java or
	// unknown
	Tag string
	Sum
}

// Text names a writer for people.
func (w Writer) Text() string {
	switch len(w.Tag) {
	case 0:
		return "Java or unknown"
	case 2: // one byte in the oldest format tells so, and one in 256 of Redisson's has it, too
		return "Go " + w.Tag + ", or Java"
	}
	return "Go client " + w.Tag
}

// A Form is a way of writing records, and how many are written so by others than Go clients.
type Form struct {
	Format rratelimiter.RecordFormat
	Odd    string // what is odd, where it is no Redisson's: Format then says nothing
	Go     Sum
	Others Sum
}

// A Survey is what is stored of a limiter: its configuration, and the state that all clients share
// or one client has.
type Survey struct {
	Name, Client string // Client "": the state is shared
	At           time.Time
	Fields       map[string]string // of the configuration, as they are stored
	Rate         rratelimiter.Rate
	Fault        error // why the rate can't be used: then nothing is known to be available
	Keys         [3]protocol.StoredKey
	Value        string // the free permits as they are stored
	Free         int64  // the same as a number, 0 where it is none
	Readable     bool   // it is a number
	OneStep      bool   // all was read at one instant
	Live         Sum
	Expired      Sum
	// live records of Go clients in buckets that are not over yet, as WithLease and WithGranularity
	// date them
	Open      Sum
	OpenUntil time.Time
	// live records that are dated after now, by more than WithGranularity, clocks and a debt
	// explain
	Future     Sum
	Farthest   time.Time
	Oldest     time.Time // of live records
	Newest     time.Time
	Writers    []Writer       // of live records, most permits first
	Forms      []Form         // of all records
	Available  int64          // permits free now
	RetryAfter *time.Duration // until a permit is free; nil: not asked for, or never
	Drift      int64          // free permits and all records, less the rate: 0 where all is right
	Debt       int64          // permits in live records above the rate, where all is right
	// live permits, by the time of their grant: an interval from the oldest to now
	Bins []int64
	// live records with too many permits for a grant, such as that of a negative request of
	// Redisson
	Doubtful Sum
}

// Readers returns the groups of Redisson releases whose records these are: releases of one group
// read each other's records.
func (s *Survey) Readers() (groups []string) {
	for _, f := range s.Forms {
		group := f.Format.String()
		if f.Format == rratelimiter.Redisson317 || f.Format == rratelimiter.Redisson321 {
			group = "Redisson 3.17.0 and later"
		}
		if f.Odd == "" && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	return groups
}

// Reason says why a limiter can't be used, where its name has been said.
func Reason(err error) string {
	text := err.Error()
	if _, rest, found := strings.Cut(text, rratelimiter.ErrNotInitialized.Error()+": "); found {
		return rest
	}
	return strings.TrimPrefix(text, "rratelimiter: ")
}

// Consistent tells whether what is stored adds up to the rate. Of a limiter that nobody has used
// yet nothing is stored.
func (s *Survey) Consistent() bool {
	if s.Keys[1].Type == "none" && s.Live.Records+s.Expired.Records == 0 {
		return true
	}
	return s.Readable && s.Drift == 0
}

// Empty reports whether Redis has no key of the limiter, not even one of another type.
func (s *Survey) Empty() bool {
	return !slices.ContainsFunc(s.Keys[:], func(key protocol.StoredKey) bool { return key.Type != "none" })
}

// A Foreign is a key that another program uses, under a name that is one of a limiter's: it has
// another Redis type.
type Foreign struct{ Key, Type, Want string }

func (f Foreign) String() string { return fmt.Sprintf("%q is a %s, not a %s", f.Key, f.Type, f.Want) }

// Foreign lists the keys that another program uses.
func (s *Survey) Foreign() (keys []Foreign) {
	for i, want := range []string{"hash", "string", "zset"} {
		if kind := s.Keys[i].Type; kind != want && kind != "none" {
			keys = append(keys, Foreign{s.Keys[i].Name, kind, want})
		}
	}
	return keys
}

// Shortened describes the times of the configuration that are too long for a time.Duration, so that
// Rate has a shorter one.
func (s *Survey) Shortened() (texts []string) {
	for name, shown := range map[string]time.Duration{"interval": s.Rate.Interval, "keep-alive": s.Rate.KeepAlive} {
		stored := s.Fields[map[string]string{"interval": "interval", "keep-alive": "keepAliveTime"}[name]]
		if shown > 0 && len(stored) > len(strconv.FormatInt(shown.Milliseconds(), 10)) &&
			strings.Trim(stored, "0123456789") == "" {
			texts = append(texts, fmt.Sprintf("the %s is longer than that: %s ms", name, stored))
		}
	}
	slices.Sort(texts)
	return texts
}

// WrongType says what is wrong with the first key that another program uses; "" mostly.
func (s *Survey) WrongType() string {
	if keys := s.Foreign(); len(keys) > 0 {
		return keys[0].String()
	}
	return ""
}

// Slack is how far in the future a record of a limiter may be dated with nothing being wrong:
// clocks differ a little, and WithGranularity dates records at the end of up to a tenth of the
// interval, WithLease up to a quarter of that later.
func Slack(r rratelimiter.Rate) time.Duration { return r.Interval/8 + time.Second }

// Read reads a limiter. own says that its client's own state is meant, whatever the type of the
// limiter. Bins of a survey are as many as are asked for. A limiter that is not there is no error:
// see Survey.Keys.
func Read(ctx context.Context, l *connect.Limiter, own bool, bins int) (*Survey, error) {
	stored, err := l.Survey(ctx, 0, page, own)
	if err != nil {
		return nil, err
	}
	s := &Survey{
		Name: l.Name(), At: stored.At, Fields: stored.Fields, Keys: stored.Keys, Value: stored.Value,
		OneStep: stored.Records <= page, Bins: make([]int64, bins),
	}
	if stored.Own {
		s.Client = l.Client().ID()
	}
	if s.Keys[0].Type == "hash" {
		s.Rate, s.Fault = l.Config(ctx)
	} else {
		s.Fault = rratelimiter.ErrNotInitialized
	}
	s.Free, err = strconv.ParseInt(s.Value, 10, 64)
	s.Readable = err == nil && strconv.FormatInt(s.Free, 10) == s.Value
	if !s.Readable {
		s.Free = 0
	}
	tally := newTally(s)
	for {
		for _, r := range stored.Page {
			tally.add(r)
		}
		if len(stored.Page) < page {
			break
		}
		// Records that came since have moved those that follow further away: tally knows which it
		// has seen.
		first := tally.seen
		if stored, err = l.Survey(ctx, first, page, own); err != nil {
			return nil, err
		}
	}
	tally.finish()
	return s, nil
}

// A tally adds up records, the newest first.
type tally struct {
	*Survey
	edge, now float64
	seen      int
	last      protocol.StoredRecord
	writers   map[string]*Writer
	forms     map[string]*Form
	doubtful  []doubt
	later     Sum // live records of Go clients that are dated after now: of a debt, or else Future
}

// A doubt is a live record with doubtful permits. lua/shared/record.lua says how many of them
// count.
type doubt struct {
	writer  *Writer
	bin     int
	permits int64
}

func newTally(s *Survey) *tally {
	// with no interval that can be read, no record is known to have expired
	now, edge := float64(s.At.UnixMicro())/1000, math.Inf(-1)
	if s.Fault == nil {
		edge = now - float64(s.Rate.Interval.Milliseconds())
	} else if interval, err := strconv.ParseUint(s.Fields["interval"], 10, 64); err == nil && interval > 0 {
		edge = now - float64(interval)
	}
	return &tally{
		Survey: s, now: now, edge: edge,
		writers: map[string]*Writer{}, forms: map[string]*Form{},
	}
}

// add counts a record, but not twice.
func (t *tally) add(r protocol.StoredRecord) {
	t.seen++
	if t.seen > 1 && (r.Score > t.last.Score || r.Score == t.last.Score && r.Member >= t.last.Member) {
		return
	}
	t.last = r
	form, tag, permits := read(r.Member)
	key := form.Odd + form.Format.String()
	if t.forms[key] == nil {
		t.forms[key] = &form
	}
	if tag != "" {
		t.forms[key].Go.add(permits)
	} else {
		t.forms[key].Others.add(permits)
	}
	if r.Score <= t.edge {
		t.Expired.add(permits)
		return
	}
	if t.writers[tag] == nil {
		t.writers[tag] = &Writer{Tag: tag}
	}
	bin := -1
	if n := len(t.Bins); n > 0 && !math.IsInf(t.edge, -1) {
		bin = int(math.Floor((r.Score - t.edge) / (t.now - t.edge) * float64(n)))
		bin = min(max(bin, 0), n-1)
	}
	if permits >= 1<<31 && t.Fault == nil && permits > t.Rate.Permits {
		t.Doubtful.add(permits)
		t.doubtful = append(t.doubtful, doubt{t.writers[tag], bin, permits})
		permits = 0
	}
	t.count(t.writers[tag], bin, permits, 1)
	at := protocol.Instant(1000 * int64(min(max(r.Score, -1e15), 1e15)))
	t.Oldest = at
	if t.Live.Records == 1 {
		t.Newest = at
	}
	if ahead := r.Score - t.now; ahead > float64(Slack(t.Rate).Milliseconds()) {
		later := &t.Future
		if tag != "" {
			later = &t.later
		}
		if later.add(permits); t.Farthest.IsZero() {
			t.Farthest = at
		}
	} else if ahead > 0 && tag != "" && inBucket(r.Member) {
		if t.Open.add(permits); t.Open.Records == 1 {
			t.OpenUntil = at
		}
	}
}

// count counts the permits of live records.
func (t *tally) count(w *Writer, bin int, permits int64, records int) {
	for _, sum := range []*Sum{&t.Live, &w.Sum} {
		sum.Records += records
		sum.Permits += permits
	}
	if bin >= 0 {
		t.Bins[bin] += permits
	}
}

// believe counts as many permits of doubtful records as lua/shared/record.lua.
func (t *tally) believe() {
	most := t.Rate.Permits - t.Live.Permits
	if t.Readable {
		most -= t.Free + t.Expired.Permits
	}
	for _, d := range t.doubtful { // the newest first
		part := min(max(most, 0), d.permits)
		most -= part
		t.count(d.writer, d.bin, part, 0)
	}
}

func (t *tally) finish() {
	t.believe()
	for _, w := range t.writers {
		t.Writers = append(t.Writers, *w)
	}
	slices.SortFunc(t.Writers, func(a, b Writer) int {
		return cmp.Or(cmp.Compare(b.Permits, a.Permits), strings.Compare(a.Tag, b.Tag))
	})
	for _, f := range t.forms {
		t.Forms = append(t.Forms, *f)
	}
	slices.SortFunc(t.Forms, func(a, b Form) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), strings.Compare(a.Odd, b.Odd))
	})
	if t.Fault != nil {
		return
	}
	all := t.Live.Permits + t.Expired.Permits
	t.Drift = t.Free + all - t.Rate.Permits
	if t.Drift == 0 && t.Live.Permits >= t.Rate.Permits {
		t.Debt = t.Live.Permits - t.Rate.Permits // so what Go dated ahead was charged
	} else {
		t.Future.Records += t.later.Records
		t.Future.Permits += t.later.Permits
	}
	switch {
	case t.Live.Records == 0:
		t.Available = t.Rate.Permits
	case !t.Readable || t.Free+t.Expired.Permits > t.Rate.Permits:
		t.Available = max(0, t.Rate.Permits-t.Live.Permits)
	default:
		t.Available = max(0, t.Free+t.Expired.Permits)
	}
}

// order sorts forms from the oldest release to the newest, odd ones last.
func order(f Form) int {
	if f.Odd != "" {
		return 100
	}
	return slices.Index([]rratelimiter.RecordFormat{
		rratelimiter.Redisson313, rratelimiter.Redisson316, rratelimiter.Redisson317, rratelimiter.Redisson321,
	}, f.Format)
}

// read reads a member: how it is written, the tag of the Go client that wrote it, "" if none did,
// and its permits.
func read(member string) (form Form, tag string, permits int64) {
	r, err := rratelimiter.UnpackRecord([]byte(member))
	if err != nil {
		form.Odd = fmt.Sprintf("%d bytes, no record", len(member))
		return form, "", 0
	}
	format, _, known := record.FormatOf([]byte(member))
	if !known {
		form.Odd = fmt.Sprintf("%d bytes, of no known form", len(member))
		return form, "", int64(r.Permits)
	}
	tag = goTag(r.ID)
	_, length, _ := format.Layout()
	if len(r.ID) != length && (tag == "" || len(r.ID) != length+record.ShareLength) {
		form.Odd = fmt.Sprintf("an id of %d bytes", len(r.ID))
	} else {
		form.Format = rratelimiter.RecordFormat(format)
	}
	return form, tag, int64(r.Permits)
}

// inBucket tells whether a Go client's record holds all that it was granted within a bucket of
// time: its id is longer.
func inBucket(member string) bool {
	r, err := rratelimiter.UnpackRecord([]byte(member))
	format, _, known := record.FormatOf([]byte(member))
	_, length, _ := format.Layout()
	return err == nil && known && len(r.ID) == length+record.ShareLength
}

// goTag is what tells the Go client of an id, as hexadecimal digits: six, or two where the id is
// short.
func goTag(id []byte) string {
	switch {
	case len(id) >= 5 && string(id[:2]) == "Go":
		return fmt.Sprintf("%x", id[2:5])
	case len(id) == 4 && id[0] == 'G':
		return fmt.Sprintf("%x", id[1:2])
	}
	return ""
}

// Guess tells which releases of Redisson use the limiter, by what they write; "" where nothing
// shows it.
func (s *Survey) Guess() string {
	var parts []string
	for _, f := range s.Forms {
		if f.Odd == "" && f.Others.Records > 0 {
			parts = append(parts, "records of "+f.Format.String())
		}
	}
	if kept, found := s.Fields["keepAliveTime"]; found && kept == "0" {
		parts = append(parts, "Redisson 3.38.0 or later has called trySetRate or setRate")
	}
	return strings.Join(parts, "; ")
}
