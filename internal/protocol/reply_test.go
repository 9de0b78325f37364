package protocol

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// sent returns a request that was sent at a time (µs), and its encoder.
func sent(o Options, now int64, groups ...Group) (*AcquireRequest, *Encoder) {
	var e Encoder
	e.Init(o, record.NewIdentity("client"), func() time.Time { return time.UnixMicro(now) })
	r := &AcquireRequest{}
	r.Args(nil, &e, BatchAsk{Groups: groups}, false)
	return r, &e
}

func TestAcquireReplies(t *testing.T) {
	const now, later = 1_700_000_000_000_300, 1_700_000_000_002_300
	const ms = time.Millisecond
	one := Group{Permits: Permits{First: 2}, Count: 3}
	for name, of := range map[string]struct {
		options Options
		reply   []int64
		want    Reply // without ID
		granted []int64
		served  int64
	}{
		"all granted": {
			reply: []int64{0, 10, 1000, 4, 0, 0},
			want: Reply{Members: Members{First: Member{
				Now: now, At: now + 700, Rate: 10, Interval: time.Second, Free: 4, Origin: record.NoOrigin,
				NextAfter: time.Second + 700*time.Microsecond, ResetAfter: time.Second + 700*time.Microsecond,
			}}},
			granted: []int64{3, 7},
		},
		"all granted, with the next permit": {
			reply: []int64{0, 10, 1000, 4, 2500, 0},
			want: Reply{Members: Members{First: Member{
				Now: now, At: now + 700, Rate: 10, Interval: time.Second, Free: 4, Origin: record.NoOrigin,
				NextAfter: 2500 * time.Microsecond, ResetAfter: time.Second + 700*time.Microsecond,
			}}},
			granted: []int64{3, 7},
		},
		"all granted, with fractions": {
			reply: []int64{0, 10, 100, 4, 100_001, 0}, // not after the permits granted now
			want: Reply{Members: Members{First: Member{
				Now: now, At: now, Rate: 10, Interval: 100 * ms, Free: 4, Origin: record.NoOrigin, NextAfter: 100 * ms,
				ResetAfter: 100 * ms,
			}}},
			granted: []int64{3, 7},
		},
		"all granted, by the server's clock": {
			options: Options{ServerTime: true},
			reply:   []int64{0, 10, 1000, 4, 0, 6, 0, later, 1_000_700, -2, 0, 0},
			want: Reply{Members: Members{First: Member{
				Now: later, At: later + 700, Rate: 10, Interval: time.Second, Free: 4, Origin: record.NoOrigin,
				NextAfter: time.Second + 700*time.Microsecond, ResetAfter: time.Second + 700*time.Microsecond,
			}}},
			granted: []int64{3, 7},
			served:  later - 1e6,
		},
		"all granted, with notes": {
			reply: []int64{0, 10, 1000, 0, 1, 6, int64(More | 1), now, 5000, 77, 0, 0},
			want: Reply{Members: Members{First: Member{
				Now:        now,
				At:         now + 700,
				Rate:       10,
				Interval:   time.Second,
				Notes:      More | 1,
				Origin:     77,
				NextAfter:  time.Microsecond,
				ResetAfter: 5 * ms,
			}}},
		},
		"a lease": {
			options: Options{Lease: 40 * ms},
			reply:   []int64{0, 10, 1000, 1, 0, 6, 0, now, 1_009_700, -2, 3, 0},
			want: Reply{Members: Members{First: Member{
				Now: now, At: now + 39_700, Rate: 10, Interval: time.Second, Free: 1, Origin: record.NoOrigin,
				NextAfter: 1_009_700 * time.Microsecond, ResetAfter: 1_009_700 * time.Microsecond,
			}}, Ahead: 3},
			granted: []int64{3, 7},
		},
		"refused": {
			options: Options{Granularity: 50 * ms},
			reply: []int64{
				0,
				10,
				1000,
				1,
				2500,
				10,
				int64(RateMismatch | ForeignWriter),
				now,
				9000,
				5,
				0,
				0,
				1,
				2500,
				-1,
				0,
			},
			want: Reply{Members: Members{First: Member{
				Now:       now,
				At:        now + 49_700,
				Rate:      10,
				Interval:  time.Second,
				Free:      1,
				Notes:     RateMismatch | ForeignWriter,
				Origin:    5,
				NextAfter: 2500 * time.Microsecond, ResetAfter: 9 * ms,
			}}, outcomes: []int64{1, 2500, -1, 0}},
			granted: []int64{1, -1},
		},
		"refused, with waiting callers": {
			reply: []int64{0, 10, 1000, 1, 2000, 10, 0, now, 9000, 5, 0, 4500, 1, 2500, 0, 0},
			want: Reply{Members: Members{First: Member{
				Now:        now,
				At:         now + 700,
				Rate:       10,
				Interval:   time.Second,
				Free:       1,
				Origin:     5,
				NextAfter:  2 * ms,
				ResetAfter: 9 * ms,
				Together:   4500 * time.Microsecond,
			}}, outcomes: []int64{1, 2500, 0, 0}},
			granted: []int64{1, 0},
		},
		"longest interval": {
			reply: []int64{0, 10, 1e15 - 1, 4, 0, 6, 0, now, math.MaxInt64, -2, 0, 0},
			want: Reply{Members: Members{First: Member{
				Now: now, At: now + 700, Rate: 10, Interval: Millis(math.MaxInt64), Free: 4, Origin: record.NoOrigin,
				NextAfter:  time.Duration(math.MaxInt64 / 1000 * 1000),
				ResetAfter: time.Duration(math.MaxInt64 / 1000 * 1000),
			}}},
		},
	} {
		r, e := sent(of.options, now, one)
		got, err := r.Reply(e, &script.Attempts{}, of.reply)
		of.want.ID = r.ID()
		if of.want.Ahead > 0 {
			of.want.Began = r.began
		}
		if err != nil || !reflect.DeepEqual(got, of.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, of.want)
		}
		for i, want := range of.granted {
			if n := got.Granted(i, Group{Permits: Permits{First: 1}, Count: []int64{3, 7}[i]}); n != want {
				t.Errorf("%s: %d of group %d granted, want %d", name, n, i, want)
			}
		}
		if got.outcomes != nil && len(of.granted) > 0 && (got.Wait(0) != 2500*time.Microsecond || got.Wait(1) != 0) {
			t.Errorf("%s: waits %v and %v", name, got.Wait(0), got.Wait(1))
		}
		if e.served.Load() != of.served {
			t.Errorf("%s: a new call is not before %d, want %d", name, e.served.Load(), of.served)
		}
		shared := got.First.Shared()
		if shared.Now != got.First.Now || shared.Rate != got.First.Rate || shared.Free != got.First.Free ||
			shared.Interval != got.First.Interval ||
			shared.Origin != got.First.Origin || shared.Foreign != (of.want.First.Notes&ForeignWriter != 0) {
			t.Errorf("%s: the fair share has %+v", name, shared)
		}
	}
}

