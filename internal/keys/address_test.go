package keys

import (
	"net/netip"
	"testing"
)

func TestAddressesAreIPv4WhereTheyStandForIt(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "64:ff9b::192.0.2.1": "192.0.2.1",
		"64:ff9b::c000:201": "192.0.2.1", "64:ff9b::192.0.2.1%eth0": "192.0.2.1", "fe80::1%eth0": "fe80::1",
		"64:ff9b:1::192.0.2.1": "64:ff9b:1::c000:201", "64:ff9b::1:0:0": "64:ff9b::1:0:0", "::192.0.2.1": "::c000:201",
	} {
		if got := Address(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
	if Address(netip.Addr{}).IsValid() {
		t.Error("no address has become one")
	}
}

func TestNetworksAreIPv4WhereTheyStandForIt(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.0/8", "::ffff:10.0.0.0/104": "10.0.0.0/8", "64:ff9b::10.0.0.0/104": "10.0.0.0/8",
		"::ffff:0:0/96": "0.0.0.0/0", "::ffff:192.0.2.1/128": "192.0.2.1/32", "2001:db8::/32": "2001:db8::/32",
		"::/0": "::/0", "::ffff:10.0.0.0/95": "", "::ffff:10.0.0.0/8": "", "64:ff9b::/64": "",
	} {
		if got, ok := Network(netip.MustParsePrefix(in)); ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: %v, %v, want %s", in, got, ok, want)
		}
	}
}
