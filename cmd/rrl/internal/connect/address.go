package connect

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// address.go reads addresses. It is stricter than a URL parser: rrl calls the server that an
// address names, or none. A password with a character that ends a part of a URL must not move the
// host, and a missing host is not localhost.

// An address has the parts of an address, as written.
type address struct {
	scheme string   // redis, rediss or unix
	kind   string   // cluster, sentinel or ""
	user   string   // user and password, with the @; "": none
	hosts  []string // host:port, with the default port if the address has none; nil with unix
	path   string   // without its first slash, except with unix
	query  string
}

// endpoint matches a host, or an IP address in brackets, with or without a port.
var endpoint = regexp.MustCompile(`^(?:([\pL\pN_][\pL\pN._-]*)|\[([0-9A-Fa-f:.]+(?:%25[\pL\pN._-]+)?)\])(?::(\d+))?$`)

// parse reads an address, or reports that it is invalid. Its scheme and kind are known even then.
func parse(text string) (a address, ok bool) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found { // host:port, or several
		a.scheme = "redis"
		a.hosts, ok = endpoints(text, "")
		return a, ok
	}
	a.scheme, a.kind, _ = strings.Cut(scheme, "+")
	end := strings.IndexAny(rest+"/", "/?#")
	names, tail := rest[:end], rest[end:]
	at := strings.LastIndex(names, "@") + 1
	a.user, names = names[:at], names[at:]
	if strings.ContainsAny(tail, "#@") {
		return a, false // what precedes may be a part of a password, not a host
	}
	if strings.ContainsAny(strings.TrimSuffix(a.user, "@"), ",@") {
		return a, false // it may name another host: u:p@h1,u:p@h2
	}
	a.path, a.query, _ = strings.Cut(tail, "?")
	if a.scheme == "unix" {
		return a, names == "" && a.path != ""
	}
	a.path = strings.TrimPrefix(a.path, "/")
	port := "6379"
	if a.kind == "sentinel" {
		port = "26379"
	}
	a.hosts, ok = endpoints(names, port)
	query, err := url.ParseQuery(a.query)
	return a, ok && err == nil && !query.Has("addr") && !(query.Has("db") && a.path != "")
}

// endpoints returns hosts that are separated by commas, each with its port. port is the default;
// "": a host needs its own.
func endpoints(names, port string) (all []string, ok bool) {
	for name := range strings.SplitSeq(names, ",") {
		parts := endpoint.FindStringSubmatch(name)
		if parts == nil {
			return nil, false
		}
		host := cmp.Or(parts[1], strings.Replace(parts[2], "%25", "%", 1))
		if ip, err := netip.ParseAddr(host); parts[2] != "" && (err != nil || !ip.Is6()) {
			return nil, false
		}
		n, err := strconv.ParseUint(cmp.Or(parts[3], port), 10, 16)
		if err != nil || n == 0 {
			return nil, false
		}
		all = append(all, net.JoinHostPort(host, strconv.FormatUint(n, 10)))
	}
	return all, true
}

// url returns the address as one of go-redis, with only the first host.
func (a address) url(path, query string) string {
	host := ""
	if len(a.hosts) > 0 {
		host = strings.Replace(a.hosts[0], "%", "%25", 1)
	}
	return a.scheme + "://" + a.user + host + "/" + strings.TrimPrefix(path, "/") + "?" + query
}