// A status other than 0 is the same error in the reply of every script that has one.
func TestStatuses(t *testing.T) {
	r, e := sent(Options{}, 1)
	all := AllowAll{Parts: []Part{{Encoder: e}, {Encoder: e}}}
	texts := map[string]bool{}
	for status := int64(-1); status <= 12; status++ {
		want := statusError(status)
		var class error
		switch {
		case status == 0:
		case status >= 1 && status <= 7:
			class = script.ErrNotInitialized
		case status == 8:
			class = ErrOtherRate
		case status == 9:
			class = script.ErrUntold
		case status == 10:
			class = ErrNotPlain
		case status == 11:
			class = ErrNotNow
		default:
			if want == nil || !script.IsAnswer(want) || !strings.HasPrefix(want.Error(), "ERR unknown status ") {
				t.Errorf("status %d is %v", status, want)
			}
			class = want
		}
		if class == nil != (want == nil) || !errors.Is(want, class) {
			t.Errorf("status %d is %v, want %v", status, want, class)
		}
		if want == nil {
			continue
		}
		texts[want.Error()] = true
		reply := make([]int64, 13)
		reply[0], reply[1] = status, 1
		_, ofAcquire := r.Reply(e, &script.Attempts{}, []int64{status})
		_, failed, ofAll := all.Reply(&script.Attempts{}, []int64{status, 1})
		_, _, ofRelease := Release{}.Reply([]int64{status})
		_, ofRepair := Repair{}.Reply([]int64{status})
		_, ofRead := Read{}.Reply([]int64{status})
		_, _, ofRecount := Recount{}.Reply([]any{status})
		for i, err := range []error{ofAcquire, ofAll, ofRelease, ofRepair, ofRead, ofRecount} {
			if err == nil || err.Error() != want.Error() {
				t.Errorf("status %d: reply %d has the error %v, want %v", status, i, err, want)
			}
		}
		if failed != 1 {
			t.Errorf("status %d: limiter %d failed, want 1", status, failed)
		}
	}
	if len(texts) != 13 {
		t.Errorf("%d texts for 13 statuses: %q", len(texts), slices.Collect(maps.Keys(texts)))
	}
}

