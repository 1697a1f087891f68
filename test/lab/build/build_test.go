// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModuleText(t *testing.T) {
	theirs := `module k8s.io/kubernetes

go 1.24.0

require (
	github.com/spf13/cobra v1.9.1
	go.etcd.io/etcd/api/v3 v3.6.4 // indirect
	go.etcd.io/etcd/client/v3 v3.6.4
	k8s.io/api v0.0.0
	k8s.io/kubelet v0.0.0 // indirect
	k8s.io/klog/v2 v2.130.1
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
`
	want := `module github.com/weftnet/weft/test/lab/kube

go 1.26.8

require k8s.io/kubernetes v1.34.2
require go.etcd.io/etcd/server/v3 v3.6.4
replace k8s.io/api => k8s.io/api v0.34.2
replace k8s.io/kubelet => k8s.io/kubelet v0.34.2
`
	if diff := cmp.Diff(want, moduleText(theirs, "v1.34.2")); diff != "" {
		t.Errorf("module (-want +got):\n%s", diff)
	}
}

func TestNewestOf(t *testing.T) {
	versions := []string{"v1.3.4", "v1.34.0", "v1.34.2", "v1.34.10", "v1.34.11-rc.0", "v1.35.1", "v1.36.0-alpha.1"}
	for version, want := range map[string]string{"v1.34.": "v1.34.10", "v1.35.": "v1.35.1", "v1.36.": "", "v2.0.": ""} {
		if got := newestOf(versions, version); got != want {
			t.Errorf("newest of %s is %q, want %q", version, got, want)
		}
	}
	if got := newestOf(nil, "v1.34."); got != "" {
		t.Errorf("newest of nothing is %q", got)
	}
}

// The hash changes with every file that decides what is built, and with nothing else.
func TestHash(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n")
	r := recipe{name: "set", module: dir}
	seen := map[string]string{}
	check := func(what string, r recipe, fresh bool) {
		t.Helper()
		hash, err := r.hash()
		if err != nil {
			t.Fatal(err)
		}
		if earlier, ok := seen[hash]; ok == fresh {
			t.Errorf("%s: hash %s, as with %q", what, hash, earlier)
		}
		seen[hash] = what
	}
	check("a module", r, true)
	write("README.md", "text")
	check("a page beside it", r, false)
	write("go.sum", "sum\n")
	check("its sums", r, true)
	write("main.go", "package main\n")
	check("a source", r, true)
	check("a flag", recipe{name: "set", module: dir, jobs: []job{{cgo: true}}}, true)
}

// A set that is there is not built again: its module need not even be one.
func TestCached(t *testing.T) {
	root := t.TempDir()
	b := Builder{Root: root, Progress: t.Output()}
	r := recipe{name: "set", module: root, jobs: []job{{targets: []string{"none"}}}}
	if _, err := b.set(t.Context(), r); err == nil {
		t.Fatal("a set was built out of nothing")
	}
	hash, err := r.hash()
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(b.Cache(), "set-"+hash, "bin")
	if err := os.MkdirAll(want, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := b.set(t.Context(), r)
	if err != nil || got.Dir != want {
		t.Errorf("set is %q, %v, want %q", got.Dir, err, want)
	}
}
