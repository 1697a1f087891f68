// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

const (
	pciInfo  = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.0"} , "more":1e2}`
	userInfo = `{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"server","path":"/s"}}`
)

// attachment is one with a drawn device and the capability; its file is <dir>/cni/f.
func attachment(dir string) (*netconf.Conf, plan.Attachment) {
	conf := netconf.Defaults()
	conf.DeviceInfoDir = dir
	return conf, plan.Attachment{
		ResourceName: "ex.com/vf", DeviceID: "pci/0000:03:02.0",
		RuntimeConfig: map[string]json.RawMessage{devices.InfoCapability: netconf.String(dir + "/cni/f")},
	}
}

// dpFile is where the device plugin describes the device of attachment.
func dpFile(dir string) string {
	return filepath.Join(dir, "dp", "ex.com-vf-pci-0000:03:02.0-device.json")
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// list names the files of a directory, hidden ones too.
func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestInfoRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "devinfo")
	conf, a := attachment(dir)
	write(t, dpFile(dir), pciInfo)
	write(t, filepath.Join(dir, "cni", "f"), "stale and much longer than what takes its place: "+strings.Repeat("x", 200))
	for range 2 { // a repeated ADD replaces its own file
		if err := devices.CopyInfo(conf, a); err != nil {
			t.Fatal(err)
		}
		if got := fileText(t, filepath.Join(dir, "cni", "f")); got != pciInfo {
			t.Errorf("copied %q", got)
		}
	}
	if names := list(t, filepath.Join(dir, "cni")); !slices.Equal(names, []string{"f"}) {
		t.Errorf("files %q", names)
	}
	if info, err := os.Stat(filepath.Join(dir, "cni", "f")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, err := devices.ReadInfo(conf, a)
	if err != nil || string(got) != pciInfo {
		t.Errorf("read %q, %v", got, err)
	}
	write(t, filepath.Join(dir, "cni", "f"), userInfo) // a plugin knows better
	if got, err = devices.ReadInfo(conf, a); err != nil || string(got) != userInfo {
		t.Errorf("read %q, %v", got, err)
	}
	for range 2 {
		if err := devices.RemoveInfo(conf, a); err != nil {
			t.Fatal(err)
		}
		if names := list(t, filepath.Join(dir, "cni")); len(names) != 0 {
			t.Errorf("files %q are left", names)
		}
	}
	if got := fileText(t, dpFile(dir)); got != pciInfo {
		t.Errorf("the device plugin's file is %q", got)
	}
}

// The directory is there for plugins that write the file themselves, and nothing stale is in their way.
func TestInfoOfPluginAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "devinfo")
	conf, a := attachment(dir)
	a.ResourceName, a.DeviceID = "", ""
	if err := devices.CopyInfo(conf, a); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "cni")} {
		if info, err := os.Stat(d); err != nil || info.Mode() != os.ModeDir|0o755 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
	if got, err := devices.ReadInfo(conf, a); got != nil || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	write(t, filepath.Join(dir, "cni", "f"), userInfo)
	if got, err := devices.ReadInfo(conf, a); string(got) != userInfo || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := devices.CopyInfo(conf, a); err != nil {
		t.Fatal(err)
	}
	if names := list(t, filepath.Join(dir, "cni")); len(names) != 0 {
		t.Errorf("stale files %q", names)
	}
}

// Without the capability no plugin has use for a file; the device is reported all the same.
func TestInfoWithoutCapability(t *testing.T) {
	dir := t.TempDir()
	conf, a := attachment(dir)
	a.RuntimeConfig = nil
	write(t, dpFile(dir), pciInfo)
	if err := devices.CopyInfo(conf, a); err != nil {
		t.Fatal(err)
	}
	if names := list(t, dir); !slices.Equal(names, []string{"dp"}) {
		t.Errorf("files %q", names)
	}
	if got, err := devices.ReadInfo(conf, a); string(got) != pciInfo || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := devices.RemoveInfo(conf, a); err != nil {
		t.Error(err)
	}
}