// Only an attempt that is refused because of another rate had no effect for sure.
func TestOtherRateHadNoEffect(t *testing.T) {
	for status, executed := range map[int64]bool{0: true, 1: true, 8: false, 9: true} {
		r, e := sent(Options{}, 1)
		var a script.Attempts
		a.Begin(5)
		if _, err := a.MarshalBinary(); err != nil {
			t.Fatal(err)
		}
		r.Reply(e, &a, []int64{status, 1, 1, 1, 0, 0})
		if a.End(errors.New("lost")); a.MaybeExecuted() != executed {
			t.Errorf("status %d: the attempt may have been executed: %v, want %v", status, !executed, executed)
		}
	}
}

func TestAllowAllReplies(t *testing.T) {
	_, e := sent(Options{}, 1)
	r := AllowAll{Parts: []Part{{Encoder: e}, {Encoder: e}}}
	groups := []Group{
		{Permits: Permits{First: 1, Rest: []int64{2}}, Count: 5},
		{Permits: Permits{First: 3, Rest: []int64{4}}, Count: 6},
		{Permits: Permits{First: 5, Rest: []int64{6}}, Count: 7},
	}
	figures := []int64{11, 12, 13, 14, 15, 0, 16, 17, 18, 21, 22, 23, 24, 0, int64(Many), 26, -2, 0}
	const us = time.Microsecond
	members := []Member{
		{
			Now:        11,
			Rate:       12,
			Interval:   13 * time.Millisecond,
			Free:       14,
			NextAfter:  15 * us,
			ResetAfter: 16 * us,
			At:         11,
			Origin:     17, Together: 18 * us,
		},
		{
			Now:        21,
			Rate:       22,
			Interval:   23 * time.Millisecond,
			Free:       24,
			Notes:      Many,
			NextAfter:  26 * us,
			ResetAfter: 26 * us,
			At:         21, Origin: record.NoOrigin,
		},
	}
	type outcome struct {
		granted   int64
		waits     [2]time.Duration
		longest   time.Duration
		undecided bool
	}
	for _, test := range []struct {
		rest []int64
		want []outcome
	}{
		{nil, []outcome{{granted: 5}, {granted: 6}, {granted: 7}}},
		{[]int64{4, 0, 31, -2, -1, -1, 0, -1, 32}, []outcome{
			{granted: 4, waits: [2]time.Duration{0, 31 * us}, longest: 31 * us},
			{granted: -2, undecided: true},
			{granted: 0, waits: [2]time.Duration{0, 32 * us}, longest: 32 * us, undecided: true},
		}},
	} {
		listed := int64(len(test.rest) / 3)
		got, failed, err := r.Reply(&script.Attempts{}, slices.Concat([]int64{0, listed}, figures, test.rest))
		if err != nil || failed >= 0 || got.Len() != 2 || *got.Of(0) != members[0] || *got.Of(1) != members[1] ||
			got.Local() {
			t.Errorf("%+v, %d, %v\nwant %+v", got, failed, err, members)
		}
		for i, want := range test.want {
			o := outcome{granted: got.Granted(i, groups[i])}
			if test.rest != nil {
				o.waits = [2]time.Duration{got.WaitFor(i, 0), got.WaitFor(i, 1)}
				o.longest, o.undecided = got.Wait(i), got.Undecided(i)
			}
			if o != want {
				t.Errorf("group %d: %+v, want %+v", i, o, want)
			}
		}
	}
}

