package serverinfo

import "testing"

func TestServer(t *testing.T) {
	for info, want := range map[string]string{
		"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n":                         "Redis 7.0.15",
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n\r\n": "Valkey 9.1.2",
		"# Clients\r\nconnected_clients:1\r\n":                                                  "",
		"":                                                                                      "",
	} {
		if got := Server(Fields(info)); got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
}
