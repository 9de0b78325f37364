package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func from(remote string, header http.Header) *http.Request {
	return &http.Request{RemoteAddr: remote, Header: header}
}

func proxies(prefixes ...string) (trusted []netip.Prefix) {
	for _, p := range prefixes {
		trusted = append(trusted, netip.MustParsePrefix(p))
	}
	return trusted
}

func TestClientAddr(t *testing.T) {
	const xff, fwd = "X-Forwarded-For", "Forwarded"
	trusted := proxies("10.0.0.0/8", "fd00::/8")
	for _, c := range []struct {
		name, remote string
		read         string // the header that the guard reads
		header       http.Header
		want         string
		known        bool
	}{
		{"peer", "192.0.2.1:1234", xff, nil, "192.0.2.1", true},
		{"IPv6 peer", "[2001:db8::1]:1234", xff, nil, "2001:db8::1", true},
		{"IPv6 peer with zone", "[fe80::1%eth0]:1234", xff, nil, "fe80::1", true},
		{"IPv4 mapped into IPv6", "[::ffff:192.0.2.1]:1234", xff, nil, "192.0.2.1", true},
		{"no address", "@", xff, nil, "invalid IP", false},
		{"header of a peer that is no proxy", "192.0.2.1:1234", xff, http.Header{xff: {"10.1.1.1"}}, "192.0.2.1", true},

		{"one proxy", "10.0.0.1:1", xff, http.Header{xff: {"192.0.2.1"}}, "192.0.2.1", true},
		{"two proxies", "10.0.0.1:1", xff, http.Header{xff: {"192.0.2.1, 10.0.0.2"}}, "192.0.2.1", true},
		{"two lines", "10.0.0.1:1", xff, http.Header{xff: {"192.0.2.1", "10.0.0.2"}}, "192.0.2.1", true},
		{"made up by the client", "10.0.0.1:1", xff, http.Header{xff: {"198.51.100.9, 192.0.2.1"}}, "192.0.2.1", true},
		{
			"proxy made up by the client",
			"10.0.0.1:1",
			xff,
			http.Header{xff: {"10.9.9.9, 192.0.2.1"}},
			"192.0.2.1",
			true,
		},
		{
			"line made up by the client",
			"10.0.0.1:1",
			xff,
			http.Header{xff: {"nonsense, \"", "192.0.2.1"}},
			"192.0.2.1",
			true,
		},
		{"proxy that says nothing", "10.0.0.1:1", xff, nil, "10.0.0.1", false},
		{"proxy with an empty header", "10.0.0.1:1", xff, http.Header{xff: {"", " , "}}, "10.0.0.1", false},
		{"request from inside", "10.0.0.1:1", xff, http.Header{xff: {"10.0.0.7"}}, "10.0.0.7", true},
		{"port", "10.0.0.1:1", xff, http.Header{xff: {"192.0.2.1:8080"}}, "192.0.2.1", true},
		{"IPv6", "[fd00::1]:1", xff, http.Header{xff: {"2001:db8::1"}}, "2001:db8::1", true},
		{"IPv6 with port", "10.0.0.1:1", xff, http.Header{xff: {"[2001:db8::1]:80"}}, "2001:db8::1", true},
		{"IPv6 in brackets", "10.0.0.1:1", xff, http.Header{xff: {"[2001:db8::1]"}}, "2001:db8::1", true},
		{"mapped proxy", "[::ffff:10.0.0.1]:1", xff, http.Header{xff: {"192.0.2.1"}}, "192.0.2.1", true},
		{"unreadable", "10.0.0.1:1", xff, http.Header{xff: {"192.0.2.1, unknown"}}, "10.0.0.1", false},
		{"unreadable behind a proxy", "10.0.0.1:1", xff, http.Header{xff: {"_x, 10.0.0.2"}}, "10.0.0.2", false},
		{
			"empty elements",
			"10.0.0.1:1",
			xff,
			http.Header{xff: {"198.51.100.9", "192.0.2.1,, ", ""}},
			"192.0.2.1",
			true,
		},
		{
			"the other header is not looked at",
			"10.0.0.1:1",
			xff,
			http.Header{fwd: {"for=192.0.2.1"}},
			"10.0.0.1",
			false,
		},
		{
			"a header of the proxy's own", "10.0.0.1:1", "X-Real-Ip", http.Header{"X-Real-Ip": {"192.0.2.1"}},
			"192.0.2.1", true,
		},

		{"Forwarded", "10.0.0.1:1", fwd, http.Header{fwd: {"for=192.0.2.1"}}, "192.0.2.1", true},
		{"any case", "10.0.0.1:1", "forwarded", http.Header{fwd: {"For=192.0.2.1"}}, "192.0.2.1", true},
		{
			"more parameters", "10.0.0.1:1", fwd, http.Header{fwd: {"proto=http; for=192.0.2.1 ;by=10.0.0.1"}},
			"192.0.2.1",
			true,
		},
		{"quotes and port", "10.0.0.1:1", fwd, http.Header{fwd: {`for="192.0.2.1:4711"`}}, "192.0.2.1", true},
		{
			"empty elements of Forwarded", "10.0.0.1:1", fwd, http.Header{fwd: {"for=198.51.100.9,for=192.0.2.1, ,"}},
			"192.0.2.1", true,
		},
		{"hidden port", "10.0.0.1:1", fwd, http.Header{fwd: {`for="192.0.2.1:_a.b-c_1"`}}, "192.0.2.1", true},
		{"hidden port of IPv6", "10.0.0.1:1", fwd, http.Header{fwd: {`for="[2001:db8::1]:_x"`}}, "2001:db8::1", true},
		{
			"hidden port behind a port",
			"10.0.0.1:1",
			fwd,
			http.Header{fwd: {`for="192.0.2.1:80:_x"`}},
			"10.0.0.1",
			false,
		},
		{
			"hidden port without brackets",
			"10.0.0.1:1",
			fwd,
			http.Header{fwd: {`for="2001:db8::1:_x"`}},
			"10.0.0.1",
			false,
		},
		{"hidden port that is none", "10.0.0.1:1", fwd, http.Header{fwd: {`for="192.0.2.1:_"`}}, "10.0.0.1", false},
		{"hidden port with signs", "10.0.0.1:1", fwd, http.Header{fwd: {`for="192.0.2.1:_a/b"`}}, "10.0.0.1", false},
		{"hidden port of nobody", "10.0.0.1:1", fwd, http.Header{fwd: {`for=":_a"`}}, "10.0.0.1", false},
		{
			"IPv6 in Forwarded", "10.0.0.1:1", fwd, http.Header{fwd: {`for="[2001:db8:cafe::17]:4711"`}},
			"2001:db8:cafe::17",
			true,
		},
		{"IPv6 without port", "10.0.0.1:1", fwd, http.Header{fwd: {`for="[2001:db8::1]"`}}, "2001:db8::1", true},
		{
			"separators in quotes", "10.0.0.1:1", fwd, http.Header{fwd: {`for=192.0.2.1;host="a,b;for=10.1.1.1"`}},
			"192.0.2.1",
			true,
		},
		{
			"escaped quote",
			"10.0.0.1:1",
			fwd,
			http.Header{fwd: {`for=192.0.2.1;host="a\",for=10.1.1.1"`}},
			"192.0.2.1",
			true,
		},
		{
			"two proxies in Forwarded",
			"10.0.0.1:1",
			fwd,
			http.Header{fwd: {"for=192.0.2.1, for=10.0.0.2"}},
			"192.0.2.1",
			true,
		},
		{"spoofed Forwarded", "10.0.0.1:1", fwd, http.Header{fwd: {"for=10.3.3.3,for=192.0.2.1"}}, "192.0.2.1", true},
		{
			"quote left open by the client", "10.0.0.1:1", fwd,
			http.Header{fwd: {`for="10.3.3.3, for=192.0.2.1;proto=https`}},
			"192.0.2.1", true,
		},
		{
			"quote left open before quotes", "10.0.0.1:1", fwd, http.Header{fwd: {`for="x, for="[2001:db8::1]:80"`}},
			"2001:db8::1", true,
		},
		{"hidden", "10.0.0.1:1", fwd, http.Header{fwd: {"for=_hidden"}}, "10.0.0.1", false},
		{"unknown", "10.0.0.1:1", fwd, http.Header{fwd: {"for=unknown"}}, "10.0.0.1", false},
		{"no for", "10.0.0.1:1", fwd, http.Header{fwd: {"for=192.0.2.1, proto=https"}}, "10.0.0.1", false},
		{"for twice", "10.0.0.1:1", fwd, http.Header{fwd: {"for=192.0.2.1;for=192.0.2.2"}}, "10.0.0.1", false},
		{"open quote", "10.0.0.1:1", fwd, http.Header{fwd: {`for="192.0.2.1`}}, "10.0.0.1", false},
		{"empty quotes", "10.0.0.1:1", fwd, http.Header{fwd: {`for=""`}}, "10.0.0.1", false},
		{
			"the other header is not looked at, either",
			"10.0.0.1:1",
			fwd,
			http.Header{xff: {"192.0.2.1"}},
			"10.0.0.1",
			false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, known := ClientAddr{Trusted: trusted, Header: c.read}.Addr(from(c.remote, c.header))
			if addr.String() != c.want || known != c.known {
				t.Errorf("%v, known %v; want %v, %v", addr, known, c.want, c.known)
			}
		})
	}
}

