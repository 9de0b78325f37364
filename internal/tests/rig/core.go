package rig

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
)

// Tests see what users see. The functions of this file are the exceptions: with them, a test tunes
// the dispatcher of a client, waits until it is in a certain state, or sends it a request that no
// method makes. They read unexported fields by reflection, so that the library needs no code for
// them.

// Core returns the dispatcher of a client.
func Core(c *rratelimiter.Client) *dispatch.Client { return *field[*dispatch.Client](c, "core") }

// LimiterCore returns the part of a limiter that belongs to its client's dispatcher.
func LimiterCore(l *rratelimiter.Limiter) *dispatch.Limiter {
	return field[dispatch.Limiter](l, "core")
}

// Settings returns the settings of a limiter: the defaults of its client, and its own options.
func Settings(l *rratelimiter.Limiter) limiter.Settings {
	return *field[limiter.Settings](l, "settings")
}

// OptionsError returns why the options of a limiter or of its client are invalid, or nil.
func OptionsError(l *rratelimiter.Limiter) error { return *field[error](l, "err") }

// GrantLock returns the lock of a grant.
func GrantLock(g *rratelimiter.Grant) *sync.Mutex { return field[sync.Mutex](g, "mu") }

// field returns the address of a field of the struct to which the pointer refers.
func field[T any](pointer any, name string) *T {
	v := reflect.ValueOf(pointer).Elem().FieldByName(name)
	if v.Type() != reflect.TypeFor[T]() {
		panic(fmt.Sprintf("rig: field %s of %T is a %v", name, pointer, v.Type()))
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}
