package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// containers_test.go compares examples/containers with rrl. A test there compares it with
// Kubernetes.

const containers = "../../examples/containers/"

// A workload is what a manifest says of rrl.
type workload struct {
	Data map[string]string // of a ConfigMap: the files
	Spec struct {
		Template struct {
			Spec struct{ Containers []container }
		}
	}
}

type container struct {
	Args []string
	Env  []struct{ Name, Value string }

	Ports []struct {
		Name          string
		ContainerPort string `yaml:"containerPort"`
	}
	Liveness     probe `yaml:"livenessProbe"`
	Readiness    probe `yaml:"readinessProbe"`
	VolumeMounts []struct {
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet        struct{ Path, Port string } `yaml:"httpGet"`
	TimeoutSeconds int                         `yaml:"timeoutSeconds"`
}

// manifestOf returns the container of a manifest, and the files of its ConfigMap.
func manifestOf(t *testing.T, file string) (one container, files map[string]string) {
	t.Helper()
	text, err := os.ReadFile(containers + file)
	if err != nil {
		t.Fatal(err)
	}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var w workload
		if err := yaml.Unmarshal(part, &w); err != nil {
			t.Fatal(err)
		}
		if w.Data != nil {
			files = w.Data
		}
		if all := w.Spec.Template.Spec.Containers; len(all) > 0 {
			one = all[0]
		}
	}
	return one, files
}

// setVariables sets the variables of a container, and returns those that have a value.
func setVariables(t *testing.T, one container) map[string]string {
	t.Helper()
	cmd, _, err := newRoot().Find(one.Args)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, v := range one.Env {
		flag := cmd.Flags().Lookup(strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v.Name, "RRL_"), "_", "-")))
		if v.Name != "RRL_PASSWORD" && (flag == nil || variableOf(cmd, flag) != v.Name) {
			t.Errorf("rrl %s has no variable %s", cmd.Name(), v.Name)
		}
		if v.Value != "" {
			values[v.Name] = v.Value
			t.Setenv(v.Name, v.Value)
		}
	}
	if err := readEnvironment(cmd); err != nil {
		t.Error(err)
	}
	return values
}

// The containers of the manifests run with their variables, here on free ports and another Redis,
// and answer the probes.
func TestTheManifestsFitRrl(t *testing.T) {
	server := redistest.Embedded(t)
	for file, http := range map[string]string{"rls.yaml": "RRL_METRICS", "export.yaml": "RRL_LISTEN"} {
		t.Run(file, func(t *testing.T) {
			one, files := manifestOf(t, file)
			values := setVariables(t, one)
			ports := map[string]string{}
			for _, port := range one.Ports {
				ports[port.Name] = ":" + port.ContainerPort
			}
			if one.Liveness.HTTPGet.Port != "http" || one.Readiness.HTTPGet.Port != "http" ||
				ports["http"] != values[http] ||
				len(ports) == 2 && ports["grpc"] != values["RRL_LISTEN"] {
				t.Errorf("ports %v, probes %v and %v, variables %v", ports, one.Liveness, one.Readiness, values)
			}
			if wait, err := time.ParseDuration(values["RRL_TIMEOUT"]); err != nil ||
				time.Duration(one.Readiness.TimeoutSeconds)*time.Second <= wait {
				t.Errorf("/readyz may take %v, %v; the probe waits for %d s", wait, err, one.Readiness.TimeoutSeconds)
			}
			args := append(slices.Clone(one.Args), "--redis", server.URL(), "--timeout", "1m", "--listen",
				"127.0.0.1:0")
			if path, name := filepath.Split(values["RRL_RULES"]); name != "" {
				if mount := one.VolumeMounts[0].MountPath + "/"; path != mount {
					t.Errorf("the rules are in %s, the ConfigMap is mounted at %s", path, mount)
				}
				rules := filepath.Join(t.TempDir(), name)
				if err := os.WriteFile(rules, []byte(files[name]), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--rules", rules, "--metrics", "127.0.0.1:0")
			}
			answersProbes(t, one, args)
		})
	}
}

// answersProbes runs rrl, and asks as the probes of a container do.
func answersProbes(t *testing.T, one container, args []string) {
	t.Helper()
	code, _, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "/metrics\n")
		url, _, _ := strings.Cut(out.String(), "/metrics\n")
		for _, path := range []string{one.Liveness.HTTPGet.Path, one.Readiness.HTTPGet.Path} {
			awaitStatus(ctx, t, url+path, http.StatusOK)
		}
	}, args...)
	if code != 0 || errs != "" {
		t.Errorf("%q: exit code %d, %s", args, code, errs)
	}
}

// A variable on the page is that of the flag beside it, and the flag is one of rls or export.
func TestTheVariablesOfThePageExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/guide/run-in-containers.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (`RRL_[^|]*`) \\| (`--[^|]*`) \\|").FindAllStringSubmatch(string(page), -1)
	if len(rows) < 6 {
		t.Errorf("only %d rows have a flag", len(rows))
	}
	for _, row := range rows {
		variables, flags := strings.Split(row[1], ", "), strings.Split(row[2], ", ")
		for i, name := range flags {
			name = strings.Trim(name, "`-")
			flag := newRls().Flags().Lookup(name)
			if flag == nil {
				flag = newExport().Flags().Lookup(name)
			}
			if flag == nil || len(variables) != len(flags) || "`"+variableOf(newRls(), flag)+"`" != variables[i] {
				t.Errorf("%s: %s, %s", name, row[1], row[2])
			}
		}
	}
}

// The stages of the Dockerfile are copied from, the package that it builds is there, and the user
// is the one of the manifests.
func TestTheDockerfileFitsTheCheckout(t *testing.T) {
	text, err := os.ReadFile(containers + "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	has := func(pattern string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + pattern + `$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("the Dockerfile has no line %s", pattern)
		}
		return string(found[1])
	}
	module, err := os.ReadFile("go.mod")
	if goes := has(`FROM golang:(\S+) AS build`); err != nil || !bytes.Contains(module, []byte("\ngo "+goes+".")) {
		t.Errorf("it builds with Go %s, %v", goes, err)
	}
	if info, err := os.Stat(filepath.Join("../..",
		has(`    CGO_ENABLED=0 go build .* -o /out/rrl (\./\S+)`), "main.go")); err != nil ||
		info.IsDir() {
		t.Error(err)
	}
	has(`FROM (gcr\.io/distroless/static-debian\d+:nonroot)`)
	has(`COPY --from=build /out/rrl (/rrl)`)
	has(`ENTRYPOINT \["(/rrl)"\]`)
	user := has(`USER (\d+):\d+`)
	for _, file := range []string{"rls.yaml", "export.yaml"} {
		manifest, err := os.ReadFile(containers + file)
		if err != nil || !bytes.Contains(manifest, []byte("runAsUser: "+user+"\n")) {
			t.Errorf("%s has another user than %s, %v", file, user, err)
		}
	}
}