func TestBrokenInfo(t *testing.T) {
	for name, c := range map[string]struct{ text, words string }{
		"empty":             {"", "device.json: "},
		"array":             {`[]`, "an array"},
		"two values":        {pciInfo + pciInfo, "device.json: "},
		"no type":           {`{"version":"1.1.0"}`, "type: is missing"},
		"empty type":        {`{"type":"","version":"1.1.0"}`, "type: is empty"},
		"type a number":     {`{"type":7,"version":"1.1.0"}`, "type: "},
		"no version":        {`{"type":"pci","pci":{}}`, "version: is missing"},
		"no pci":            {`{"type":"pci","version":"1.1.0"}`, "pci: is missing"},
		"memif not a map":   {`{"type":"memif","version":"1.1.0","memif":[]}`, "memif: "},
		"more than allowed": {`{"type":"x","version":"1.1.0","x":"` + strings.Repeat("x", devices.MaxInfo) + `"}`, "is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			conf, a := attachment(dir)
			write(t, dpFile(dir), c.text)
			wantFault(t, devices.CheckInfo(conf, a), fault.Config, "device-info file "+dpFile(dir), c.words)
			wantFault(t, devices.CopyInfo(conf, a), fault.Config, c.words)
			if names := list(t, dir); !slices.Equal(names, []string{"dp"}) {
				t.Errorf("files %q", names)
			}
			// The same from a CNI plugin is that plugin's fault.
			write(t, filepath.Join(dir, "cni", "f"), c.text)
			_, err := devices.ReadInfo(conf, a)
			wantFault(t, err, fault.Result, "device-info file "+dir+"/cni/f", strings.TrimPrefix(c.words, "device.json"))
		})
	}
	dir := t.TempDir()
	conf, a := attachment(dir)
	write(t, dpFile(dir), `{"type":"of tomorrow","version":"2.0.0"}`)
	if err := devices.CheckInfo(conf, a); err != nil {
		t.Errorf("a type that is not known: %v", err)
	}
}

// No link is followed and nothing but <dir>/cni is touched, whatever stands there.
func TestInfoStaysInside(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, pciInfo)
	link := func(t *testing.T, target, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("device plugin's file", func(t *testing.T) {
		dir := t.TempDir()
		conf, a := attachment(dir)
		link(t, secret, dpFile(dir))
		wantFault(t, devices.CopyInfo(conf, a), fault.Config, "is a symbolic link")
	})
	t.Run("file to be replaced", func(t *testing.T) {
		dir := t.TempDir()
		conf, a := attachment(dir)
		write(t, dpFile(dir), userInfo)
		link(t, secret, filepath.Join(dir, "cni", "f"))
		if err := devices.CopyInfo(conf, a); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(filepath.Join(dir, "cni", "f")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		link(t, secret, filepath.Join(dir, "cni", "g"))
		a.RuntimeConfig[devices.InfoCapability] = netconf.String(dir + "/cni/g")
		_, err := devices.ReadInfo(conf, a)
		wantFault(t, err, fault.Result, "is a symbolic link")
		if err := devices.RemoveInfo(conf, a); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("directories", func(t *testing.T) {
		dir, other := t.TempDir(), t.TempDir()
		conf, a := attachment(dir)
		write(t, filepath.Join(other, "f"), pciInfo)
		link(t, other, filepath.Join(dir, "cni"))
		wantFault(t, devices.CopyInfo(conf, a), fault.State, "is a symbolic link")
		wantFault(t, devices.RemoveInfo(conf, a), fault.State, "is a symbolic link")
		if names := list(t, other); !slices.Equal(names, []string{"f"}) {
			t.Errorf("files %q", names)
		}
	})
	t.Run("other paths", func(t *testing.T) {
		dir := t.TempDir()
		conf, a := attachment(dir)
		write(t, filepath.Join(dir, "outside"), pciInfo)
		for _, path := range []string{
			dir + "/cni/../outside", dir + "/outside", dir + "/cni/..", dir + "/cni/.", dir + "/cni/", dir + "/cni/a/b", secret, "cni/f", "",
		} {
			a.RuntimeConfig[devices.InfoCapability] = netconf.String(path)
			if err := devices.CopyInfo(conf, a); err != nil {
				t.Errorf("%s: copy: %v", path, err)
			}
			if got, err := devices.ReadInfo(conf, a); got != nil || err != nil {
				t.Errorf("%s: read %q, %v", path, got, err)
			}
			if err := devices.RemoveInfo(conf, a); err != nil {
				t.Errorf("%s: remove: %v", path, err)
			}
		}
		if names := list(t, dir); !slices.Equal(names, []string{"outside"}) {
			t.Errorf("files %q", names)
		}
	})
	if fileText(t, secret) != pciInfo {
		t.Error("a file outside was changed")
	}
}

// What the file system refuses is a fault of the node.
func TestInfoUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	write(t, dir, "")
	conf, a := attachment(dir)
	a.ResourceName = ""
	wantFault(t, devices.CopyInfo(conf, a), fault.State, "device-info file "+dir+"/cni/f", "not a directory")
	wantFault(t, devices.RemoveInfo(conf, a), fault.State, "not a directory")
}
