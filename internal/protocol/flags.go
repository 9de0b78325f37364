package protocol

// Flags of the scripts that grant permits, as in lua/shared/flags.lua: an argument has the letters
// of those that apply.
const (
	flagEnforce     = 'e' // refuse if the configured rate is not the caller's
	flagRebuild     = 'b' // finish a rebuild of the free permits
	flagCheck       = 's' // compare the free permits with the records
	flagWholeScores = 'w' // scores in whole ms
	flagRecordEach  = 'r' // a record for each grant
	flagServerTime  = 't' // the server's clock, in the place of the caller's
	flagNext        = 'n' // return when the next permit returns
	flagDetail      = 'd' // return when permits will be free
	flagUpTo        = 'u' // grant a part of the only size rather than nothing
	flagStrictOnly  = 'q' // grant only the strict groups
	flagApart       = 'j' // join no record of another batch
	flagJoint       = 'a' // the call asks the next limiter, too
	flagGeneral     = 'g' // the call is more than a plain grant, and has more arguments
)

// A flag is a letter, and whether it applies.
type flag struct {
	letter byte
	set    bool
}

// flagsOf returns the letters of the flags that apply, and then more of them.
func flagsOf(more string, all ...flag) string {
	var text [13]byte
	flags := text[:0]
	for _, f := range all {
		if f.set {
			flags = append(flags, f.letter)
		}
	}
	if len(flags) == 0 {
		return more
	}
	return string(append(flags, more...))
}