func TestProxyOnAUnixSocket(t *testing.T) {
	forwarded := http.Header{"X-Forwarded-For": {"198.51.100.9, 192.0.2.1"}}
	for _, c := range []struct {
		remote string
		trust  bool
		header http.Header
		key    string
	}{
		{"@", true, forwarded, "192.0.2.1"},
		{"", true, forwarded, "192.0.2.1"},
		{"/run/proxy", true, forwarded, "192.0.2.1"},
		{"@", true, http.Header{"X-Forwarded-For": {"192.168.0.1"}}, "192.168.0.1"},
		{"@", true, nil, "unknown"},
		{"@", true, http.Header{"X-Forwarded-For": {"nonsense"}}, "unknown"},
		{"@", false, forwarded, "unknown"},
		{"nonsense", true, forwarded, "unknown"},
		{"198.51.100.3:80", true, forwarded, "198.51.100.3"},
	} {
		addr, r := ClientAddr{TrustUnix: c.trust}, from(c.remote, c.header)
		if key := addr.Key(r); key != c.key {
			t.Errorf("%+v: %q", c, key)
		}
		if private := addr.Private(r); private != (c.key == "192.168.0.1") {
			t.Errorf("%+v: private %v", c, private)
		}
	}
}

func TestClientKey(t *testing.T) {
	for _, c := range []struct {
		remote string
		bits   int
		want   string
	}{
		{"192.0.2.1:80", 0, "192.0.2.1"},
		{"[2001:db8:1:2:3:4:5:6]:80", 0, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:ffff::1]:80", 0, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:3:4:5:6]:80", 48, "2001:db8:1::/48"},
		{"[2001:db8:1:2:3:4:5:6]:80", 128, "2001:db8:1:2:3:4:5:6/128"},
		{"[2001:db8:1:2:3:4:5:6]:80", 129, "2001:db8:1:2::/64"},
		{"[::ffff:192.0.2.1]:80", 0, "192.0.2.1"},
		{"[64:ff9b::192.0.2.1]:80", 0, "192.0.2.1"},
		{"[64:ff9b:1::192.0.2.1]:80", 0, "64:ff9b:1::/64"},
		{"/run/socket", 0, "unknown"},
	} {
		if key := (ClientAddr{IPv6Bits: c.bits}).Key(from(c.remote, nil)); key != c.want {
			t.Errorf("%s, %d bits: %q, not %q", c.remote, c.bits, key, c.want)
		}
	}
}

