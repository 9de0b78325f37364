package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/otellimit"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

func TestThePageShowsTheWork(t *testing.T) {
	server := limittest.New(t)
	client, page := watched(server.Redis())
	for range 3 {
		if err := work(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	const line = `rratelimiter_requests_total{limiter="jobs",outcome="granted"} 3`
	if answer.Code != 200 || !strings.Contains(answer.Body.String(), line) {
		t.Errorf("%d, without %s:\n%s", answer.Code, line, answer.Body)
	}
}

// The calls of this test cause a value of every metric of both modules.
var everything = []rratelimiter.CallInfo{
	{
		Callers: 1, Granted: 1, Denied: 1, Permits: 1, Unclaimed: 1, DenyCacheHits: 1, Attempts: 1, Repaired: "x",
		RateMismatch: true,
	},
	{Leased: 1, Returned: 1, Void: 1},
	{Denied: 1, Err: rratelimiter.ErrNotInitialized},
	{Fallback: true, Granted: 1},
	{Denied: 1, Err: rratelimiter.ErrOutcomeUnknown},
}

func count(o interface {
	rratelimiter.RequestObserver
	rratelimiter.GuardObserver
}) {
	for _, info := range everything {
		o.Call(info)
	}
	o.Request(context.Background(), rratelimiter.RequestInfo{Waits: true, Err: rratelimiter.ErrNotInitialized})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, outcome := range []string{"unlimited", "allowed", "denied", "shadowed", "failed open", "failed closed",
		"allowed locally", "denied locally", "shadowed locally", "gone"} {
		o.Guard(context.Background(), rratelimiter.GuardInfo{Policy: "x", Outcome: outcome})
	}
	o.Request(gone, rratelimiter.RequestInfo{Waits: true, Err: gone.Err()})
	o.Request(context.Background(), rratelimiter.RequestInfo{Granted: 1, Leased: true})
	o.Request(context.Background(), rratelimiter.RequestInfo{Method: "Charge", Granted: 1})
}

// families returns the metrics that Prometheus reads: the labels and their values by the names of
// the series.
func families(t *testing.T, registry *prometheus.Registry) map[string]map[string]map[string]bool {
	t.Helper()
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]map[string]bool{}
	for _, f := range gathered {
		if !strings.HasPrefix(f.GetName(), "rratelimiter_") {
			continue
		}
		names := []string{f.GetName()}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{f.GetName() + "_bucket", f.GetName() + "_sum", f.GetName() + "_count"}
		}
		for _, name := range names {
			found[name] = map[string]map[string]bool{"job": nil}
			if strings.HasSuffix(name, "_bucket") {
				found[name]["le"] = nil
			}
			for _, m := range f.Metric {
				for _, l := range m.Label {
					if found[name][l.GetName()] == nil {
						found[name][l.GetName()] = map[string]bool{}
					}
					found[name][l.GetName()][l.GetValue()] = true
				}
			}
		}
	}
	return found
}

func byPrometheus(t *testing.T) map[string]map[string]map[string]bool {
	metrics := promlimit.New(promlimit.Config{Label: func(string) string { return "x" }})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	count(metrics)
	return families(t, registry)
}

// A dashboard for one module also works with the other.
func TestBothModulesHaveTheSameMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	observer, err := otellimit.New(otellimit.Config{
		Label:         func(string) string { return "x" },
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
	})
	if err != nil {
		t.Fatal(err)
	}
	count(observer)
	here, there := byPrometheus(t), families(t, registry)
	if len(here) == 0 {
		t.Fatal("there are no metrics")
	}
	for name, labels := range here {
		if there[name] == nil {
			t.Errorf("otellimit does not have %s", name)
			continue
		}
		if !maps.EqualFunc(labels, there[name], maps.Equal) {
			t.Errorf("%s: %v, by otellimit %v", name, labels, there[name])
		}
	}
	for name := range there {
		if here[name] == nil {
			t.Errorf("promlimit does not have %s", name)
		}
	}
}

var promQL = parser.NewParser(parser.Options{})

// alerts reads the rules that docs/observability offers.
func alerts() (*rulefmt.RuleGroups, []error) {
	return rulefmt.ParseFile("../../docs/observability/alerts.yaml",
		false, model.UTF8Validation, promQL, slog.Default())
}

