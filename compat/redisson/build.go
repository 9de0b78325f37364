package redisson

// Building the harness: one thin jar a version, in the user's cache folder, in a folder named
// after a hash of the sources. All versions that are missing are built by one Maven run: Maven's
// local repository is not safe against several processes, but a run may use several threads.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/maven"
)

const (
	install       = "apt-get install openjdk-17-jdk-headless maven"
	buildAttempts = 3
	mainClass     = "rratelimiter.compat.Harness"
)

var (
	versionForm = regexp.MustCompile(`^[0-9][0-9A-Za-z.-]*$`)
	// orphans are releases whose parent POM is missing at Maven Central, each with the release
	// whose parent, which tells the versions of what Redisson needs, stands in for it.
	orphans = map[string]string{"3.24.0": "3.24.1"}
	// built remembers by version which jars this process has seen complete.
	built sync.Map
)

// Build makes the harness for the given versions of Redisson, or for all Versions. What is there
// already, from the same sources, is not built again. Processes that build at the same time wait
// for each other. The first build on a machine downloads 30 MB for a version, less for each more.
func Build(ctx context.Context, versions ...string) error {
	if len(versions) == 0 {
		versions = Versions
	}
	for _, version := range versions {
		if !versionForm.MatchString(version) {
			return fmt.Errorf("redisson: %q is no version", version)
		}
	}
	sources, err := sourceFolder()
	if err != nil {
		return err
	}
	folder, err := outputFolder(sources)
	if err != nil {
		return err
	}
	if len(missing(folder, versions)) == 0 {
		return nil
	}
	if programs := maven.Missing(ctx); len(programs) > 0 {
		return fmt.Errorf("redisson: real Redisson needs %s: %s", strings.Join(programs, "; "), install)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("redisson: %w", err)
	}
	unlock, err := maven.Lock(ctx)
	if err != nil {
		return fmt.Errorf("redisson: wait for another build: %w", err)
	}
	defer unlock()

	var output string
	for attempt := 1; attempt <= buildAttempts; attempt++ {
		todo := missing(folder, versions)
		if len(todo) == 0 {
			return nil
		}
		if attempt > 1 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(attempt) * time.Second):
			}
		}
		if output, err = buildTogether(ctx, sources, folder, todo, attempt > 1); err != nil && ctx.Err() != nil {
			return fmt.Errorf("redisson: build %s: %w", strings.Join(todo, ", "), ctx.Err())
		}
	}
	if todo := missing(folder, versions); len(todo) > 0 {
		if err == nil {
			err = errors.New("no error by Maven, but the jars are not complete (a blank in the path of its repository?)")
		}
		return fmt.Errorf("redisson: build %s: %w\n%s", strings.Join(todo, ", "), err, output)
	}
	return nil
}

// Jar builds one version where needed and tells where its jar is. It runs with java -jar.
func Jar(ctx context.Context, version string) (string, error) {
	if jar, ok := built.Load(version); ok {
		return jar.(string), nil
	}
	if err := Build(ctx, version); err != nil {
		return "", err
	}
	jar, ok := built.Load(version)
	if !ok {
		return "", fmt.Errorf("redisson: %s was not built", version)
	}
	return jar.(string), nil
}

// missing returns the versions whose jar is not there, or not of these sources, or points to jars
// that have left the Maven repository.
func missing(folder string, versions []string) []string {
	var todo []string
	for _, version := range versions {
		jar := filepath.Join(folder, version, "harness.jar")
		if maven.Complete(jar, mainClass) {
			built.Store(version, jar)
		} else if !slices.Contains(todo, version) {
			todo = append(todo, version)
		}
	}
	return todo
}

