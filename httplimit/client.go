package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// client.go finds the client of a request. It does not trust text that the client itself could have
// written.

// ClientAddr finds the address of the client of a request. The zero value uses the address of the
// connection's peer.
type ClientAddr struct {
	// Trusted has the addresses of our own proxies. Only addresses that these proxies add to the
	// header field are trusted. The field is read from its end, where the nearest proxy writes. The
	// first address that is not in Trusted is the client's address. An IPv6 network of IPv4
	// addresses counts as the IPv4 network: ::ffff:10.0.0.0/104 is 10.0.0.0/8. If its prefix is
	// shorter than 96 bits, such as ::ffff:10.0.0.0/8, Addr and Key panic, and rules.Watch returns
	// an error.
	Trusted []netip.Prefix
	// TrustUnix trusts all peers of unix sockets. These peers have no address: they are our own
	// proxy on this host. If TrustUnix is false, their requests count as requests of one unknown
	// client.
	TrustUnix bool
	// Header is the header field that the proxies write; "" means "X-Forwarded-For". "Forwarded" is
	// parsed as in RFC 7239, any other field like X-Forwarded-For. Only this field is read, because
	// the proxies could forward a field that the client wrote.
	Header string
	// IPv6Bits is the length of the IPv6 prefix that distinguishes clients. 0 means 64, because
	// most clients have a whole /64 network.
	IPv6Bits int
}

// Addr returns the client's address, without a zone. Where an IPv6 address stands for an IPv4
// address, mapped (::ffff:192.0.2.1) or behind a NAT64 (64:ff9b::192.0.2.1), Addr returns the IPv4
// address. known is false if a trusted proxy sent no header field or an invalid one. The address is
// then the last valid address that was read, which is the address of a proxy. If no valid address
// was read, addr is the zero Addr. known is also false if the peer has no address and is not
// trusted.
func (c ClientAddr) Addr(r *http.Request) (addr netip.Addr, known bool) {
	addr, known = parseNode(r.RemoteAddr)
	if !known && !(c.TrustUnix && unix(r.RemoteAddr)) || known && !c.trusts(addr) {
		return addr, known
	}
	cut, read := cutForwardedFor, strings.TrimSpace
	name := "X-Forwarded-For"
	if strings.EqualFold(c.Header, "Forwarded") {
		cut, read, name = cutForwarded, forwardedFor, "Forwarded"
	} else if c.Header != "" {
		name = c.Header
	}
	known = false
	lines := r.Header.Values(name)
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var element string
			element, rest, more = cut(rest)
			if strings.TrimSpace(element) == "" {
				continue // lists may have empty elements, which are ignored
			}
			hop, ok := parseNode(read(element))
			if !ok {
				return addr, false
			}
			addr, known = hop, true
			if !c.trusts(addr) {
				return addr, true
			}
		}
	}
	return addr, known
}

// Key returns the address that Addr returns as a key: "192.0.2.1", or "2001:db8::/64" for IPv6. If
// Addr returns none, the key is "unknown".
func (c ClientAddr) Key(r *http.Request) string {
	addr, _ := c.Addr(r)
	if !addr.IsValid() {
		return "unknown"
	}
	if addr.Is4() {
		return addr.String()
	}
	bits := c.IPv6Bits
	if bits <= 0 || bits > 128 {
		bits = 64
	}
	return netip.PrefixFrom(addr, bits).Masked().String()
}

// Private is a Rule. It is true if the client's address is known, and is a private, loopback or
// link-local address. If a trusted proxy sends a request without the header field, the client is
// unknown. The request is then limited, even if the address of the proxy is private.
func (c ClientAddr) Private(r *http.Request) bool {
	addr, known := c.Addr(r)
	return known && (addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast())
}

func (c ClientAddr) trusts(addr netip.Addr) (trusted bool) {
	for _, n := range c.Trusted {
		network, ok := keys.Network(n)
		if !ok {
			panic(fmt.Sprintf("httplimit: ClientAddr.Trusted: %v has IPv4 and IPv6 addresses; "+
				"write an IPv4 network as 10.0.0.0/8", n))
		}
		trusted = trusted || network.Contains(addr)
	}
	return trusted
}