func TestRepliesOfChanges(t *testing.T) {
	if !(TrySetRate{}.Reply([]int64{1})) || (TrySetRate{}.Reply([]int64{0})) {
		t.Error("TrySetRate")
	}
	if set, notes := (SetRate{}).Reply([]int64{1, 512}); !set || notes != RebuildPending {
		t.Errorf("SetRate: %v, %v", set, notes)
	}
	if set, notes := (SetRate{}).Reply([]int64{0, 0}); set || notes != 0 {
		t.Errorf("SetRate without a rate: %v, %v", set, notes)
	}
	if !(Expire{}.Reply([]int64{1})) || (Expire{}.Reply([]int64{0})) {
		t.Error("Expire")
	}
	if n, notes, err := (Release{}).Reply([]int64{0, 256, 7}); n != 7 || notes != More || err != nil {
		t.Errorf("Release: %v, %v, %v", n, notes, err)
	}
	for n, want := range []Collected{InUse, Removed, Temporary, Gone, Foreign} {
		if got := (Collect{}).Reply([]int64{int64(n)}); got != want {
			t.Errorf("Collect %d is %v, want %v", n, got, want)
		}
	}
	for _, of := range []struct {
		reply   []int64
		removed bool
		foreign int
	}{
		{[]int64{0}, false, -1}, {[]int64{5}, true, -1}, {[]int64{4, 1}, true, 0}, {[]int64{0, 3, 5}, false, 2},
		{[]int64{1, 5}, true, 4},
	} {
		if removed, foreign := (Delete{}).Reply(of.reply); removed != of.removed || foreign != of.foreign {
			t.Errorf("Delete %v: %v, %v", of.reply, removed, foreign)
		}
	}
	for _, of := range []struct {
		reply   int64
		renamed bool
		foreign int
		err     error
	}{
		{1, true, -1, nil},
		{0, false, -1, nil},
		{-1, false, -1, script.ErrNotInitialized},
		{-2, false, 0, nil},
		{-11, false, 9, nil},
	} {
		renamed, foreign, err := Rename{}.Reply([]int64{of.reply})
		if renamed != of.renamed || foreign != of.foreign || !errors.Is(err, of.err) {
			t.Errorf("Rename %d: %v, %v, %v", of.reply, renamed, foreign, err)
		}
	}
}

func TestRepairReplies(t *testing.T) {
	const blocked = 1500
	for _, of := range []struct {
		reset                               bool
		stored, was, free, records, permits int64
		fault                               string
	}{
		{false, 0, 7, 7, 1, 3, ""},
		{false, 1, 0, 10, 0, 0, ""}, // an unused limiter
		{false, 1, 0, 7, 1, 3, "free permits were missing"},
		{false, 2, 0, 7, 1, 3, "free permits were no whole number"},
		{false, 2, 0, 10, 0, 0, "free permits were no whole number"},
		{false, 0, 4, 10, 0, 0, "there were no records, but free permits differed from the rate"},
		{false, 0, 9, 7, 1, 3, "free permits and those in records together were 2 more than the rate"},
		{false, 0, 5, 7, 1, 3, "free permits and those in records together were 2 less than the rate"},
		{true, 0, 7, 10, 1, 3, ""},
		{true, 0, 10, 10, 0, 0, ""},
		{true, 1, 0, 10, 1, 3, "free permits were missing"},
		{true, 2, 0, 10, 1, 3, "free permits were no whole number"},
	} {
		got, err := Repair{Reset: of.reset}.Reply([]int64{
			0, 1, of.stored, of.was, of.free, of.records, of.permits, blocked,
		})
		want := Repaired{true, of.fault, of.was, of.free, of.records, of.permits, 1500 * time.Millisecond}
		if err != nil || got != want {
			t.Errorf("%+v: %+v, %v", of, got, err)
		}
	}
	if got, err := (Repair{}).Reply([]int64{0, 0, 0, 1, 1, 0, 0, 0}); got.Changed || err != nil {
		t.Errorf("nothing to repair: %+v, %v", got, err)
	}
}

func TestReadReplies(t *testing.T) {
	reply := []int64{0, 10, 1000, 1, 60000, 7, 3, 2, 1_700_000_000_000_001, 1_700_000_000_000_009, 0, 1}
	want := State{
		Rate:      Rate{10, 1000, 1, 60000},
		Available: 7,
		Used:      3,
		Records:   2,
		Oldest:    time.UnixMicro(1_700_000_000_000_001),
		Newest:    time.UnixMicro(1_700_000_000_000_009), TTL: time.Millisecond, Consistent: true,
	}
	check := func(what string, r Read, reply []int64, want State) {
		t.Helper()
		if got, err := r.Reply(reply); err != nil || got != want {
			t.Errorf("%s: %+v, %v\nwant %+v", what, got, err, want)
		}
	}
	check("state", Read{}, reply, want)
	check("glance", Read{}, append(slices.Clone(reply), 0), want)
	want.Estimate = true
	check("glance of many records", Read{}, append(slices.Clone(reply), 1), want)
	check("configuration", Read{ConfigOnly: true}, reply[:5], State{Rate: want.Rate})
	check(
		"unused", Read{}, []int64{0, 10, 1000, 0, 0, 10, 0, 0, 0, 0, -1, 0},
		State{Rate: Rate{10, 1000, 0, 0}, Available: 10},
	)
}

