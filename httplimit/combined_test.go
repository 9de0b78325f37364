package httplimit

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Of limits and methods of limits that are refused together, the godoc of each names the others.
func TestEachMethodOfALimitSaysWhatItIsNotCombinedWith(t *testing.T) {
	client := rratelimiter.NewClient(rig.RefusingClient(t))
	rate := rratelimiter.PerSecond(10)
	limits := map[string]Limit{
		"Per":     Per(client, "a", rate, nil),
		"PerFunc": PerFunc(client, "a", func(*http.Request) rratelimiter.Rate { return rate }, nil),
		"Shared":  Shared("a", client.RateLimiter("a")),
	}
	methods := map[string]func(Limit) Limit{
		"CountIf":   func(l Limit) Limit { return l.CountIf(succeeded) },
		"CostAfter": func(l Limit) Limit { return l.CostAfter(nil) },
		"Cost":      func(l Limit) Limit { return l.Cost(func(*http.Request) int64 { return 2 }) },
		"OrElse":    func(l Limit) Limit { return l.OrElse(limits["Per"]) },
		"Penalty":   func(l Limit) Limit { return l.Penalty(client, time.Minute) },
		"Shadow":    Limit.Shadow,
		"Unit":      func(l Limit) Limit { return l.Unit("bytes") },
	}
	docs, names := rig.Docs(t, "."), []string{}
	for i := range reflect.TypeFor[Limit]().NumMethod() {
		method := reflect.TypeFor[Limit]().Method(i)
		if methods[method.Name] == nil {
			t.Fatalf("%s has no row", method.Name)
		}
		names = append(names, method.Name)
		docs[method.Name] = docs["Limit."+method.Name]
		if rig.TooLong(docs[method.Name]) {
			t.Errorf("the godoc of %s has more than 15 lines", method.Name)
		}
	}
	for name := range limits {
		names = append(names, name)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	sets := rig.Refused(names, func(set ...string) bool {
		made := slices.DeleteFunc(slices.Clone(set), func(one string) bool { return limits[one] == nil })
		for name, l := range limits {
			if len(made) > 0 && made[0] != name {
				continue
			}
			for _, one := range set {
				if method := methods[one]; method != nil {
					l = method(l)
				}
			}
			if l(r).invalid() == nil {
				return false
			}
		}
		return len(made) < 2 // a limit is made by one function
	})
	if len(sets) == 0 {
		t.Fatal("nothing is refused")
	}
	for _, set := range sets {
		for i, one := range set {
			if others := slices.Delete(slices.Clone(set), i, i+1); !rig.SaysNotWith(docs[one], others...) {
				t.Errorf("the godoc of %s does not say that it cannot be combined with %v", one, others)
			}
		}
	}
}
