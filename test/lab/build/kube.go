// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// program is what the Kubernetes set consists of: every component, and etcd.
const program = "kube"

// Kubernetes is the one program that is every component of a cluster, of the version that the
// lab's own module names, or of another: "1.34" (its newest patch) or "1.34.2". It returns the
// version as the API server will report it, "v1.37.2".
func (b Builder) Kubernetes(ctx context.Context, version string) (Set, string, error) {
	own := filepath.Join(b.Root, "test/lab/kube")
	mod, err := os.ReadFile(filepath.Join(own, "go.mod"))
	if err != nil {
		return Set{}, "", err
	}
	pinned := required(string(mod), "k8s.io/kubernetes")
	if pinned == "" {
		return Set{}, "", fmt.Errorf("%s/go.mod requires no k8s.io/kubernetes", own)
	}
	if version == "" || "v"+strings.TrimPrefix(version, "v") == pinned {
		set, err := b.set(ctx, kubeRecipe(program, own, pinned))
		return set, pinned, err
	}
	full, err := b.newestPatch(ctx, own, strings.TrimPrefix(version, "v"))
	if err != nil {
		return Set{}, "", err
	}
	module, err := b.moduleFor(ctx, own, full)
	if err != nil {
		return Set{}, "", fmt.Errorf("make a module for Kubernetes %s: %w", full, err)
	}
	set, err := b.set(ctx, kubeRecipe(program+"-"+full, module, full))
	return set, full, err
}

// kubeRecipe stamps the version as a release build does; without it the server says v0.0.0.
func kubeRecipe(name, module, version string) recipe {
	const stamp = " -X k8s.io/component-base/version."
	part := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return recipe{name: name, module: module, jobs: []job{{
		flags: []string{"-ldflags=-s -w" + stamp + "gitVersion=" + version +
			stamp + "gitMajor=" + part[0] + stamp + "gitMinor=" + part[1]},
		targets: []string{"."},
	}}}
}

// required is the version at which a go.mod's text requires a module.
func required(mod, path string) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(path) + `\s+(v\S+)`).FindStringSubmatch(mod)
	if m == nil {
		return ""
	}
	return m[1]
}

// newestPatch completes "1.34" to the newest "v1.34.N" that is published.
func (b Builder) newestPatch(ctx context.Context, dir, version string) (string, error) {
	if strings.Count(version, ".") == 2 {
		return "v" + version, nil
	}
	out, err := b.goCommand(ctx, dir, nil, "list", "-mod=readonly", "-m", "-json", "-versions", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	var module struct{ Versions []string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return "", fmt.Errorf("read the list of versions: %w", err)
	}
	newest := newestOf(module.Versions, "v"+version+".")
	if newest == "" {
		return "", fmt.Errorf("no release of Kubernetes %s is published", version)
	}
	return newest, nil
}

// newestOf is the highest release that is prefix and a number.
func newestOf(versions []string, prefix string) string {
	patch := func(v string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(v, prefix))
		if err != nil || !strings.HasPrefix(v, prefix) {
			return -1 // another minor, or not a release
		}
		return n
	}
	newest := slices.MaxFunc(append(versions, ""), func(a, b string) int { return cmp.Compare(patch(a), patch(b)) })
	if patch(newest) < 0 {
		return ""
	}
	return newest
}

// moduleFor writes the module that builds another Kubernetes out of our one source file. Which
// staging modules it has, and which etcd it wants, its own go.mod says.
func (b Builder) moduleFor(ctx context.Context, own, version string) (string, error) {
	dir := filepath.Join(b.Cache(), "module-"+version)
	source, err := os.ReadFile(filepath.Join(own, "main.go"))
	if err != nil {
		return "", err
	}
	if old, err := os.ReadFile(filepath.Join(dir, "main.go")); err == nil && string(old) == string(source) {
		if _, err := os.Stat(filepath.Join(dir, "go.sum")); err == nil {
			return dir, nil
		}
	}
	fmt.Fprintf(b.Progress, "lab: resolving the modules of Kubernetes %s\n", version)
	out, err := b.goCommand(ctx, own, nil, "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	if err != nil {
		return "", err
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return "", fmt.Errorf("read the module's place: %w", err)
	}
	theirs, err := os.ReadFile(module.GoMod)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	os.Remove(filepath.Join(dir, "go.sum"))
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(moduleText(string(theirs), version)), 0o644); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), source, 0o644); err != nil {
		return "", err
	}
	_, err = b.goCommand(ctx, dir, nil, "mod", "tidy")
	return dir, err
}

// moduleText is the go.mod of a program made of Kubernetes version, whose own go.mod is theirs:
// its staging modules, which that names without a version, are published as v0.
func moduleText(theirs, version string) string {
	staging := "v0." + strings.TrimPrefix(version, "v1.")
	var b strings.Builder
	fmt.Fprintf(&b, "module github.com/weftnet/weft/test/lab/kube\n\ngo 1.26.8\n\nrequire k8s.io/kubernetes %s\n", version)
	etcd := cmp.Or(required(theirs, "go.etcd.io/etcd/server/v3"), required(theirs, "go.etcd.io/etcd/client/v3"))
	if etcd != "" {
		fmt.Fprintf(&b, "require go.etcd.io/etcd/server/v3 %s\n", etcd)
	}
	modules := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:replace\s+)?(k8s\.io/\S+)(?:\s+v0\.0\.0\s*$|\s+=>\s+\./staging/)`).FindAllStringSubmatch(theirs, -1) {
		modules[m[1]] = true
	}
	names := make([]string, 0, len(modules))
	for m := range modules {
		names = append(names, m)
	}
	slices.Sort(names)
	for _, m := range names {
		fmt.Fprintf(&b, "replace %s => %s %s\n", m, m, staging)
	}
	return b.String()
}
