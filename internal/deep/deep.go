// Package deep copies a value with all that it refers to, and writes it as bytes, for searches
// through all orders of events (package smallscope). It follows pointers, also those that form
// cycles and those in unexported fields. Functions and interface values are shared with the copy,
// and are no part of the bytes.
package deep

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Copy returns a copy of what a pointer points to. The two share no memory that can be changed. A
// slice without elements is nil in the copy.
func Copy[T any](original *T) *T {
	c := &walk{}
	at := unsafe.Pointer(original)
	planOf(reflect.TypeFor[*T]()).own(c, unsafe.Pointer(&at))
	return (*T)(at)
}

// Append appends bytes that are equal for equal values only: those that differ neither in a number,
// text or time nor in which pointers are equal.
func Append[T any](to []byte, value *T) []byte {
	w := &walk{bytes: to}
	planOf(reflect.TypeFor[*T]()).write(w, unsafe.Pointer(&value))
	return w.bytes
}

// A walk is one call of Copy or Append. It has the pointers that it has seen, and their copies.
type walk struct {
	seen, copies []unsafe.Pointer
	bytes        []byte
}

// A plan says what to do with the values of a type, given their address.
type plan struct {
	own   func(w *walk, at unsafe.Pointer) // gives a copied value memory of its own; nil: it has no other
	write func(w *walk, at unsafe.Pointer)
}

var (
	plans = map[reflect.Type]*plan{}
	lock  sync.Mutex
)

func planOf(t reflect.Type) *plan {
	lock.Lock()
	defer lock.Unlock()
	return planned(t)
}

// planned returns the plan of a type. That of a type that contains itself is incomplete until the
// first call returns.
func planned(t reflect.Type) *plan {
	if p := plans[t]; p != nil {
		return p
	}
	p := new(plan)
	plans[t] = p
	switch kind := t.Kind(); {
	case t == reflect.TypeFor[time.Time]():
		p.write = func(w *walk, at unsafe.Pointer) { w.number(uint64((*time.Time)(at).UnixNano())) }
	case kind >= reflect.Bool && kind <= reflect.Float64:
		p.write = numbers[t.Size()]
	case kind == reflect.Func || kind == reflect.Interface:
		p.write = func(*walk, unsafe.Pointer) {}
	case kind == reflect.String:
		p.write = func(w *walk, at unsafe.Pointer) {
			text := *(*string)(at)
			w.number(uint64(len(text)))
			w.bytes = append(w.bytes, text...)
		}
	case kind == reflect.Pointer:
		p.pointer(t.Elem())
	case kind == reflect.Slice:
		p.slice(t)
	case kind == reflect.Map:
		p.dictionary(t)
	case kind == reflect.Array:
		parts := make([]part, t.Len())
		for i := range parts {
			parts[i] = part{uintptr(i) * t.Elem().Size(), planned(t.Elem())}
		}
		p.parts(parts)
	case strings.HasPrefix(t.String(), "atomic.Pointer["): // an unsafe.Pointer to the type of its first field
		p.pointer(t.Field(0).Type.Elem().Elem())
	case kind == reflect.Struct:
		parts := make([]part, t.NumField())
		for i := range parts {
			parts[i] = part{t.Field(i).Offset, planned(t.Field(i).Type)}
		}
		p.parts(parts)
	default:
		clear(plans) // those of types that contain it are incomplete
		panic(fmt.Sprint("deep: a value of type ", t))
	}
	return p
}

// A part is a field of a struct, or an element of an array.
type part struct {
	offset uintptr
	*plan
}

func (p *plan) parts(all []part) {
	p.write = func(w *walk, at unsafe.Pointer) {
		for _, part := range all {
			part.write(w, unsafe.Add(at, part.offset))
		}
	}
	var refer []part // to other memory
	for _, part := range all {
		if part.own != nil {
			refer = append(refer, part)
		}
	}
	if refer == nil {
		return
	}
	p.own = func(w *walk, at unsafe.Pointer) {
		for _, part := range refer {
			part.own(w, unsafe.Add(at, part.offset))
		}
	}
}

