package redisson

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	for _, server := range []bool{false, true} {
		err := Missing(t.Context(), server)
		if err == nil || strings.Contains(err.Error(), "--redis") != server {
			t.Fatalf("server %v: %v", server, err)
		}
		for _, want := range []string{
			"a JDK, 17 or later",
			"Maven",
			"apt-get install default-jdk-headless maven redis-server",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
	}
}

func TestUsableReleases(t *testing.T) {
	for release, usable := range map[string]bool{
		"4.7.0": true, "3.17.0": true, "3.16.8": false, "2.15.2": false, "10.0.0": true, "": false, "latest": false,
		"4.7": false, "4.7.0 -X": false,
	} {
		if err := Usable(release); (err == nil) != usable {
			t.Errorf("%q: %v", release, err)
		}
	}
}

func TestResults(t *testing.T) {
	got, err := parse("granted worker 1000 1500")
	if want := (Result{true, true, time.UnixMilli(1000), time.UnixMilli(1501)}); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = parse("denied poller 1000 1000")
	if want := (Result{false, false, time.UnixMilli(1000), time.UnixMilli(1001)}); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err = parse("failed org.x: y"); err == nil || err.Error() != "Redisson: org.x: y" {
		t.Error(err)
	}
	if _, err = parse("Picked up JAVA_TOOL_OPTIONS"); err == nil {
		t.Error("any text is a result")
	}
}

func TestOutputOfMaven(t *testing.T) {
	var progress []string
	o := &output{progress: func(text string) { progress = append(progress, text) }}
	for _, part := range []string{
		"[INFO] x\nDownloaded from central: https://a/b.pom (3.0 kB at 1.2 MB/s)\nDownl",
		"oaded from central: https://a/b.jar (2.9 MB at 5 MB/s)\n",
		"[ERROR] first\n[ERROR] second\n",
	} {
		o.Write([]byte(part))
	}
	if got := strings.Join(progress, "; "); got != "downloaded 1 files, 0.0 MB; downloaded 2 files, 2.9 MB" ||
		o.failure != "first" {
		t.Errorf("%q, %q", got, o.failure)
	}
}

func TestServerEndsWhenItIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("needs redis-server")
	}
	addr, stop, err := Server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	stop()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("the server still answers")
	}
}
