// Package hashtag knows which part of a key Redis Cluster, and a Ring of go-redis, go by.
package hashtag

import "strings"

// Of is the part of a key that decides its slot: what the first pair of braces holds, if that is anything, else the whole
// key.
func Of(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}
