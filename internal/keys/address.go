package keys

import "net/netip"

// address.go finds the IPv4 address that an IPv6 address stands for, so that one client has one
// key.

// nat64 has the IPv4 addresses behind a NAT64 with the well-known prefix (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ipv4Bits is the length of the prefixes whose addresses end with an IPv4 address.
const ipv4Bits = 96

// Address returns an address without a zone. If it is an IPv6 address that ends with an IPv4
// address, mapped ("::ffff:192.0.2.1") or behind a NAT64 ("64:ff9b::192.0.2.1"), Address returns
// the IPv4 address.
func Address(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		bytes := a.As16()
		return netip.AddrFrom4([4]byte(bytes[ipv4Bits/8:]))
	}
	return a
}

// Network returns the addresses of a network as Address returns them: "10.0.0.0/8" for
// "::ffff:10.0.0.0/104". ok is false if the prefix is too short for an IPv4 network.
func Network(n netip.Prefix) (plain netip.Prefix, ok bool) {
	a := Address(n.Addr())
	switch {
	case !a.Is4() || n.Addr().Is4():
		return n, true
	case n.Bits() < ipv4Bits:
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, n.Bits()-ipv4Bits), true
}