// check reports errors of a query: invalid PromQL, and unknown metrics, labels or values.
func check(t *testing.T, known map[string]map[string]map[string]bool, query string) {
	t.Helper()
	expression, err := promQL.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	selectors := 0
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selectors++
		has := known[selector.Name]
		if has == nil {
			t.Errorf("%s: there is no %s", query, selector.Name)
		}
		for _, m := range selector.LabelMatchers {
			values, known := has[m.Name]
			if !known && m.Name != model.MetricNameLabel {
				t.Errorf("%s: %s has no label %s", query, selector.Name, m.Name)
			}
			if m.Name == "outcome" && !matches(m, values) {
				t.Errorf("%s: no outcome is %s", query, m.Value)
			}
		}
		for _, over := range path {
			aggregate, ok := over.(*parser.AggregateExpr)
			if !ok {
				continue
			}
			for _, label := range aggregate.Grouping {
				if _, known := has[label]; !known {
					t.Errorf("%s: %s has no label %s", query, selector.Name, label)
				}
			}
		}
		return nil
	})
	if selectors == 0 {
		t.Errorf("%s asks for nothing", query)
	}
}

// matches reports whether each alternative of a matcher is a known value.
func matches(m *labels.Matcher, values map[string]bool) bool {
	for _, value := range strings.Split(m.Value, "|") {
		if !values[value] {
			return false
		}
	}
	return true
}

// byExport returns the metrics of rrl export, as listed on the page, which the tests of rrl compare
// with the real ones.
func byExport(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| `(rratelimiter_(state|export)_[a-z_]+)` \\|")
	for _, row := range rows.FindAllStringSubmatch(string(text), -1) {
		found[row[1]] = map[string]map[string]bool{"job": nil}
		if row[2] == "state" {
			found[row[1]]["limiter"], found[row[1]]["client"] = nil, nil
		}
	}
	return found
}

func TestAlertsUseWhatThereIs(t *testing.T) {
	known := byPrometheus(t)
	maps.Copy(known, byExport(t))
	groups, problems := alerts()
	for _, problem := range problems {
		t.Error(problem)
	}
	if len(problems) > 0 {
		return
	}
	alerts := 0
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			alerts++
			check(t, known, rule.Expr)
			if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" ||
				rule.Annotations["description"] == "" {
				t.Errorf("%s: severity, summary or description is missing", rule.Alert)
			}
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}

func TestDashboardsUseWhatThereIs(t *testing.T) {
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, "dashboard.json", byPrometheus(t)) })
	t.Run("keys", func(t *testing.T) { checkDashboard(t, "keys.json", byExport(t)) })
}

// checkDashboard reports unknown metrics of a dashboard, and known metrics that are not on it.
func checkDashboard(t *testing.T, file string, known map[string]map[string]map[string]bool) {
	t.Helper()
	text, err := os.ReadFile("../../docs/observability/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title, UID    string
		SchemaVersion int
		Panels        []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || dashboard.SchemaVersion == 0 || len(dashboard.Panels) == 0 {
		t.Errorf("%+v", dashboard)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$limiter", ".*")
	used := map[string]bool{}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("two panels have the id %d", panel.ID)
		}
		ids[panel.ID] = true
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				cell := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if cells[cell] != "" || cell[0] >= 24 {
					t.Errorf("%s: its place is %v, which is taken or none", panel.Title, panel.GridPos)
				}
				cells[cell] = panel.Title
			}
		}
		if len(panel.Targets) == 0 {
			t.Errorf("%s shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			query := variables.Replace(target.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("%s: a variable is unknown", target.Expr)
			}
			check(t, known, query)
			for _, name := range regexp.MustCompile("rratelimiter_[a-z_]+").FindAllString(query, -1) {
				used[name] = true
			}
		}
	}
	for name := range known {
		if !used[name] && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			t.Errorf("no panel shows %s", name)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if _, selector, ok := strings.Cut(variable.Definition, "label_values("); ok {
			check(t, known, variables.Replace(selector[:strings.LastIndex(selector, ",")]))
		} else if variable.Name != "datasource" {
			t.Errorf("variable %s has no values", variable.Name)
		}
	}
}
