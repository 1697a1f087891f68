// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	deploy   = "../../deploy"
	chartDir = deploy + "/helm/weft"
)

// object is one of Kubernetes, as YAML has it.
type object = map[string]any

// objects are told apart by kind, namespace and name.
type objects map[string]object

func (o objects) add(t *testing.T, v object) {
	t.Helper()
	meta, _ := v["metadata"].(object)
	if v["kind"] == nil || meta["name"] == nil {
		t.Fatalf("an object without kind or name: %v", v)
	}
	key := fmt.Sprintf("%v %v/%v", v["kind"], meta["namespace"], meta["name"])
	if _, twice := o[key]; twice {
		t.Errorf("%s is there twice", key)
	}
	o[key] = v
}

// addAll adds every document of a text.
func (o objects) addAll(t *testing.T, name string, text []byte) {
	t.Helper()
	for doc := range bytes.SplitSeq(append([]byte("\n"), text...), []byte("\n---")) {
		var v object
		if err := yaml.UnmarshalStrict(doc, &v); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, doc)
		}
		if v != nil {
			o.add(t, v)
		}
	}
}

// set is a value of the chart: the path with dots, as --set takes it.
type set map[string]any

func (s set) values() object {
	all := object{}
	for path, v := range s {
		at, keys := all, strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if at[key] == nil {
				at[key] = object{}
			}
			at = at[key].(object)
		}
		at[keys[len(keys)-1]] = v
	}
	return all
}

// cluster is where the chart is rendered for.
type cluster struct{ namespace, version string }

var ours = cluster{"kube-system", "v1.34.0"} //nolint:gochecknoglobals // a constant that is a struct

// render gives what "helm install" would write, or the error that it would end with.
func render(t *testing.T, at cluster, s set) (objects, error) {
	t.Helper()
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	version, err := common.ParseKubeVersion(at.version)
	if err != nil {
		t.Fatal(err)
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := common.ReleaseOptions{Name: "weft", Namespace: at.namespace, IsInstall: true, Revision: 1}
	values, err := util.ToRenderValues(chart, s.values(), options, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, values)
	if err != nil {
		return nil, err
	}
	all := objects{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			all.addAll(t, name, []byte(text))
		}
	}
	for _, crd := range chart.CRDObjects() {
		all.addAll(t, crd.Filename, crd.File.Data)
	}
	return all, nil
}

func rendered(t *testing.T, at cluster, s set) objects {
	t.Helper()
	all, err := render(t, at, s)
	if err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return all
}

// kustomized gives what "kubectl apply -k" would write for folders of deploy/; those that are components
// are said so in front.
func kustomized(t *testing.T, folders ...string) objects {
	t.Helper()
	var resources, components []string
	for _, folder := range folders {
		if name, is := strings.CutPrefix(folder, "component:"); is {
			components = append(components, filepath.Join(deploy, name))
		} else {
			resources = append(resources, filepath.Join(deploy, folder))
		}
	}
	text, err := yaml.Marshal(object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": relative(t, resources), "components": relative(t, components),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := own(t)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for _, r := range made.Resources() {
		v, err := r.Map()
		if err != nil {
			t.Fatal(err)
		}
		all.add(t, clone(t, v))
	}
	return all
}

// own is a folder for a kustomization, beside this file: kustomize takes relative paths alone.
func own(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "kustomization-") //nolint:usetesting // elsewhere it takes no relative path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// relative are the paths as a folder below this one has them.
func relative(t *testing.T, paths []string) []string {
	t.Helper()
	all := make([]string, 0, len(paths))
	for _, path := range paths {
		all = append(all, filepath.Join("..", path))
	}
	return all
}

// clone has numbers as YAML has them, wherever the value comes from.
func clone(t *testing.T, v object) object {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var c object
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// sorted puts lists whose order says nothing into one: those of items with a mountPath or a name.
// Containers and webhooks are such lists as well.
func sorted(v any) any {
	switch v := v.(type) {
	case object:
		for k := range v {
			v[k] = sorted(v[k])
		}
	case []any:
		for i := range v {
			v[i] = sorted(v[i])
		}
		slices.SortStableFunc(v, func(a, b any) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	}
	return v
}

func keyOf(v any) string {
	m, _ := v.(object)
	for _, key := range []string{"mountPath", "name"} {
		if s, is := m[key].(string); is {
			return s
		}
	}
	return ""
}

func diff(want, got objects) string {
	for _, all := range []objects{want, got} {
		for key := range all {
			all[key] = sorted(all[key]).(object)
		}
	}
	return gocmp.Diff(want, got)
}

// definitions are the network driver's: the chart always brings them, since Helm takes no definition
// to a cluster later on; by hand they are a step of their own.
func definitions(t *testing.T) objects {
	t.Helper()
	all := objects{}
	for _, name := range []string{"crd-ciliumnetworkdrivernodeconfigs.yaml", "crd-ciliumnetworkdriverclusterconfigs.yaml"} {
		text, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			t.Fatal(err)
		}
		all.addAll(t, name, text)
	}
	return all
}

var errWant = errors.New("want an error")

// refused is the text that rendering ends with.
func refused(t *testing.T, at cluster, s set) string {
	t.Helper()
	_, err := render(t, at, s)
	return fmt.Sprint(cmp.Or(err, errWant))
}

// text reads a file of the repository.
func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
