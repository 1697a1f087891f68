// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// metric is a row of docs/metrics.md.
type metric struct {
	kind   string
	labels []string
}

// metrics are the numbers that the page tells of, histograms under the names of their series as well.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `(weft_[a-z_]+)(?:[{]([a-z,]+)[}])?` \\| (histogram|counter|gauge) \\|")
	all := map[string]metric{}
	for _, m := range row.FindAllStringSubmatch(text(t, "../../docs/metrics.md"), -1) {
		name, kind, has := m[1], m[3], []string{"instance"}
		if m[2] != "" {
			has = append(has, strings.Split(m[2], ",")...)
		}
		if kind != "histogram" {
			all[name] = metric{kind, has}
			continue
		}
		all[name+"_bucket"] = metric{"counter", append(slices.Clone(has), "le")}
		all[name+"_count"] = metric{"counter", has}
		all[name+"_sum"] = metric{"counter", has}
	}
	if len(all) < 20 {
		t.Fatalf("found %d metrics in docs/metrics.md", len(all))
	}
	return all
}

// checkExpr parses an expression, and looks up each metric and label that it names; seen notes the metrics.
func checkExpr(t *testing.T, where, text string, known map[string]metric, seen map[string]bool) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			m, is := known[node.Name]
			if !is {
				t.Errorf("%s: docs/metrics.md has no %s", where, node.Name)
				return nil
			}
			seen[node.Name] = true
			for _, matcher := range node.LabelMatchers {
				if matcher.Name != model.MetricNameLabel && !slices.Contains(m.labels, matcher.Name) {
					t.Errorf("%s: %s has no label %s", where, node.Name, matcher.Name)
				}
			}
		case *parser.AggregateExpr:
			for _, label := range node.Grouping {
				if !carried(node.Expr, label, known) {
					t.Errorf("%s: nothing in %s has the label %s", where, node.Expr, label)
				}
			}
		case *parser.Call:
			if of, is := ranged(node); is {
				rated := slices.Contains([]string{"rate", "increase"}, node.Func.Name)
				if counter := known[of].kind == "counter"; rated != counter {
					t.Errorf("%s: %s of %s, which is a %s", where, node.Func.Name, of, known[of].kind)
				}
			}
		}
		return nil
	})
}

// carried says whether a metric below the expression has the label.
func carried(expr parser.Expr, label string, known map[string]metric) (is bool) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if v, selects := node.(*parser.VectorSelector); selects {
			is = is || slices.Contains(known[v.Name].labels, label)
		}
		return nil
	})
	return is
}

// ranged is the metric whose range a function takes.
func ranged(call *parser.Call) (string, bool) {
	for _, arg := range call.Args {
		if m, is := arg.(*parser.MatrixSelector); is {
			return m.VectorSelector.(*parser.VectorSelector).Name, true
		}
	}
	return "", false
}

// TestAlerts: Prometheus takes the file, each alert is about metrics that exist, and what to do about it
// is where it says.
func TestAlerts(t *testing.T) {
	raw, known, seen := text(t, deploy+"/monitoring/alerts.yaml"), metrics(t), map[string]bool{}
	groups, faults := rulefmt.Parse([]byte(raw), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range faults {
		t.Error(err)
	}
	anchors := headings(text(t, "../../docs/troubleshooting.md"))
	names := map[string]bool{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if names[rule.Alert] || rule.Alert == "" {
				t.Errorf("%q is there twice, or no alert", rule.Alert)
			}
			names[rule.Alert] = true
			checkExpr(t, rule.Alert, rule.Expr, known, seen)
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" {
				t.Errorf("%s: labels %v, annotations %v", rule.Alert, rule.Labels, rule.Annotations)
			}
			page, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
			if !strings.HasSuffix(page, "/docs/troubleshooting.md") || !slices.Contains(anchors, anchor) {
				t.Errorf("%s: no heading for %s", rule.Alert, rule.Annotations["runbook_url"])
			}
		}
	}
	if len(names) == 0 {
		t.Error("no alerts")
	}
}

// headings are a page's, as links name them.
func headings(page string) (all []string) {
	for line := range strings.Lines(page) {
		if heading, is := strings.CutPrefix(line, "## "); is {
			all = append(all, strings.ReplaceAll(strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9 -]`).ReplaceAllString(strings.TrimSpace(heading), "")), " ", "-"))
		}
	}
	return all
}

// TestDashboard: Grafana's file has expressions that Prometheus takes, about metrics that exist, and shows
// every metric that there is.
func TestDashboard(t *testing.T) {
	var board struct {
		UID, Title string
		Panels     []struct {
			ID          int
			Type, Title string
			GridPos     struct{ H, W, X, Y int }
			Targets     []struct{ Expr, RefID string }
		}
		Templating struct{ List []struct{ Name, Type string } }
	}
	if err := json.Unmarshal([]byte(text(t, deploy+"/monitoring/dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	known, seen, ids := metrics(t), map[string]bool{}, map[int]bool{}
	// What Grafana puts in before it asks.
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*")
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %q is a %s with %d expressions", p.Title, p.Type, len(p.Targets))
		}
		for _, target := range p.Targets {
			checkExpr(t, p.Title, grafana.Replace(target.Expr), known, seen)
		}
	}
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
		shown := seen[name] || seen[base+"_bucket"] || seen[base+"_count"]
		if !shown && name != "weft_operator_build_info" {
			t.Errorf("%s is on no panel", name)
		}
	}
	if board.UID != "weft" || len(board.Templating.List) != 2 {
		t.Errorf("dashboard %q with variables %v", board.UID, board.Templating.List)
	}
}

// TestMonitoringOfTheChart: what the chart makes of both files is what they say.
func TestMonitoringOfTheChart(t *testing.T) {
	if all := rendered(t, ours, nil); all["PrometheusRule kube-system/weft"] != nil || all["ConfigMap kube-system/weft-dashboard"] != nil {
		t.Error("monitoring is on by default")
	}
	all := rendered(t, ours, set{
		"monitoring.rules.enabled": true, "monitoring.rules.labels": object{"release": "prometheus"}, "monitoring.dashboard.enabled": true,
	})
	var want object
	if err := yaml.Unmarshal([]byte(text(t, deploy+"/monitoring/alerts.yaml")), &want); err != nil {
		t.Fatal(err)
	}
	rule := all["PrometheusRule kube-system/weft"]
	if d := diff(objects{"": want}, objects{"": at(t, rule, "spec").(object)}); d != "" {
		t.Errorf("rules (-file +chart):\n%s", d)
	}
	if got := at(t, rule, "metadata", "labels", "release"); got != "prometheus" {
		t.Errorf("label %v", got)
	}
	board := at(t, all["ConfigMap kube-system/weft-dashboard"], "data", "weft.json").(string)
	if strings.TrimSpace(board) != strings.TrimSpace(text(t, deploy+"/monitoring/dashboard.json")) {
		t.Error("the dashboard is another one")
	}
}