func (p *plan) pointer(t reflect.Type) {
	var to *plan
	p.own = func(w *walk, at unsafe.Pointer) {
		original := *(*unsafe.Pointer)(at)
		if original == nil {
			return
		}
		known := slices.Index(w.seen, original)
		if known < 0 {
			known = len(w.seen)
			next := reflect.New(t)
			next.Elem().Set(reflect.NewAt(t, original).Elem())
			w.seen, w.copies = append(w.seen, original), append(w.copies, next.UnsafePointer())
			if to.own != nil {
				to.own(w, next.UnsafePointer())
			}
		}
		*(*unsafe.Pointer)(at) = w.copies[known]
	}
	p.write = func(w *walk, at unsafe.Pointer) {
		value := *(*unsafe.Pointer)(at)
		if value == nil {
			w.number(0)
			return
		}
		known := slices.Index(w.seen, value)
		w.number(uint64(known + 2)) // 1: not seen yet
		if known < 0 {
			w.seen = append(w.seen, value)
			to.write(w, value)
		}
	}
	to = planned(t)
}

// A header is what a slice is in memory.
type header struct {
	first            unsafe.Pointer
	length, capacity int
}

func (p *plan) slice(t reflect.Type) {
	var of *plan
	size := t.Elem().Size()
	p.own = func(w *walk, at unsafe.Pointer) {
		if (*header)(at).length == 0 {
			*(*header)(at) = header{}
			return
		}
		value := reflect.NewAt(t, at).Elem()
		next := reflect.MakeSlice(t, value.Len(), value.Len())
		reflect.Copy(next, value)
		value.Set(next)
		for i := 0; of.own != nil && i < next.Len(); i++ {
			of.own(w, unsafe.Add(next.UnsafePointer(), uintptr(i)*size))
		}
	}
	p.write = func(w *walk, at unsafe.Pointer) {
		value := (*header)(at)
		w.number(uint64(value.length))
		for i := range value.length {
			of.write(w, unsafe.Add(value.first, uintptr(i)*size))
		}
	}
	of = planned(t.Elem())
}

// dictionary is the plan of a map of which the keys and values refer to nothing.
func (p *plan) dictionary(t reflect.Type) {
	key, value := planned(t.Key()), planned(t.Elem())
	p.own = func(_ *walk, at unsafe.Pointer) {
		original := reflect.NewAt(t, at).Elem()
		if original.IsNil() {
			return
		}
		next := reflect.MakeMapWithSize(t, original.Len())
		for each := original.MapRange(); each.Next(); {
			next.SetMapIndex(each.Key(), each.Value())
		}
		original.Set(next)
	}
	p.write = func(w *walk, at unsafe.Pointer) {
		var entries [][]byte
		for each := reflect.NewAt(t, at).Elem().MapRange(); each.Next(); {
			entry, k, v := &walk{}, reflect.New(t.Key()), reflect.New(t.Elem())
			k.Elem().Set(each.Key())
			v.Elem().Set(each.Value())
			key.write(entry, k.UnsafePointer())
			value.write(entry, v.UnsafePointer())
			entries = append(entries, entry.bytes)
		}
		slices.SortFunc(entries, bytes.Compare)
		w.number(uint64(len(entries)))
		w.bytes = append(w.bytes, bytes.Join(entries, nil)...)
	}
}

// numbers write a number of 1, 2, 4 or 8 bytes.
var numbers = map[uintptr]func(w *walk, at unsafe.Pointer){
	1: func(w *walk, at unsafe.Pointer) { w.bytes = append(w.bytes, *(*byte)(at)) },
	2: func(w *walk, at unsafe.Pointer) { w.number(uint64(*(*uint16)(at))) },
	4: func(w *walk, at unsafe.Pointer) { w.number(uint64(*(*uint32)(at))) },
	8: func(w *walk, at unsafe.Pointer) { w.number(*(*uint64)(at)) },
}

func (w *walk) number(n uint64) { w.bytes = binary.AppendUvarint(w.bytes, n) }
