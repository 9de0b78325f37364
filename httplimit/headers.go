package httplimit

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// headers.go writes the response header: the fields RateLimit-Policy and RateLimit of the IETF's draft "RateLimit
// header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers-10 and 11), Retry-After, and the older X-RateLimit
// fields.

// describe sets the header fields. RateLimit and RateLimit-Policy are lists: an inner guard appends its own entries.
func (g *Guard) describe(h http.Header, d Decision) {
	var policies, limits []string
	for _, a := range d.Answers {
		name, key := quote(a.Name), ""
		if g.PartitionKeys && a.Key != "" {
			key = ";pk=:" + base64.StdEncoding.EncodeToString([]byte(a.Key)) + ":"
		}
		policy := name + ";q=" + integer(a.Limit)
		if w := a.Rate.Interval; w >= time.Second && w%time.Second == 0 { // the field w has whole seconds
			policy += ";w=" + seconds(w)
		}
		policies = append(policies, policy+key)

		// In a refusal, RateLimit has only the limits that refuse, because Retry-After must not be shorter than the
		// time of any limit in it.
		if !d.Outcome.Passed() && !a.Refused {
			continue
		}
		limit := name + ";r=" + integer(a.Remaining)
		if more := a.more(); more > 0 {
			limit += ";t=" + seconds(more)
		}
		limits = append(limits, limit+key)
	}
	if len(policies) > 0 {
		h.Add("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if len(limits) > 0 {
		h.Add("RateLimit", strings.Join(limits, ", "))
	}
	if a := nearest(d.Answers); g.XRateLimit && a != nil {
		h.Set("X-RateLimit-Limit", integer(a.Limit))
		h.Set("X-RateLimit-Remaining", integer(a.Remaining))
		h.Set("X-RateLimit-Reset", seconds(a.more()))
	}
	if !d.Outcome.Passed() {
		h.Set("Retry-After", seconds(max(d.RetryAfter(), time.Second)))
	}
}

// more returns the time until the limit has more permits: after a refusal, as many as the request needs; otherwise the next
// one. It returns 0 if that is not known.
func (a *Answer) more() time.Duration {
	switch {
	case a.Refused:
		return a.RetryAfter
	case a.NextAfter > 0:
		return a.NextAfter
	}
	return a.ResetAfter // of an Allower that does not set NextAfter
}

// nearest returns the answer of the limit that refuses for the longest time. If no limit refuses, it returns the answer
// of the limit that has the smallest part of its permits left.
func nearest(answers []Answer) (near *Answer) {
	for i := range answers {
		a := &answers[i]
		switch {
		case near == nil,
			a.Refused && !near.Refused,
			a.Refused && a.RetryAfter > near.RetryAfter,
			!near.Refused && float64(a.Remaining)*float64(near.Limit) < float64(near.Remaining)*float64(a.Limit):
			near = a
		}
	}
	return near
}

// A problem is the body of a refusal (RFC 9457), with the problem types of the draft.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

func refuse(w http.ResponseWriter, r *http.Request, d Decision) {
	const types = "https://iana.org/assignments/http-problem-types#"
	p := problem{types + "quota-exceeded", "Too many requests", http.StatusTooManyRequests, d.Refused()}
	switch {
	case d.unreadable() && long(r.URL):
		p = problem{"about:blank", "URI too long", http.StatusRequestURITooLong, nil}
	case d.unreadable():
		p = problem{"about:blank", "Bad request", http.StatusBadRequest, nil}
	case len(p.Violated) == 0:
		p.Type, p.Title, p.Status = types+"temporary-reduced-capacity", "Not available now", http.StatusServiceUnavailable
	}
	body, err := json.Marshal(p)
	if err != nil {
		http.Error(w, p.Title, p.Status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
}

// quote returns a name as a string of a structured field (RFC 9651). Such a string has only printable ASCII.
func quote(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range name {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < ' ' || c > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// integer returns a number as an integer of a structured field: at most 15 digits, and not negative here.
func integer(n int64) string { return strconv.FormatInt(min(max(n, 0), 999_999_999_999_999), 10) }

// seconds returns d in whole seconds, rounded up. A rest of 1 ms or less is dropped: a permit returns up to 1 ms after its
// interval, because records have times in whole ms, and a client need not wait another second for that.
func seconds(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return integer(int64((max(d-time.Millisecond, 1)-1)/time.Second) + 1)
}
