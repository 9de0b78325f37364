package httplimit

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// headers.go writes the response header: the fields RateLimit-Policy and RateLimit of the IETF's
// draft "RateLimit header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers-10 and 11),
// Retry-After, and the older X-RateLimit fields.

// The names that the draft gives: fields, and their parameters.
const (
	fieldPolicy = "Ratelimit-Policy" // in canonical form
	fieldLimit  = "Ratelimit"

	paramQuota = "q"  // permits of the rate
	paramUnit  = "qu" // what a permit stands for
	paramTime  = "w"  // interval, in seconds
	paramKey   = "pk" // key of the limiter
	paramLeft  = "r"  // permits that are free
	paramMore  = "t"  // time until more permits are free, in seconds
)

// Describe adds the fields RateLimit-Policy and RateLimit to a header and, if the request does not
// pass, sets Retry-After: what a zero Guard writes. A request that can never pass gets no
// Retry-After, for example because the rate is 0. Use Describe for protocols that carry the header
// of the response, such as Envoy's rate limit service.
func (d Decision) Describe(h http.Header) { new(Guard).describe(h, d) }

// describe sets the header fields. RateLimit and RateLimit-Policy are lists: an inner guard appends
// its own entries.
func (g *Guard) describe(h http.Header, d Decision) {
	var memory [256]byte
	text := memory[:0] // of both fields: one allocation
	for i := range d.Answers {
		a := &d.Answers[i]
		if a.shadow {
			continue
		}
		text = appendItem(text, 0, a.Name, paramQuota, a.Limit)
		if a.Unit != "" {
			text = appendQuoted(appendName(text, paramUnit), a.Unit)
		}
		if w := a.Rate.Interval; w >= time.Second && w%time.Second == 0 { // it has whole seconds
			text = appendParameter(text, paramTime, wholeSeconds(w))
		}
		text = g.appendKey(text, a.Key)
	}
	policies := len(text)
	for i := range d.Answers {
		a := &d.Answers[i]
		// In a refusal, RateLimit has only the limits that refuse, because Retry-After must not be
		// shorter than the time of any limit in it.
		if !d.Outcome.Passed() && !a.Refused || a.shadow {
			continue
		}
		text = appendItem(text, policies, a.Name, paramLeft, a.Remaining)
		if reset := a.Reset(); reset > 0 {
			text = appendParameter(text, paramMore, wholeSeconds(reset))
		}
		text = g.appendKey(text, a.Key)
	}
	if both := string(text); both != "" {
		values := []string{both[:policies], both[policies:]}
		add(h, fieldPolicy, values[:1:1])
		add(h, fieldLimit, values[1:])
	}
	if a := nearest(d.Answers); g.XRateLimit && a != nil {
		h.Set("X-RateLimit-Limit", decimal(a.Limit))
		h.Set("X-RateLimit-Remaining", decimal(a.Remaining))
		h.Set("X-RateLimit-Reset", decimal(wholeSeconds(a.Reset())))
	}
	switch after := d.RetryAfter(); {
	case d.Outcome.Passed():
	case after > 0:
		h.Set("Retry-After", decimal(wholeSeconds(after)))
	case !refused(d.Answers): // the limits could not be checked
		h.Set("Retry-After", "1")
	}
}

// Reset returns the time until the limit has more permits, in whole seconds, rounded up: t in the
// field RateLimit. After a refusal, that is as many permits as the request needs; otherwise the
// next one. It returns 0 if the time is not known, or if the request can never pass.
func (a *Answer) Reset() time.Duration {
	reset := a.ResetAfter // of an Allower that does not set NextAfter
	switch {
	case a.Refused:
		reset = a.RetryAfter
	case a.NextAfter > 0:
		reset = a.NextAfter
	}
	return time.Duration(min(wholeSeconds(reset), int64(math.MaxInt64/time.Second))) * time.Second
}

// nearest returns the answer of the limit that refuses for the longest time. If no limit refuses,
// it returns the answer of the limit that has the smallest part of its permits left.
func nearest(answers []Answer) (near *Answer) {
	for i := range answers {
		a := &answers[i]
		switch {
		case a.shadow:
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
		p.Type, p.Title, p.Status = types+"temporary-reduced-capacity", "Not available now",
			http.StatusServiceUnavailable
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

// add adds a value to the field with a canonical name, unless it is empty.
func add(h http.Header, canonical string, value []string) {
	switch {
	case value[0] == "":
	case h[canonical] == nil:
		h[canonical] = value
	default:
		h[canonical] = append(h[canonical], value[0])
	}
}

// appendItem appends an item of a list, which begins at an index: a name and its first parameter.
func appendItem(to []byte, list int, name, parameter string, n int64) []byte {
	if len(to) > list {
		to = append(to, ", "...)
	}
	return appendParameter(appendQuoted(to, name), parameter, n)
}

func appendParameter(to []byte, name string, n int64) []byte {
	return strconv.AppendInt(appendName(to, name), integer(n), 10)
}

func appendName(to []byte, name string) []byte { return append(append(append(to, ';'), name...), '=') }

// appendKey appends the parameter pk, if there is a key and the guard shows keys.
func (g *Guard) appendKey(to []byte, key string) []byte {
	if !g.PartitionKeys || key == "" {
		return to
	}
	return append(base64.StdEncoding.AppendEncode(append(appendName(to, paramKey), ':'), []byte(key)), ':')
}

// appendQuoted appends a name as a string of a structured field (RFC 9651). Such a string has only
// printable ASCII.
func appendQuoted(to []byte, name string) []byte {
	to = append(to, '"')
	for _, c := range name {
		switch {
		case c == '"' || c == '\\':
			to = append(to, '\\', byte(c))
		case c < ' ' || c > '~':
			to = append(to, '?')
		default:
			to = append(to, byte(c))
		}
	}
	return append(to, '"')
}

// integer returns the nearest number that a structured field can have and that is not negative: it
// has at most 15 digits.
func integer(n int64) int64 { return min(max(n, 0), 999_999_999_999_999) }

// wholeSeconds returns d in seconds, rounded up. A rest of 1 ms or less is dropped: a permit
// returns up to 1 ms after its interval, because records have times in whole ms, and a client need
// not wait another second for that.
func wholeSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((max(d-time.Millisecond, 1)-1)/time.Second) + 1
}

// decimal returns a number as an integer of a structured field.
func decimal(n int64) string { return strconv.FormatInt(integer(n), 10) }
