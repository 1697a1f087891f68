// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// pages are the lines of all pages of docs/.
func pages(t *testing.T) map[string][]string {
	t.Helper()
	names, err := filepath.Glob("../docs/*.md")
	if err != nil || len(names) < 10 {
		t.Fatalf("pages %q: %v", names, err)
	}
	all := map[string][]string{}
	for _, name := range names {
		all[name] = strings.Split(string(read(t, name)), "\n")
	}
	return all
}

// TestRightsAreTold: each right that deploy/ gives to anybody is in a line of a page, with its verbs.
func TestRightsAreTold(t *testing.T) {
	var lines []string
	for _, page := range pages(t) {
		lines = append(lines, page...)
	}
	told := func(resource string, verbs []string) bool {
		for _, line := range lines {
			all := strings.HasPrefix(line, "| ") && strings.Contains(line, "`"+resource+"`")
			for _, verb := range verbs {
				all = all && strings.Contains(line, "`"+verb+"`")
			}
			if all {
				return true
			}
		}
		return false
	}
	rules := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "helm" { // copies
			return fs.SkipDir
		}
		if d.Name() != "rbac.yaml" {
			return nil
		}
		for _, doc := range documents(t, path) {
			if !regexp.MustCompile(`(?m)^kind: (Cluster)?Role$`).Match(doc) {
				continue
			}
			for _, rule := range strict[rbacv1.ClusterRole](t, path, doc).Rules { // a Role has the same form
				for _, resource := range rule.Resources {
					rules++
					if !told(resource, rule.Verbs) {
						t.Errorf("%s: no page tells of %q on %s", path, rule.Verbs, resource)
					}
				}
			}
		}
		return nil
	})
	if err != nil || rules < 20 {
		t.Errorf("%d rules: %v", rules, err)
	}
}

// TestKustomizationsNameTheImage: a kustomization that a page shows would otherwise set an agent that came
// from a registry back to the image that nobody can pull.
func TestKustomizationsNameTheImage(t *testing.T) {
	seen := 0
	for name, page := range pages(t) {
		for i, line := range page {
			if !strings.HasPrefix(line, "    components: [./deploy") {
				continue
			}
			seen++
			block := strings.Join(page[i:min(i+3, len(page))], "\n")
			if !strings.Contains(block, "    images:\n      - {name: localhost/weft/weft, newName: ") {
				t.Errorf("%s:%d: names no image:\n%s", name, i+1, block)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d kustomizations", seen)
	}
}
