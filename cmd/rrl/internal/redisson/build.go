package redisson

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/maven"
)

// Release is the Redisson of the demo unless another is chosen.
const Release = "4.7.0"

//go:embed pom.xml
var project []byte

//go:embed Demo.java
var program []byte

const mainClass = "Demo"

var releaseForm = regexp.MustCompile(`^(\d+)\.(\d+)\.\d+$`)

// Usable returns an error unless a release is one that reads and writes records as the Go client
// does without an option.
func Usable(release string) error {
	numbers := releaseForm.FindStringSubmatch(release)
	if numbers == nil {
		return fmt.Errorf("%q is not a release of Redisson, such as %s", release, Release)
	}
	major, _ := strconv.Atoi(numbers[1]) // digits
	minor, _ := strconv.Atoi(numbers[2])
	if major < 3 || major == 3 && minor < 17 {
		return errors.New("Redisson " + release + " is too old: 3.17.0 or later is needed")
	}
	return nil
}

// Missing returns an error that lists the programs that are missing, and how to install them. The
// redis-server is needed if server is set.
func Missing(ctx context.Context, server bool) error {
	missing := maven.Missing(ctx)
	if _, err := serverPath(); server && err != nil {
		missing = append(missing, "redis-server, 6.2 or later: in PATH (or use a Redis that runs, by --redis)")
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New("--java needs programs that are missing:\n  - " + strings.Join(missing, "\n  - ") +
		"\nDebian, Ubuntu: apt-get install default-jdk-headless maven redis-server" +
		"\nmacOS: brew install openjdk maven redis")
}

// Build returns the path of the jar for a release of Redisson. If it is not in the cache folder of
// the user, Maven builds it; progress then gets a few words for each file that Maven downloads.
func Build(ctx context.Context, release string, progress func(string)) (string, error) {
	sum := sha256.Sum256(slices.Concat(project, program))
	folder := filepath.Join(maven.Cache(), "demo-"+hex.EncodeToString(sum[:8]), release)
	jar := filepath.Join(folder, "demo.jar")
	if maven.Complete(jar, mainClass) {
		return jar, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	progress("")
	unlock, err := maven.Lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	work, err := os.MkdirTemp(folder, "building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	for name, content := range map[string][]byte{"pom.xml": project, "Demo.java": program} {
		if err := os.WriteFile(filepath.Join(work, name), content, 0o644); err != nil {
			return "", err
		}
	}
	out := &output{progress: progress}
	// -U: a download that failed is tried again
	err = maven.Package(ctx, work, out, "-U", "-Dredisson.version="+release)
	built := filepath.Join(work, "target", "demo.jar")
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", fmt.Errorf("mvn: %w: %s", err, out.failure)
	case !maven.Complete(built, mainClass):
		return "", errors.New("mvn reported no error, but jars are missing (is there a blank in the path of its repository?)")
	}
	return jar, os.Rename(built, jar)
}

// An output is the output of Maven: it counts downloads, and keeps the first error.
type output struct {
	progress func(string)
	part     []byte // of a line
	files    int
	bytes    float64
	failure  string
}

var downloaded = regexp.MustCompile(`Downloaded from .* \(([\d.]+) (B|kB|MB) at`)

func (o *output) Write(b []byte) (int, error) {
	o.part = append(o.part, b...)
	for {
		line, rest, whole := bytes.Cut(o.part, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		o.part = rest
		if found := downloaded.FindSubmatch(line); found != nil {
			size, _ := strconv.ParseFloat(string(found[1]), 64) // 0 if Maven writes it in another way
			o.files++
			o.bytes += size * map[string]float64{"B": 1, "kB": 1e3, "MB": 1e6}[string(found[2])]
			o.progress(fmt.Sprintf("downloaded %d files, %.1f MB", o.files, o.bytes/1e6))
		} else if text, failed := bytes.CutPrefix(line, []byte("[ERROR] ")); failed && o.failure == "" {
			o.failure = string(text)
		}
	}
}
