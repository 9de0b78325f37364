package guide

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func besideSpring(rdb *redis.Client, mux *http.ServeMux) http.Handler {
	bucket := classic.Spring{ReplenishRate: 10, BurstCapacity: 20}
	guard := httplimit.New(func(r *http.Request) httplimit.Claim {
		user := r.Header.Get("X-User")
		if user == "" {
			return httplimit.Claim{} // a request without the key is not limited
		}
		id := "orders." + classic.SpringHeader(user) // the gateway reads header fields as ISO-8859-1
		return httplimit.Claim{Name: "orders", Key: user, Limiter: classic.NewSpringBucket(rdb, id, bucket)}
	})
	handler := guard.Middleware(mux)
	guard.Policy = &httplimit.Policy{Bound: patience}
	return handler
}

// The handler goes on with what the gateway has left in Redis.
func TestAGuardStandsBesideSpringCloudGateway(t *testing.T) {
	server := limittest.New(t)
	rdb, mux := server.Redis(), http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	handler := besideSpring(rdb, mux)
	for key, value := range map[string]int64{"tokens": 1, "timestamp": server.Now().Unix()} {
		for _, user := range []string{"alice", "\u00c3\u00bc"} { // the gateway's key for the two bytes of ü
			if err := rdb.Set(t.Context(), "request_rate_limiter.{orders."+user+"}."+key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range []struct {
		user string
		want int
	}{{"alice", 204}, {"alice", 429}, {"ü", 204}, {"ü", 429}, {"bob", 204}, {"", 204}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", c.user)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("request %d, of %q: %d", i, c.user, w.Code)
		}
	}
	if left := rdb.Get(t.Context(), "request_rate_limiter.{orders.bob}.tokens").Val(); left != "19" {
		t.Errorf("bob has %q tokens left", left)
	}
}
