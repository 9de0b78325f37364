package protocol

import (
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Scripts that change a limiter.
var (
	CollectScript    = script.Load(lua.Files, "collect")
	DeleteScript     = script.Load(lua.Files, "delete")
	ExpireScript     = script.Load(lua.Files, "expire")
	ReleaseScript    = script.Load(lua.Files, "release")
	RenameScript     = script.Load(lua.Files, "rename")
	RepairScript     = script.Load(lua.Files, "repair")
	SetRateScript    = script.Load(lua.Files, "setrate")
	TrySetRateScript = script.Load(lua.Files, "trysetrate")
)

// A TrySetRate is the request of trysetrate.lua.
type TrySetRate struct{ Rate Rate }

// Args returns the arguments.
func (r TrySetRate) Args() []any { return r.Rate.args() }

// Reply reports whether the rate was set.
func (r TrySetRate) Reply(reply []int64) bool { return reply[0] == 1 }

// A SetRate is the request of setrate.lua.
type SetRate struct {
	Now    any
	Rate   Rate
	Keep   bool // keep the grants, unless the type changes
	Update bool // only if a rate is set
}

// Args returns the arguments.
func (r SetRate) Args() []any {
	flags := ""
	if r.Update {
		flags += "u"
	}
	if r.Keep {
		flags += "k"
	}
	return append(append([]any{r.Now}, r.Rate.args()...), flags)
}

// Reply reports whether the rate was set, and what is left to do.
func (r SetRate) Reply(reply []int64) (set bool, notes Notes) { return reply[0] == 1, Notes(reply[1]) }

// A Delete is the request of delete.lua.
type Delete struct{}

// Args returns the arguments.
func (r Delete) Args() []any { return nil }

// Reply reports whether a key was removed, and the index of the first key that stays because
// another program uses it, or -1.
func (r Delete) Reply(reply []int64) (removed bool, foreign int) {
	if len(reply) > 1 {
		return reply[0] > 0, int(reply[1]) - 1
	}
	return reply[0] > 0, -1
}

// A Rename is the request of rename.lua, on the keys of both names.
type Rename struct{ OnlyNew bool } // OnlyNew: if no limiter has the new name

// Args returns the arguments.
func (r Rename) Args() []any {
	if r.OnlyNew {
		return []any{"n"}
	}
	return []any{""}
}

// Reply reports whether the limiter was renamed, and the index of the key that another program
// uses, or -1. The error is ErrNotInitialized.
func (r Rename) Reply(reply []int64) (renamed bool, foreign int, err error) {
	switch n := reply[0]; {
	case n == -1:
		return false, -1, statusError(1)
	case n < -1:
		return false, int(-2 - n), nil
	default:
		return n == 1, -1, nil
	}
}

// An Expire is the request of expire.lua.
type Expire struct {
	Command   ExpireCommand
	Time      int64 // ms: from now, or since the epoch; 0 with Persist
	Condition ExpireCondition
}

// An ExpireCommand is a command of Redis that sets or clears a TTL.
type ExpireCommand string

// The commands.
const (
	ExpireIn ExpireCommand = "PEXPIRE"
	ExpireAt ExpireCommand = "PEXPIREAT"
	Persist  ExpireCommand = "PERSIST"
)

// An ExpireCondition makes a TTL depend on the present one, by the names of Redis 7; "" is none.
type ExpireCondition string

// Args returns the arguments.
func (r Expire) Args() []any { return []any{string(r.Command), r.Time, string(r.Condition)} }

// Idempotent reports whether a second execution within the timeout of the call has the same effect
// and reply. It has not if the limiter may have expired by then. now is the present time.
func (r Expire) Idempotent(now time.Time, timeout time.Duration) bool {
	left := r.Time // 0 with Persist
	if r.Command == ExpireAt {
		left -= now.UnixMilli()
	}
	return r.Condition == "" && left > timeout.Milliseconds()
}

// Reply reports whether it was done.
func (r Expire) Reply(reply []int64) bool { return reply[0] == 1 }

// A Release is the request of release.lua.
type Release struct {
	Now     any
	Permits int64
	Rebuild bool // finish a rebuild of the free permits
	// give back only what this client was granted with this score (µs); 0: the oldest permits
	Granted int64
	Own     int64 // the client, as record.Identity.Origin has it; only with Granted
}

// Args returns the arguments.
func (r Release) Args() []any {
	flags := ""
	if r.Rebuild {
		flags = "b"
	}
	if r.Granted == 0 {
		return []any{r.Now, r.Permits, flags}
	}
	return []any{r.Now, r.Permits, flags, millisText(r.Granted), r.Own}
}

// Reply returns how many permits came back, and with More what is left to do.
func (r Release) Reply(reply []int64) (released int64, notes Notes, err error) {
	if err := statusError(reply[0]); err != nil {
		return 0, 0, err
	}
	return reply[2], Notes(reply[1]), nil
}

// A Repair is the request of repair.lua.
type Repair struct {
	Now   any
	Dry   bool // change nothing
	Reset bool // remove the records
}

// Args returns the arguments.
func (r Repair) Args() []any {
	flags := ""
	if r.Reset {
		flags += "r"
	}
	if r.Dry {
		flags += "d"
	}
	return []any{r.Now, flags}
}

// Idempotent reports whether a second execution has the same effect and reply. After a reset there
// is nothing to reset.
func (r Repair) Idempotent() bool { return !r.Reset || r.Dry }

// Repaired is the reply of repair.lua.
type Repaired struct {
	Changed          bool   // something is, or with Dry would be, changed
	Fault            string // what was wrong with the free permits; "" if nothing
	Was              int64  // free permits that were stored; 0 if none could be read
	Free             int64  // free permits that are right
	Records, Permits int64  // all records, and the permits in them
	Blocked          time.Duration
}

// Reply decodes a reply.
func (r Repair) Reply(reply []int64) (Repaired, error) {
	if err := statusError(reply[0]); err != nil {
		return Repaired{}, err
	}
	const missing, garbled = 1, 2
	done := Repaired{
		Changed: reply[1] == 1, Was: reply[3], Free: reply[4], Records: reply[5], Permits: reply[6],
		Blocked: Millis(reply[7]),
	}
	right := done.Free
	if r.Reset {
		right = done.Was // a reset removes records even if the free permits are right
	}
	switch stored := reply[2]; {
	case done.Records == 0 && stored == missing:
	case stored == missing:
		done.Fault = repairs[0].text
	case stored == garbled:
		done.Fault = repairs[1].text
	case done.Was != right && done.Records == 0:
		done.Fault = repairs[5].text
	case done.Was > right:
		done.Fault = fmt.Sprintf("free permits and those in records together were %d more than the rate",
			done.Was-right)
	case done.Was < right:
		done.Fault = fmt.Sprintf("free permits and those in records together were %d less than the rate",
			right-done.Was)
	}
	return done, nil
}

// A Collect is the request of collect.lua.
type Collect struct {
	Now  any
	Idle time.Duration // no record may have counted within that time
	Dry  bool          // change nothing
}

// Args returns the arguments.
func (r Collect) Args() []any {
	flags := ""
	if r.Dry {
		flags = "d"
	}
	return []any{r.Now, r.Idle.Milliseconds(), flags}
}

// Collected is the reply of collect.lua.
type Collected int64

// The outcomes for a client's pair of keys.
const (
	// records count, counted within Idle or may count; or the value is no number of permits
	InUse     Collected = iota
	Removed             // or, with Dry, would be removed
	Temporary           // the keys have a TTL
	Gone                // there are none
	Foreign             // kept: another program uses one of the keys
)

// Reply decodes a reply.
func (r Collect) Reply(reply []int64) Collected { return Collected(reply[0]) }
