// Package snapshot copies the whole state of a limiter from Redis, and writes such a copy back: for
// example to move a limiter to another server, to send its state with a bug report, or to keep the
// states of a Redisson release as test data.
//
//	s, err := snapshot.Take(ctx, rdb, "orders")
//	...
//	data, err := s.Encode()
//	...
//	s, err = snapshot.Decode(data)
//	err = s.Restore(ctx, other, snapshot.As("orders-copy"), snapshot.At(time.Now()))
//
// A snapshot keeps the keys byte for byte. A damaged limiter is restored with its damage: only the
// types of the keys and the form of the snapshot are checked. A name is the key of the
// configuration in Redis, after any name mapper.
package snapshot

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Errors, to be matched with errors.Is. Errors of the Redis client are wrapped, too.
var (
	// ErrNotFound is returned if Redis has no key of the limiter.
	ErrNotFound = errors.New("snapshot: there is no limiter")
	// ErrExists is returned by Restore if the limiter has a key already and Replace was not given.
	ErrExists = errors.New("snapshot: there is a limiter already")
	// ErrWrongType is returned if a key of the limiter has another Redis type than limiters give
	// it.
	ErrWrongType = errors.New("snapshot: wrong type of key")
	// ErrInvalid is returned for an impossible Snapshot, or invalid bytes of one; the text says
	// what is wrong.
	ErrInvalid = errors.New("snapshot: invalid")
)

// A Snapshot is the state of a limiter at one time. Each TTL in it is the remaining one at that
// time, to the ms; 0 is none.
type Snapshot struct {
	Name     string    // of the configuration key
	Note     string    // origin, such as "Redisson 3.17.5"
	Server   string    // product and version, such as "Redis 7.0.15"; "" if unknown
	TakenAt  time.Time // by the server's clock, in UTC, to the ms
	HostTime time.Time // by the clock of the host that took it, in UTC, to the ms
	OneStep  bool      // everything was read at one instant: see Take

	Config  *Config // nil: no such key
	Shared  State
	Clients []ClientState // of PER_CLIENT limiters, in order of their ids
}

// Config is the configuration key.
type Config struct {
	Fields []Field // at least one, in the order in which Redis gave them
	TTL    time.Duration
}

// A Field is one field of the configuration.
type Field struct{ Name, Value string }

// State is a pair of keys: the one that all clients share, or one client's own.
type State struct {
	Value   *Value   // nil: no such key
	Permits *Permits // nil: no such key
}

// ClientState is the pair of keys of one client.
type ClientState struct {
	ID string
	State
}

// Value is the key of the free permits.
type Value struct {
	Text string
	TTL  time.Duration
}

// Permits is the key of the records.
type Permits struct {
	Records []Record // at least one, in the order of Redis: by score, then by member
	TTL     time.Duration
}

// A Record is a member of the sorted set of grants. rratelimiter.UnpackRecord reads it.
type Record struct {
	Member []byte
	Score  float64 // its time in ms since 1970
}

// check returns an error for a snapshot that Redis could not hold.
func (s *Snapshot) check() error {
	found := s.Config != nil
	if s.Config != nil {
		if len(s.Config.Fields) == 0 {
			return invalid("the configuration has no field")
		}
		names := map[string]bool{}
		for _, f := range s.Config.Fields {
			if names[f.Name] {
				return invalid("the configuration has the field %q twice", f.Name)
			}
			names[f.Name] = true
		}
		if s.Config.TTL < 0 {
			return invalid("the TTL of the configuration is negative")
		}
	}
	ids := map[string]bool{}
	for _, c := range s.Clients {
		if ids[c.ID] {
			return invalid("the client %q is there twice", c.ID)
		}
		ids[c.ID] = true
	}
	for _, c := range append(s.Clients[:len(s.Clients):len(s.Clients)], ClientState{State: s.Shared}) {
		if c.Value != nil && c.Value.TTL < 0 || c.Permits != nil && c.Permits.TTL < 0 {
			return invalid("a TTL is negative")
		}
		if c.Permits != nil {
			if len(c.Permits.Records) == 0 {
				return invalid("a set of permits has no record")
			}
			members := make(map[string]bool, len(c.Permits.Records))
			for _, r := range c.Permits.Records {
				if math.IsNaN(r.Score) {
					return invalid("the score of a record is no number")
				}
				if members[string(r.Member)] {
					return invalid("the record %x is there twice", r.Member)
				}
				members[string(r.Member)] = true
			}
		}
		found = found || c.Value != nil || c.Permits != nil
	}
	if !found {
		return invalid("it has no key")
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
