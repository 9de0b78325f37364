package main

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func content(t *testing.T, path string) []byte {
	t.Helper()
	bytes, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestSimulateWritesWhatItIsAsked(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	code, out, errs := rrl(t.Context(), "simulate", "--trace", "poisson", "--rate", "20/s", "--for", "3s",
		"--algorithms", "gcra,rratelimiter", "-o", file("a.png"), "-o", file("a.svg"), "-o", file("a.json"))
	if code != 0 {
		t.Fatal(errs)
	}
	for _, part := range []string{"poisson: ", "limit 20/s", "offered ", "rratelimiter ", "gcra "} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	picture, err := os.Open(file("a.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer picture.Close()
	if decoded, err := png.Decode(picture); err != nil || decoded.Bounds().Dx() < 1000 {
		t.Error(err)
	}
	if svg := content(t, file("a.svg")); !bytes.Contains(svg, []byte("</svg>")) ||
		!bytes.Contains(svg, []byte("rratelimiter")) {
		t.Error("the picture is none")
	}
	text := content(t, file("a.json"))
	var s simulated
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Rate != "20/s" || len(s.Outcomes) != 2 || s.Outcomes[0].Largest != 20 || len(s.Bins) != 60 {
		t.Errorf("%s", text)
	}
	code, again, errs := rrl(t.Context(), "simulate", "--trace", "poisson", "--rate", "20/s", "--for", "3s",
		"--algorithms", "gcra,rratelimiter", "--json")
	if code != 0 || again != string(text) {
		t.Errorf("the same seed gives something else\n%s%s", again, errs)
	}
}

func TestSimulateReadsStandardInput(t *testing.T) {
	var out, errs tape
	code := run(
		t.Context(), []string{"simulate", "--trace", "-", "--rate", "1/s", "--algorithms", "sliding-log", "--json"},
		strings.NewReader("0.1\n0.2\n1.1\n"), &out, &errs,
	)
	var s simulated
	if err := json.Unmarshal([]byte(out.String()), &s); code != 0 || err != nil || s.Outcomes[0].Granted != 2 {
		t.Error(code, err, out.String(), errs.String())
	}
}

// A rate that an algorithm does not support is a fault of that algorithm only.
func TestSimulateNamesWhatARateIsNotFor(t *testing.T) {
	code, out, errs := rrl(t.Context(), "simulate", "--trace", "steady", "--rate", "3000/s", "--for", "100ms",
		"--algorithms", "gateway-bucket,sub-windows")
	if code != 0 || !strings.Contains(out, "not for this rate") || !strings.Contains(out, "sub-windows") {
		t.Error(out, errs)
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	for want, args := range map[string]string{
		"neither built in":      "--trace nowhere",
		"--rate":                "--trace steady --rate fast",
		"must be positive":      "--trace steady --for 0s",
		"are more than":         "--trace steady --rate 1000000/s",
		`"best" is none of`:     "--algorithms best",
		"must end in":           "-o a.gif",
		"not an address":        "--redis nowhere",
		"no such file":          "--docs nowhere.md",
		"takes flags only":      "steady",
		"--for and --load":      "--trace edge --load 0",
		"is a directory":        "--trace .",
		"connection refused":    "--redis redis://127.0.0.1:1",
		"unknown flag: --what":  "--what",
		"has its own limit":     "--rate 5/s",
		"--for: only a pattern": "--for 3s --trace border",
		"only the poisson":      "--seed 2 --trace steady",
		"only a file uses it":   "--permits-column 2",
		"--json: --docs sim":    "--docs page.md --json",
	} {
		code, _, errs := rrl(context.Background(), append([]string{"simulate"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s", args, code, errs)
		}
	}
}

// simulated is a part of the output of simulate --json.
type simulated struct {
	Rate     string  `json:"rate"`
	Bins     []int64 `json:"offeredPerStep"`
	Outcomes []struct {
		Granted int64 `json:"granted"`
		Largest int64 `json:"largestWindow"`
	} `json:"algorithms"`
}

// A pattern may move a request to a later time; it is shown all the same.
func TestSimulateShowsAllRequests(t *testing.T) {
	code, out, errs := rrl(
		t.Context(), "simulate", "--trace", "edge", "--rate", "100/m", "--algorithms", "rratelimiter", "--json",
	)
	if code != 0 {
		t.Fatalf("%d, %s", code, errs)
	}
	var all simulated
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, n := range all.Bins {
		sum += n
	}
	if sum == 0 || sum < all.Outcomes[0].Granted {
		t.Errorf("%d requests, %d granted", sum, all.Outcomes[0].Granted)
	}
}
