// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
)

const macvlanConf = `{"cniVersion":"1.0.0","name":"mv","type":"macvlan","master":"eth7"}`

// nodeDir writes files, in sub-directories where their names say so.
func nodeDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// published is the configuration that the runtime would call weft-cni with.
func published(t *testing.T, dir string) (*nodeFiles, *netconf.Conf, []netconf.Network) {
	t.Helper()
	f, err := findFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.runtimeConf("/bins")
	if err != nil {
		t.Fatal(err)
	}
	conf, warnings, err := netconf.Parse(list.Plugins[0].Bytes)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%s: %v, %v", list.Plugins[0].Bytes, warnings, err)
	}
	if conf.Type != "weft-cni" || conf.BinDir != "/bins" || conf.StateDir != stateDir || conf.Manifests != dir ||
		conf.Kubeconfig != "" || conf.AgentSocketSet || list.Name != conf.Name || list.CNIVersion != conf.CNIVersion {
		t.Errorf("published %s", list.Plugins[0].Bytes)
	}
	return f, conf, f.networks(list)
}

func TestNodeWithoutFiles(t *testing.T) {
	dir := nodeDir(t, map[string]string{"pods.yaml": ""})
	f, conf, networks := published(t, dir)
	if conf.Name != "weft" || conf.CNIVersion != "1.1.0" || conf.ClusterNetwork != clusterFile || conf.ConfDir != dir ||
		!conf.Capabilities[annotationsCapability] || f.pods != "" || len(networks) != 0 {
		t.Errorf("got %s, pod network %q, %d networks", conf.Raw, f.pods, len(networks))
	}
}

func TestNodeWithMultus(t *testing.T) {
	dir := nodeDir(t, map[string]string{
		"00-multus.conflist": `{"cniVersion":"0.3.1","name":"m","plugins":[{"type":"multus-shim","kubeconfig":"/k","agentSocket":"/s",
			"clusterNetwork":"/etc/cni/net.d/10-a.conf","readinessindicatorfile":"/var/run/gone","namespaceIsolation":true,
			"defaultNetworks":["by-name","/etc/cni/net.d/10-a.conf","/etc/cni/net.d/none.conf"]}]}`,
		"10-a.conf": macvlanConf, "20-other.conf": `{"type":"multus"}`, "30-broken.conf": "{", "net.d/x.conflist": `{"name":"x","plugins":[{"type":"bridge","bridge":"br7"}]}`,
	})
	f, conf, networks := published(t, dir)
	a := filepath.Join(dir, "10-a.conf")
	if conf.Name != "m" || conf.CNIVersion != "0.3.1" || conf.ClusterNetwork != a || conf.ReadinessIndicatorFile != "/var/run/gone" ||
		!conf.NamespaceIsolation || conf.ConfDir != filepath.Join(dir, "net.d") || f.pods != a {
		t.Errorf("got %s, pod network %q", conf.Raw, f.pods)
	}
	if want := []string{"by-name", a, "/etc/cni/net.d/none.conf"}; !slices.Equal(conf.DefaultNetworks, want) {
		t.Errorf("default networks %q, want %q", conf.DefaultNetworks, want)
	}
	if len(networks) != 2 || networks[0].Name != "mv" || networks[1].Name != "x" {
		t.Errorf("networks %+v", networks)
	}
}

// TestNodeWithDelegates: the thin form of Multus has the networks inside.
func TestNodeWithDelegates(t *testing.T) {
	_, conf, networks := published(t, nodeDir(t, map[string]string{
		"a.conf": `{"cniVersion":"1.0.0","name":"m","type":"multus","delegates":[` + macvlanConf + `]}`,
	}))
	if conf.ClusterNetwork != "" || len(networks) != 1 || networks[0].Name != "mv" {
		t.Errorf("got %s, networks %+v", conf.Raw, networks)
	}
}

func TestFindFilesFaults(t *testing.T) {
	dir := nodeDir(t, map[string]string{"20-pods.conf": macvlanConf, "big.conf": strings.Repeat(" ", netconf.MaxBytes+1), "x.conf/y": "", "net.d": ""})
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "10-fifo.conf"), 0o644), os.Symlink("/etc/passwd", filepath.Join(dir, "out.conf"))); err != nil {
		t.Fatal(err)
	}
	f, err := findFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f.pods != filepath.Join(dir, "20-pods.conf") || f.confDir != dir || len(f.faults) != 3 {
		t.Fatalf("got %+v", f)
	}
	for at, want := range []error{hostfiles.ErrNotRegular, hostfiles.ErrTooLarge, nil} {
		name := []string{"10-fifo.conf", "big.conf", "out.conf"}[at]
		if err := f.faults[at]; want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := findFiles(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestIsOwn(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type":"weft-cni"}`: true,
		`{"type":"multus"}`:   true,
		`{"plugins":[{"type":"x"},{"type":"multus-shim"}]}`: true,
		`{"type":"weft-cni","plugins":[{"type":"x"}]}`:      false, // a list: its plugins count
		`{"type":"macvlan"}`:                                false,
		`{"type":7}`:                                        false,
		`{"type":null}`:                                     false,
		`{"plugins":7}`:                                     false,
		`{"plugins":[null,7,"multus",{}]}`:                  false,
		`["weft-cni"]`:                                      false,
		`{"type":"weft-cni"`:                                false,
		``:                                                  false,
	} {
		if got := isOwn([]byte(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}