// A network of IPv4 addresses is one in each way to write it, and so is a proxy in it.
func TestTrustedNetworksOfIPv4Addresses(t *testing.T) {
	for _, network := range []string{"10.0.0.0/8", "::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104"} {
		c := ClientAddr{Trusted: proxies("2001:db8::/32", network)}
		for _, proxy := range []string{
			"10.0.0.1:1",
			"[::ffff:10.0.0.1]:1",
			"[64:ff9b::10.0.0.1]:1",
			"[2001:db8::1]:1",
		} {
			r := from(proxy, http.Header{"X-Forwarded-For": {"192.0.2.1, 64:ff9b::192.0.2.2, ::ffff:10.0.0.2"}})
			if addr, known := c.Addr(r); !known || addr.String() != "192.0.2.2" {
				t.Errorf("%s trusted, from %s: %v, known %v", network, proxy, addr, known)
			}
		}
		for _, other := range []string{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", "[64:ff9b::192.0.2.1]:1"} {
			if key := c.Key(from(other, http.Header{"X-Forwarded-For": {"192.0.2.2"}})); key != "192.0.2.1" {
				t.Errorf("%s trusted, from %s: %s", network, other, key)
			}
		}
	}
}

// All IPv6 addresses are no IPv4 addresses.
func TestTrustedIPv6NetworksHaveNoIPv4Addresses(t *testing.T) {
	c := ClientAddr{Trusted: proxies("::/0")}
	for _, peer := range []string{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", "[64:ff9b::192.0.2.1]:1"} {
		if key := c.Key(from(peer, http.Header{"X-Forwarded-For": {"192.0.2.2"}})); key != "192.0.2.1" {
			t.Errorf("from %s: %s", peer, key)
		}
	}
}

