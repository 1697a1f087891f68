// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/operator/assign"
)

type summaries []assign.Summary

func (s summaries) Summaries() ([]assign.Summary, int) { return s, 3 }

func full() *Metrics {
	m := New("v1")
	m.Reconciled("node", time.Second, nil)
	m.Wrote("apply", errors.New("x"))
	m.Reviewed("Pod", "allowed")
	m.Leads()
	m.Certified(time.Unix(7, 0))
	m.Follow(summaries{
		{Verdict: assign.Verdict{Config: "a", State: assign.Governed}, Nodes: []string{"n1", "n2"}},
		{Verdict: assign.Verdict{Config: "b", State: assign.Conflicting}},
	})
	return m
}

func TestNumbers(t *testing.T) {
	m := full()
	want := []string{
		`weft_operator_configs{state="conflicting"} 1`, `weft_operator_configs{state="governed"} 1`, `weft_operator_configs{state="wrong"} 0`,
		`weft_operator_nodes{config="a"} 2`, `weft_operator_nodes{config="b"} 0`, `weft_operator_pending 3`,
		`weft_operator_writes_total{outcome="failed",verb="apply"} 1`, `weft_operator_leader 1`, `weft_operator_certificate_expiry_seconds 7`,
	}
	got := scrape(t, m)
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s is not told", line)
		}
	}
	m.Follow(nil) // nobody knows them
	if slices.ContainsFunc(scrape(t, m), func(line string) bool { return strings.HasPrefix(line, "weft_operator_nodes") }) {
		t.Error("nodes are told that nobody knows")
	}
}

// scrape gives the lines of an answer.
func scrape(t *testing.T, m *Metrics) []string {
	t.Helper()
	r := httptest.NewRecorder()
	m.Handler().ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	return strings.Split(r.Body.String(), "\n")
}

// TestDocumented: docs/metrics.md has every metric of the operator, and none that is not.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	families, err := full().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "weft_") {
			there[f.GetName()] = true
			if !strings.Contains(string(b), "`"+f.GetName()) {
				t.Errorf("%s is not in docs/metrics.md", f.GetName())
			}
		}
	}
	for _, name := range regexp.MustCompile("`(weft_operator_[a-z_]+)").FindAllStringSubmatch(string(b), -1) {
		if !there[name[1]] {
			t.Errorf("docs/metrics.md has %s, which there is not", name[1])
		}
	}
}