// buildTogether builds versions in one run, each a module of a project made for the occasion, and
// puts the jars in their places. Its output comes back for the case that something is missing then.
func buildTogether(ctx context.Context, sources, folder string, versions []string, again bool) (string, error) {
	work, err := os.MkdirTemp(folder, "building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	pom, err := os.ReadFile(filepath.Join(sources, "pom.xml"))
	if err != nil {
		return "", err
	}
	var modules strings.Builder
	for _, version := range versions {
		module := setProperty(pom, "redisson.version", version)
		module = setProperty(module, "harness.dir", sources)
		module = setProperty(module, "harness.out", filepath.Join(work, "out"))
		if err := os.WriteFile(filepath.Join(work, version+".xml"), module, 0o644); err != nil {
			return "", err
		}
		fmt.Fprintf(&modules, "    <module>%s.xml</module>\n", version)
		if other, ok := orphans[version]; ok {
			parent := []byte(fmt.Sprintf(standIn, version, other))
			if err := os.WriteFile(filepath.Join(work, version+"-parent.xml"), parent, 0o644); err != nil {
				return "", err
			}
			fmt.Fprintf(&modules, "    <module>%s-parent.xml</module>\n", version)
		}
	}
	all := "<project>\n  <modelVersion>4.0.0</modelVersion>\n  <groupId>com.github.rratelimiter</groupId>\n" +
		"  <artifactId>harnesses</artifactId>\n  <version>1</version>\n  <packaging>pom</packaging>\n" +
		"  <modules>\n" + modules.String() + "  </modules>\n</project>\n"
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(all), 0o644); err != nil {
		return "", err
	}

	args := []string{"-q", "-T", "4", "--fail-at-end"}
	if again {
		args = append(args, "-U") // or a download that failed is not tried again
	}
	output := &maven.Tail{Max: 16 << 10}
	err = maven.Package(ctx, work, output, args...)
	for _, version := range versions {
		jar := filepath.Join(work, "out", version, "harness.jar")
		if !maven.Complete(jar, mainClass) {
			continue
		}
		place := filepath.Join(folder, version)
		if moveErr := os.MkdirAll(place, 0o755); moveErr != nil {
			return output.String(), moveErr
		}
		if moveErr := os.Rename(jar, filepath.Join(place, "harness.jar")); moveErr != nil {
			return output.String(), moveErr
		}
	}
	return output.String(), err
}

// standIn is a parent POM of one release that has the dependencies of another's.
const standIn = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.redisson</groupId>
  <artifactId>redisson-parent</artifactId>
  <version>%s</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.redisson</groupId>
        <artifactId>redisson-parent</artifactId>
        <version>%s</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
</project>
`

// setProperty changes the value of a property in the text of a pom.
func setProperty(pom []byte, name, value string) []byte {
	begin := []byte("<" + name + ">")
	before, rest, ok := bytes.Cut(pom, begin)
	if !ok {
		return pom
	}
	_, after, ok := bytes.Cut(rest, []byte("</"+name+">"))
	if !ok {
		return pom
	}
	escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(value)
	return slices.Concat(before, begin, []byte(escaped), []byte("</"+name+">"), after)
}

// sourceFolder finds compat/java: beside this file, or, when the build has hidden where that was
// (-trimpath), in the working folder or above it.
func sourceFolder() (string, error) {
	var candidates []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		candidates = append(candidates, filepath.Join(filepath.Dir(filepath.Dir(file)), "java"))
	}
	if folder, err := os.Getwd(); err == nil {
		for {
			candidates = append(candidates, filepath.Join(folder, "compat", "java"))
			parent := filepath.Dir(folder)
			if parent == folder {
				break
			}
			folder = parent
		}
	}
	for _, candidate := range candidates {
		if _, err := os.Stat(filepath.Join(candidate, "pom.xml")); err == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("redisson: compat/java not found; looked for %s", strings.Join(candidates, ", "))
}

// outputFolder is where the jars of these sources are: same sources, same folder.
func outputFolder(sources string) (string, error) {
	hash := sha256.New()
	err := filepath.WalkDir(sources, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(sources, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "target" {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".java" && name != "pom.xml" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n", filepath.ToSlash(name), len(content))
		hash.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("redisson: %w", err)
	}
	return filepath.Join(maven.Cache(), hex.EncodeToString(hash.Sum(nil))[:16]), nil
}
