// Package maven finds a JDK and Maven, and builds small Java programs. Such a program is a thin
// jar: its manifest points to the jars in the local Maven repository. The tests next to Redisson
// and rrl demo use it. tail.go keeps what such a program writes last.
package maven

import (
	"archive/zip"
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// LeastJava is the oldest JDK that compiles the programs.
const LeastJava = 17

// Missing describes the programs that are missing or too old: the JDK, and Maven. scripts/deps has
// the same conditions.
func Missing(ctx context.Context) (missing []string) {
	jdk := fmt.Sprintf("a JDK, %d or later: java and javac in PATH, or by JAVA_HOME", LeastJava)
	_, noJava := exec.CommandContext(ctx, Java(), "-version").CombinedOutput()
	version, noCompiler := exec.CommandContext(ctx, ofJDK("javac"), "-version").CombinedOutput()
	switch {
	case noJava != nil || noCompiler != nil:
		missing = append(missing, jdk)
	case major(string(version)) < LeastJava:
		missing = append(missing, jdk+"; this is "+strings.TrimSpace(string(version)))
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		missing = append(missing, "Maven: mvn in PATH")
	}
	return missing
}

// Java returns the java of JAVA_HOME, or else the name of the one in PATH.
func Java() string { return ofJDK("java") }

func ofJDK(program string) string {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", program)
	}
	return program
}

var versionForm = regexp.MustCompile(`javac (?:1\.)?([0-9]+)`)

// major reads the 17 of "javac 17.0.15", and the 8 of "javac 1.8.0_292".
func major(output string) int {
	match := versionForm.FindStringSubmatch(output)
	if match == nil {
		return 0
	}
	n, _ := strconv.Atoi(match[1]) // digits; too many of them are no version
	return n
}

// Cache returns the folder for programs that are built.
func Cache() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // no home, as in some containers
	}
	return filepath.Join(cache, "rratelimiter", "redisson")
}

// Lock waits until no other process has the lock, or ctx ends. A process needs it to run Maven:
// several of them can damage the local repository.
func Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(Cache(), 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, filepath.Join(Cache(), "lock"))
}

// Package builds the project of a folder. It writes Maven's output to out. The caller has the Lock.
func Package(ctx context.Context, folder string, out io.Writer, args ...string) error {
	args = append([]string{"-B", "-Dmaven.artifact.threads=8", "-f", folder, "package"}, args...)
	cmd := exec.CommandContext(ctx, "mvn", args...)
	cmd.Dir = folder
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

// Complete reports whether a jar with a main class and all jars to which its manifest points exist.
func Complete(jar, mainClass string) bool {
	archive, err := zip.OpenReader(jar)
	if err != nil {
		return false
	}
	defer archive.Close()
	file, err := archive.Open("META-INF/MANIFEST.MF")
	if err != nil {
		return false
	}
	defer file.Close()
	manifest, err := io.ReadAll(file)
	if err != nil {
		return false
	}
	// Long lines are folded; the rest begins with a blank.
	text := strings.NewReplacer("\r\n ", "", "\n ", "").Replace(string(manifest))
	jars := 0
	main := false
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		main = main || line == "Main-Class: "+mainClass
		if entries, ok := strings.CutPrefix(line, "Class-Path: "); ok {
			for entry := range strings.FieldsSeq(entries) {
				if _, err := os.Stat(strings.TrimPrefix(entry, "file://")); err != nil {
					return false
				}
				jars++
			}
		}
	}
	return main && jars > 5
}
