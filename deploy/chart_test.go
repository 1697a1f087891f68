// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/agent/config"
)

const chart = "helm/weft"

// TestChartCopies: the chart's files are those of this folder, byte for byte, and there are no others.
// That none is missing is seen by rendering it, in test/install.
func TestChartCopies(t *testing.T) {
	seen := 0
	for _, folder := range []string{"files", "crds"} {
		root := filepath.Join(chart, folder)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			seen++
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			source, err := os.ReadFile(name)
			if err != nil || !bytes.Equal(source, read(t, path)) {
				t.Errorf("%s is not deploy/%s: run make generate (%v)", path, name, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 15 {
		t.Errorf("the chart has %d files", seen)
	}
}

// schema is the part of values.schema.json that tests look at.
type schema struct {
	Type                 any
	Properties           map[string]schema
	AdditionalProperties any
}

// leaves are the values below a part of the schema, with their paths; an object without properties
// of its own is one value.
func leaves(t *testing.T, prefix string, s schema) []string {
	t.Helper()
	if len(s.Properties) == 0 {
		return []string{prefix}
	}
	if s.AdditionalProperties != false {
		t.Errorf("%q takes values that nobody reads", prefix)
	}
	var all []string
	for name, p := range s.Properties {
		all = append(all, leaves(t, strings.TrimPrefix(prefix+"."+name, "."), p)...)
	}
	slices.Sort(all)
	return all
}

func valuesSchema(t *testing.T) schema {
	t.Helper()
	var s schema
	if err := json.Unmarshal(read(t, chart+"/values.schema.json"), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestChartValues: the schema, the defaults and the chart's page have the same values.
func TestChartValues(t *testing.T) {
	s := valuesSchema(t)
	agent := s.Properties["agent"]
	agent.Properties["config"] = schema{} // told in docs/configuration.md
	want := slices.DeleteFunc(leaves(t, "", s), func(name string) bool { return name == "global" })

	var defaults map[string]any
	if err := yaml.UnmarshalStrict(read(t, chart+"/values.yaml"), &defaults); err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		var v any = defaults
		for key := range strings.SplitSeq(name, ".") {
			m, _ := v.(map[string]any)
			v = m[key]
		}
		if v == nil {
			t.Errorf("values.yaml has no %s", name)
		}
	}
	var told []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|").FindAllStringSubmatch(string(read(t, chart+"/README.md")), -1) {
		told = append(told, m[1])
	}
	slices.Sort(told)
	if d := cmp.Diff(want, told); d != "" {
		t.Errorf("values (-schema +README.md):\n%s", d)
	}
}

// TestChartAgentConfig: each key of the agent is taken under agent.config, or set by the chart itself.
func TestChartAgentConfig(t *testing.T) {
	own := []string{
		"nodeName", "kubeconfig", // of the pod
		"stateDir", "socketDir", "networkDriver.nriSocket", "vmi.podCacheDir", "vmi.procDir", // mounted there
		"cni.confDir", "cni.binDir", "cni.kubeletDir", "networkDriver.kubeletDir", "networkDriver.sysfs", // directories
		"networkDriver.enabled", "vmi.mode",
	}
	page := string(read(t, "../docs/install.md"))
	for _, name := range own {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/install.md does not say why agent.config refuses %s", name)
		}
	}
	var want []string
	for _, k := range config.Keys() {
		if !slices.Contains(own, k.Name) {
			want = append(want, k.Name)
		}
	}
	for _, k := range config.ConfKeys() {
		want = append(want, "cni."+k)
	}
	slices.Sort(want)
	got := leaves(t, "", valuesSchema(t).Properties["agent"].Properties["config"])
	if d := cmp.Diff(slices.Compact(want), got); d != "" {
		t.Errorf("agent.config (-agent's keys +schema's):\n%s", d)
	}
}

// addedCapabilities are those that a component gives the agent besides.
func addedCapabilities(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile(`capabilities/add/-, value: ([A-Z_]+)`).FindAllSubmatch(read(t, name), -1) {
		all = append(all, string(m[1]))
	}
	if len(all) == 0 {
		t.Errorf("%s adds no capability", name)
	}
	return all
}

// TestInstallPrivileges: docs/install.md has every capability that any container is given.
func TestInstallPrivileges(t *testing.T) {
	page := string(read(t, "../docs/install.md"))
	given := map[string]bool{}
	for _, name := range []string{"network-driver/kustomization.yaml", "vmi/kustomization.yaml", "upkeep/kustomization.yaml"} {
		for _, c := range addedCapabilities(t, name) {
			given[c] = true
		}
	}
	for _, m := range regexp.MustCompile(`add: \[([A-Z_, ]+)\]`).FindAllSubmatch(read(t, "daemonset.yaml"), -1) {
		for c := range strings.SplitSeq(string(m[1]), ", ") {
			given[c] = true
		}
	}
	for _, c := range slices.Sorted(maps.Keys(given)) {
		if !strings.Contains(page, "`"+c+"`") {
			t.Errorf("docs/install.md says nothing of %s", c)
		}
	}
}
