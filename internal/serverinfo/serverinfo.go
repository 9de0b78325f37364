// Package serverinfo reads the reply of INFO. It makes no calls.
package serverinfo

import "strings"

// Fields returns the fields of a reply.
func Fields(info string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// Server returns the product and version of a server, such as "Redis 7.0.15"; "" if the fields do
// not have it. Valkey reports in redis_version the release of Redis with which it is compatible.
func Server(fields map[string]string) string {
	if version := fields["valkey_version"]; version != "" {
		return "Valkey " + version
	}
	if version := fields["redis_version"]; version != "" {
		return "Redis " + version
	}
	return ""
}
