package protocol

import (
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Scripts that only read, and that recount records.
var (
	GlanceScript  = script.Load(lua.Files, "glance")
	ProbeScript   = script.Load(lua.Files, "probe")
	RecountScript = script.Load(lua.Files, "recount")
	StateScript   = script.Load(lua.Files, "state")
	SurveyScript  = script.Load(lua.Files, "survey")
)

// A Read is the request of state.lua and glance.lua.
type Read struct {
	Now        any
	ConfigOnly bool // read only the configuration; state.lua does, glance.lua ignores it
}

// Args returns the arguments.
func (r Read) Args() []any {
	flags := ""
	if r.ConfigOnly {
		flags = "c"
	}
	return []any{r.Now, flags}
}

// A State is the reply of state.lua and glance.lua. With ConfigOnly it has only the rate.
type State struct {
	Rate            Rate
	Available, Used int64
	Records         int
	Oldest, Newest  time.Time // of live records; zero if there are none
	TTL             time.Duration
	Consistent      bool // free permits and records add up to the rate
	Estimate        bool // Available, Used and Consistent are estimates (glance.lua)
}

// Reply decodes a reply.
func (r Read) Reply(reply []int64) (s State, err error) {
	if err := statusError(reply[0]); err != nil {
		return s, err
	}
	s.Rate = Rate{reply[1], reply[2], reply[3], reply[4]}
	if r.ConfigOnly {
		return s, nil
	}
	s.Available, s.Used, s.Records, s.TTL, s.Consistent = reply[5], reply[6], int(reply[7]), TTL(reply[10]),
		reply[11] == 1
	if s.Records > 0 {
		s.Oldest, s.Newest = Instant(reply[8]), Instant(reply[9])
	}
	s.Estimate = len(reply) > 12 && reply[12] != 0
	return s, nil
}

// Instant returns the time of a score (µs), which any client may have written. It is in the years 1
// to 9999, because JSON has no others.
func Instant(micros int64) time.Time {
	const first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
	return time.UnixMicro(min(max(micros, first), last))
}

// A Recount is the request of recount.lua: how far the calls before have come. The zero Progress
// starts.
type Recount struct {
	Now      any
	Progress Progress
}

// A Progress is how far a recount has come.
type Progress struct {
	newest, oldest string // records that were read
	count, sum     int64  // how many were read, and the permits in them
	surplus        int64  // when all were read before
}

// Args returns the arguments.
func (r Recount) Args() []any {
	p := r.Progress
	return []any{r.Now, p.newest, p.oldest, p.count, p.sum, p.surplus}
}

// Reply decodes a reply. With the notes More or Many the recount goes on.
func (r Recount) Reply(reply []any) (Notes, Progress, error) {
	if err := statusError(whole(reply[0])); err != nil {
		return 0, Progress{}, err
	}
	newest, _ := reply[2].(string)
	oldest, _ := reply[3].(string)
	return Notes(whole(reply[1])), Progress{newest, oldest, whole(reply[4]), whole(reply[5]), whole(reply[6])}, nil
}

func whole(part any) int64 {
	n, _ := part.(int64)
	return n
}

// A Survey is the request of survey.lua.
type Survey struct {
	First, Count int  // the records wanted, counted from the newest
	Own          bool // read the client's pair of keys, whatever the type of the limiter
}

// Args returns the arguments.
func (r Survey) Args() []any {
	flags := ""
	if r.Own {
		flags = "o"
	}
	return []any{r.First, r.Count, flags}
}

// Stored is the reply of survey.lua: the content of a limiter's keys, not validated.
type Stored struct {
	At      time.Time         // time of the server's clock
	Fields  map[string]string // of the configuration; empty if there is none
	Own     bool              // the pair is the client's own
	Value   string            // the free permits
	Records int               // total number of records
	Page    []StoredRecord    // the records asked for, newest first
	Keys    [3]StoredKey      // configuration, value, records
}

// A StoredRecord is a member of the permits set, with its score (ms).
type StoredRecord struct {
	Member string
	Score  float64
}

// A StoredKey is one key of a limiter.
type StoredKey struct {
	Name string        // set by the caller of Reply
	Type string        // as Redis's TYPE returns it: "none" if the key does not exist
	TTL  time.Duration // 0: none
}

// Reply decodes a reply.
func (r Survey) Reply(reply []any) (s Stored, err error) {
	texts := func(part any) (all []string) {
		for _, one := range part.([]any) {
			text, _ := one.(string)
			all = append(all, text)
		}
		return all
	}
	seconds, _ := strconv.ParseInt(reply[0].(string), 10, 64)
	micros, _ := strconv.ParseInt(reply[1].(string), 10, 64)
	s.At = time.UnixMicro(seconds*1e6 + micros)
	s.Fields = map[string]string{}
	fields := texts(reply[2])
	for i := 0; i+1 < len(fields); i += 2 {
		s.Fields[fields[i]] = fields[i+1]
	}
	s.Own = whole(reply[3]) == 1
	s.Value, _ = reply[4].(string)
	s.Records = int(whole(reply[5]))
	page := texts(reply[6])
	for i := 0; i+1 < len(page); i += 2 {
		score, err := strconv.ParseFloat(page[i+1], 64)
		if err != nil {
			return s, err
		}
		s.Page = append(s.Page, StoredRecord{Member: page[i], Score: score})
	}
	for i := range s.Keys {
		kind, _ := reply[7+2*i].(string)
		s.Keys[i] = StoredKey{Type: kind, TTL: TTL(whole(reply[8+2*i]))}
	}
	return s, nil
}