func TestRecountReplies(t *testing.T) {
	notes, progress, err := Recount{}.Reply(
		[]any{int64(0), int64(Many), "newest", "oldest", int64(1000), int64(5000), int64(-7)},
	)
	if notes != Many || err != nil || progress != (Progress{"newest", "oldest", 1000, 5000, -7}) {
		t.Errorf("%v, %v, %v", notes, progress, err)
	}
	if args := (Recount{"now", progress}).Args(); !slices.Equal(
		args, []any{"now", "newest", "oldest", int64(1000), int64(5000), int64(-7)},
	) {
		t.Errorf("the next call has %v", args)
	}
}

func TestSurveyReplies(t *testing.T) {
	got, err := Survey{}.Reply([]any{
		"1700000000", "000042", []any{"rate", "10", "type", "1"}, int64(1), "7", int64(3),
		[]any{"m2", "2.5", "m1", "-inf"},
		"hash", int64(-1), "string", int64(0), "none", int64(-2),
	})
	want := Stored{
		At: time.UnixMicro(1_700_000_000_000_042), Fields: map[string]string{"rate": "10", "type": "1"}, Own: true,
		Value: "7", Records: 3,
		Page: []StoredRecord{{"m2", 2.5}, {"m1", math.Inf(-1)}},
		Keys: [3]StoredKey{{Type: "hash"}, {Type: "string", TTL: time.Millisecond}, {Type: "none"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	empty := []any{
		"0", "0", []any{}, int64(0), "", int64(0), []any{}, "none", int64(-2), "none", int64(-2), "none", int64(1500),
	}
	got, err = Survey{}.Reply(empty)
	want = Stored{
		At: time.UnixMicro(0), Fields: map[string]string{},
		Keys: [3]StoredKey{{Type: "none"}, {Type: "none"}, {"", "none", 1500 * time.Millisecond}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	empty[6] = []any{"m", "high"}
	if _, err = (Survey{}).Reply(empty); err == nil {
		t.Error("a score that is no number is no error")
	}
}

func TestTimesThatAreTooLong(t *testing.T) {
	for _, of := range []struct{ got, want time.Duration }{
		{Millis(1), time.Millisecond}, {Micros(1), time.Microsecond}, {Millis(-1), -time.Millisecond},
		{Millis(math.MaxInt64), math.MaxInt64 / 1_000_000 * 1_000_000},
		{Micros(math.MaxInt64), math.MaxInt64 / 1_000 * 1_000},
		{TTL(-2), 0}, {TTL(-1), 0}, {TTL(0), time.Millisecond}, {TTL(1), time.Millisecond},
		{TTL(2), 2 * time.Millisecond},
	} {
		if of.got != of.want {
			t.Errorf("%v, want %v", of.got, of.want)
		}
	}
}

// With ServerTime, a retry searches from a time that the server's clock had passed before the first
// attempt.
func TestAllowAllSearchesFromTheServersTime(t *testing.T) {
	_, e := sent(Options{ServerTime: true}, 1)
	e.served.Store(0)
	r, ask := AllowAll{Parts: []Part{{Encoder: e}}}, BatchAsk{Groups: []Group{{Permits: Permits{First: 1}, Count: 1}}}
	for _, replied := range []int64{0, 1_700_000_000_000_000, 1_700_000_060_000_000} {
		if replied > 0 {
			if _, _, err := r.Reply(&script.Attempts{},
				[]int64{0, 0, replied, 10, 1000, 5, 0, 0, 1000, -2, 0}); err != nil {
				t.Fatal(err)
			}
		}
		r.Next(1, &ask)
		r.Parts[0].Encoder = e
		r.Args(nil, false)
		args, want := r.Args(nil, true), millisText(max(replied-serverSlack, 0))
		if since := args[len(args)-3]; since != want {
			t.Errorf("after a reply at %d it searches from %v, want %v", replied, since, want)
		}
	}
}
