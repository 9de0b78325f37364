package main

import "testing"

const fewPermits = 5000

func TestPermitsOfThisLibraryAreCountedAndExpire(t *testing.T) {
	b := newLab(t, size{outstanding: fewPermits})
	for _, c := range contenders(rowLibrary, rowPerRequest) {
		s, err := b.memory(t.Context(), c)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if c.name == rowPerRequest && s.Records != fewPermits || s.Records < fewPermits/memoryCallers ||
			s.Bytes < 20*s.Records || s.Longest == 0 || s.Slowest == 0 {
			t.Errorf("%s: %+v", c.name, s)
		}
		expired(t, b)
	}
}

func TestPermitsAsJavaWritesThemAreCountedAndExpire(t *testing.T) {
	b := newLab(t, size{outstanding: fewPermits})
	s, err := b.javaMemory(t.Context(), contenders(rowLibrary)[0])
	if err != nil {
		t.Fatal(err)
	}
	if s.Records != fewPermits || s.Commands < 2 || s.Longest == 0 || s.Slowest == 0 {
		t.Errorf("%+v", s)
	}
	expired(t, b)
}

// expired fails the test unless only the records of the calls in expire are left, and the server
// has its default slow log limit again.
func expired(t *testing.T, b *lab) {
	t.Helper()
	if n := b.rdb.ZCard(t.Context(), permitsKey(memoryLimiter)).Val(); n == 0 || n > fewPermits/100 {
		t.Errorf("%d records are left", n)
	}
	if limit := b.rdb.ConfigGet(t.Context(),
		"slowlog-log-slower-than").Val()["slowlog-log-slower-than"]; limit != "10000" {
		t.Errorf("the slow log is left at %s µs", limit)
	}
}