// unix reports whether the peer of a connection has the address of a unix socket: no address, or a
// name.
func unix(remote string) bool {
	return remote == "" || remote[0] == '@' || remote[0] == '/'
}

// parseNode parses an address, with or without a port. An IPv6 address may be in brackets. The port
// may be hidden ("_x", as in RFC 7239).
func parseNode(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if colon := strings.LastIndex(text, ":_"); colon >= 0 && hidden(text[colon+1:]) {
		host := text[:colon]
		addr, ok := parseHost(host)
		return addr, ok && (strings.HasSuffix(host, "]") || !strings.Contains(host, ":"))
	}
	if !hasPort(text) {
		return parseHost(text)
	}
	both, err := netip.ParseAddrPort(text)
	return keys.Address(both.Addr()), err == nil
}

// hasPort reports whether an address has a port. An IPv6 address without brackets has none, and at
// least two colons.
func hasPort(text string) bool {
	return strings.Count(text, ":") == 1 || strings.HasPrefix(text, "[") && !strings.HasSuffix(text, "]")
}

// parseHost parses an address without a port.
func parseHost(text string) (netip.Addr, bool) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if text, ok = strings.CutSuffix(inner, "]"); !ok {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(text)
	return keys.Address(addr), err == nil
}

// hidden reports whether a port is an obfuscated one of RFC 7239: an underscore and a name.
func hidden(port string) bool {
	return len(port) > 1 && !strings.ContainsFunc(port, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '.' && c != '_' && c != '-'
	})
}

// cutForwardedFor takes the last element off a line of X-Forwarded-For.
func cutForwardedFor(line string) (element, rest string, more bool) {
	if comma := strings.LastIndexByte(line, ','); comma >= 0 {
		return line[comma+1:], line[:comma], true
	}
	return line, "", false
}

// cutForwarded takes the last element off a line of Forwarded. It reads backwards, because the text
// of the client comes before the text of the proxies: a quote that the client leaves open must not
// include the text of the proxies.
func cutForwarded(line string) (element, rest string, more bool) {
	if comma := lastOutside(line, ','); comma >= 0 {
		return line[comma+1:], line[:comma], true
	}
	return line, "", false
}

// forwardedFor returns the parameter "for" of an element of Forwarded; "" if it is missing, present
// twice or invalid.
func forwardedFor(element string) (node string) {
	for last := false; !last; {
		pair := element
		semicolon := lastOutside(element, ';')
		if last = semicolon < 0; !last {
			pair, element = element[semicolon+1:], element[:semicolon]
		}
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !strings.EqualFold(name, "for") {
			continue
		}
		value, ok = unquote(value)
		if !ok || node != "" {
			return ""
		}
		node = value
	}
	return node
}

// lastOutside returns the index of the last separator outside quoted text, read from the end.
func lastOutside(text string, separator byte) int {
	quoted := false
	for i := len(text) - 1; i >= 0; i-- {
		switch {
		case text[i] == '"' && !escaped(text, i):
			quoted = !quoted
		case text[i] == separator && !quoted:
			return i
		}
	}
	return -1
}

// escaped reports whether an odd number of backslashes precedes an index.
func escaped(text string, at int) bool {
	n := 0
	for at-n > 0 && text[at-n-1] == '\\' {
		n++
	}
	return n%2 == 1
}

// unquote removes the quotes of a value, if it has any. No address needs an escape sequence, so an
// escape sequence is an error.
func unquote(value string) (string, bool) {
	inner, opened := strings.CutPrefix(value, `"`)
	if opened {
		var closed bool
		if inner, closed = strings.CutSuffix(inner, `"`); !closed {
			return "", false
		}
	}
	return inner, inner != "" && !strings.ContainsAny(inner, `"\`)
}
