// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/weftnet/weft/internal/cni/plan"
)

// granted is what the role allows: "group/resource" (the core group is "") and its verbs.
func granted(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, rule := range load(t).roles[0].Rules {
		if len(rule.NonResourceURLs) > 0 || len(rule.ResourceNames) > 0 {
			t.Errorf("rule %+v: paths and single objects are nothing that the agent asks for", rule)
		}
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				if _, twice := all[group+"/"+name]; twice {
					t.Errorf("%s has two rules", name)
				}
				all[group+"/"+name] = slices.Sorted(slices.Values(rule.Verbs))
			}
		}
	}
	return all
}

// TestNoWayUp: nothing in the role helps to get more than is in it.
func TestNoWayUp(t *testing.T) {
	verbs := []string{"get", "list", "watch", "create", "patch"}
	writable := map[string][]string{"/pods/status": {"patch"}, "/events": {"create"}}
	resources := []string{"/pods", "/pods/status", "/events", "k8s.cni.cncf.io/network-attachment-definitions", "resource.k8s.io/resourceclaims", "resource.k8s.io/resourceslices"}
	for name, got := range granted(t) {
		if !slices.Contains(resources, name) {
			t.Errorf("the role names %s: secrets, tokens, nodes and all that is not listed here stay closed", name)
		}
		for _, verb := range got {
			if !slices.Contains(verbs, verb) {
				t.Errorf("%s may be %q", name, verb)
			}
			if slices.Contains([]string{"create", "patch"}, verb) && !slices.Contains(writable[name], verb) {
				t.Errorf("%s may be written: %q", name, verb)
			}
		}
	}
}

// TestRoleIsWhatTheCodeNeeds: the package that speaks to the API server says what it needs,
// and the role allows that and no more.
func TestRoleIsWhatTheCodeNeeds(t *testing.T) {
	if d := cmp.Diff(documented(t), granted(t)); d != "" {
		t.Errorf("rights (-documented +granted):\n%s", d)
	}
}

// TestPageTellsTheRole: docs/agent.md explains every right.
func TestPageTellsTheRole(t *testing.T) {
	if d := cmp.Diff(granted(t), toldRights(t, base)); d != "" {
		t.Errorf("rights (-granted +docs/agent.md):\n%s", d)
	}
}

// toldRights are those of the page.
func toldRights(t *testing.T, p part) map[string][]string {
	t.Helper()
	told := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `([a-z/-]+)`(?: of `([a-z0-9.]+)`)? \\| ((?:`[a-z:-]+`(?:, )?)+) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(page(t, p), -1) {
		verbs := strings.Split(strings.ReplaceAll(m[3], "`", ""), ", ")
		told[m[2]+"/"+m[1]] = slices.Sorted(slices.Values(verbs))
	}
	return told
}

// part is a part of docs/agent.md.
type part int

const (
	base       part = iota // of every agent
	withDriver             // what the network driver needs besides
)

// page is a part of docs/agent.md.
func page(t *testing.T, p part) string {
	t.Helper()
	text := string(read(t, "../docs/agent.md"))
	before, rest, found := strings.Cut(text, "\n## With the network driver\n")
	driver, after, ended := strings.Cut(rest, "\n## ")
	if !found || !ended {
		t.Fatal("docs/agent.md has no section on the network driver, or nothing behind it")
	}
	if p == withDriver {
		return driver
	}
	return before + "\n## " + after
}

// TestPolicy: it is about the agent's own account and annotation, and it denies.
func TestPolicy(t *testing.T) {
	m := load(t)
	policy, bound, account := m.policies[0], m.bound[0], m.accounts[0]
	user := "request.userInfo.username == 'system:serviceaccount:" + account.Namespace + ":" + account.Name + "'"
	if c := policy.Spec.MatchConditions; len(c) != 1 || c[0].Expression != user {
		t.Errorf("match conditions: %+v", c)
	}
	want := []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Update}, // a patch is an update
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/status"}},
	}}}
	if d := cmp.Diff(want, policy.Spec.MatchConstraints.ResourceRules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	quoted := regexp.MustCompile(`'([^']*/[^']*)'`)
	for _, v := range policy.Spec.Validations {
		for _, key := range quoted.FindAllStringSubmatch(v.Expression, -1) {
			if key[1] != plan.StatusAnnotation {
				t.Errorf("%s is about %s, which Weft does not write", v.Expression, key[1])
			}
		}
	}
	if *policy.Spec.FailurePolicy != admissionv1.Fail || bound.Spec.PolicyName != policy.Name ||
		!slices.Equal(bound.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the policy is not enforced: %+v", bound.Spec)
	}
}

// documented reads the sentence "It needs: get, list and watch on pods …, patch on
// pods/status." of the package comment of internal/kube/informers.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("../internal/kube/informers/*.go")
	if err != nil {
		t.Fatal(err)
	}
	sentence := regexp.MustCompile(`It needs: ([^:]+?)\.(?:\s*\n\n|\s+[A-Z]|$)`)
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if m := sentence.FindStringSubmatch(f.Doc.Text()); m != nil {
			return rights(m[1])
		}
	}
	t.Fatal("internal/kube/informers does not say what it needs")
	return nil
}

// rights takes the sentence apart, word by word: verbs, then "on" before each resource.
func rights(sentence string) map[string][]string {
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	groups := map[string]string{
		"network-attachment-definitions": "k8s.cni.cncf.io",
		"resourceclaims":                 "resource.k8s.io", "resourceslices": "resource.k8s.io",
	}
	all := map[string][]string{}
	var current []string
	complete := false // a resource was named: the next verb begins anew
	words := strings.Fields(sentence)
	for i, word := range words {
		word = strings.Trim(word, ",;")
		switch {
		case slices.Contains(verbs, word):
			if complete {
				current, complete = nil, false
			}
			current = append(current, word)
		case i > 0 && words[i-1] == "on":
			all[groups[word]+"/"+word], complete = slices.Sorted(slices.Values(current)), true
		}
	}
	return all
}