// A network that was meant to be one of IPv4 addresses, but is not, trusts nobody in silence.
func TestTrustedNetworkThatMixesAddressesPanics(t *testing.T) {
	for _, network := range []string{"::ffff:10.0.0.0/8", "::ffff:0:0/95", "64:ff9b::/64"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", network)
				}
			}()
			ClientAddr{Trusted: proxies("192.0.2.0/24", network)}.Addr(from("192.0.2.1:1", nil))
		}()
	}
}

func TestPrivateClient(t *testing.T) {
	c := ClientAddr{Trusted: proxies("10.0.0.0/8")}
	for _, r := range []struct {
		remote, forwarded string
		private           bool
	}{
		{"127.0.0.1:80", "", true},
		{"[::1]:80", "", true},
		{"192.168.1.1:80", "", true},
		{"[fd12::1]:80", "", true},
		{"169.254.1.1:80", "", true},
		{"10.0.0.1:80", "", false}, // a proxy does not send the client's address
		{"10.0.0.1:80", " ,", false},
		{"10.0.0.1:80", "172.16.0.5", true},
		{"192.0.2.1:80", "10.0.0.7", false},
		{"10.0.0.1:80", "192.0.2.1", false},
		{"10.0.0.1:80", "10.0.0.7, 192.0.2.1", false},
		// The proxy's address is private, but the client's is unknown.
		{"10.0.0.1:80", "127.0.0.1, nonsense", false},
		{"@", "", false},
	} {
		header := http.Header{}
		if r.forwarded != "" {
			header.Set("X-Forwarded-For", r.forwarded)
		}
		if got := c.Private(from(r.remote, header)); got != r.private {
			t.Errorf("%s for %q: private %v", r.remote, r.forwarded, got)
		}
	}
}

// Whatever a client sends, the proxy appends the address that it saw, and that address is counted.
func FuzzClientAddr(f *testing.F) {
	for _, seed := range []string{
		"", "10.0.0.1", `for="`, `for="\`, `"`, `\"`, "for=10.0.0.1;", `for=10.0.0.1, host="`, "a=b;;,", "[::1",
		`,"\\",`,
	} {
		f.Add(seed)
	}
	const client = "198.51.100.7"
	f.Fuzz(func(t *testing.T, sent string) {
		for _, c := range []struct{ header, added string }{
			{"X-Forwarded-For", client},
			{"Forwarded", "for=" + client},
			{"Forwarded", `for="` + client + `:80";proto=https;host="a,b"`},
			{"Forwarded", `by="[fd00::1]";for=` + client},
		} {
			addr := ClientAddr{Trusted: proxies("10.0.0.0/8"), Header: c.header}
			for _, lines := range [][]string{{sent + ", " + c.added}, {sent, c.added}} {
				got, known := addr.Addr(from("10.0.0.1:1", http.Header{c.header: lines}))
				if !known || got.String() != client {
					t.Errorf("%s: %q: %v, known %v", c.header, lines, got, known)
				}
			}
			// A header that only the client wrote is parsed without a panic, and yields either no
			// known address, or a valid one.
			got, known := addr.Addr(from("10.0.0.1:1", http.Header{c.header: {sent}}))
			if !got.IsValid() || !known && !addr.trusts(got) || got.Zone() != "" || got.Is4In6() {
				t.Errorf("%s: %q: %v, known %v", c.header, sent, got, known)
			}
		}
	})
}

// Keys of clients are parts of names, so the only ones that may have colons are IPv6 networks,
// which end with their bits.
func FuzzClientKey(f *testing.F) {
	f.Add("[::1]:80")
	f.Add("1.2.3.4")
	f.Fuzz(func(t *testing.T, remote string) {
		key := ClientAddr{}.Key(from(remote, nil))
		if strings.ContainsAny(key, "{} %=") || strings.Contains(key, ":") && !strings.HasSuffix(key, "/64") {
			t.Errorf("%q: %q", remote, key)
		}
	})
}
