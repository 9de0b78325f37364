package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
)

// client.go finds the client of a request. It trusts nothing that the client itself could have written.

// ClientAddr finds the address of the client of a request. The zero value takes the peer of the connection.
type ClientAddr struct {
	// Trusted are the addresses of our own proxies. Only what they add to the header is trusted: it is read from its
	// end, where the nearest proxy writes, to the first address that is not trusted, which is the client's.
	Trusted []netip.Prefix
	// TrustUnix trusts all peers of unix sockets, which have no address: our own proxy on this host. Without it their
	// requests count as those of one unknown client.
	TrustUnix bool
	// Header is the field that the proxies write: "X-Forwarded-For", the default, or "Forwarded" (RFC 7239). The other
	// one is not read, since a client could send it through them.
	Header string
	// IPv6Bits is the length of the IPv6 prefix that distinguishes clients; 0 means 64, since most have a whole /64
	// network.
	IPv6Bits int
}

// Addr returns the client's address; an IPv4 address is never mapped into IPv6, and there is no zone. known is false
// where a trusted proxy sent no header, or an invalid one: the address is then the last valid one, if any, which is a
// proxy's.
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

// Key returns the client's address as a key: "192.0.2.1", or "2001:db8::/64" for IPv6. Clients without one share
// "unknown".
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

// Private is a Rule: true where the client's address is known and belongs to a private network, to this host or to the
// link. A request that a trusted proxy sends without a header is limited, though the proxy's own address is private:
// its client is unknown.
func (c ClientAddr) Private(r *http.Request) bool {
	addr, known := c.Addr(r)
	return known && (addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast())
}

func (c ClientAddr) trusts(addr netip.Addr) bool {
	for _, prefix := range c.Trusted {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// unix reports whether the peer of a connection has the address of a unix socket: none, or one with a name.
func unix(remote string) bool {
	return remote == "" || remote[0] == '@' || remote[0] == '/'
}

// parseNode parses an address, with or without a port, and in brackets or not where it is an IPv6 one. The port may be
// hidden ("_x", as in RFC 7239).
func parseNode(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if colon := strings.LastIndex(text, ":_"); colon >= 0 && hidden(text[colon+1:]) {
		host := text[:colon]
		addr, ok := parseHost(host)
		return addr, ok && (strings.HasSuffix(host, "]") || !strings.Contains(host, ":"))
	}
	if addr, ok := parseHost(text); ok {
		return addr, true
	}
	both, err := netip.ParseAddrPort(text)
	return both.Addr().Unmap().WithZone(""), err == nil
}

// parseHost parses an address without a port.
func parseHost(text string) (netip.Addr, bool) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if text, ok = strings.CutSuffix(inner, "]"); !ok {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err == nil
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

// cutForwarded takes the last element off a line of Forwarded. It reads backwards: text of the client precedes the text
// of the proxies, and an open quote in it must not include theirs.
func cutForwarded(line string) (element, rest string, more bool) {
	if comma := lastOutside(line, ','); comma >= 0 {
		return line[comma+1:], line[:comma], true
	}
	return line, "", false
}

// forwardedFor returns the parameter "for" of an element of Forwarded; "" if it is missing, present twice or invalid.
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

// unquote removes the quotes of a value, if it has any. No address needs an escape in them, so an escape is an error.
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
