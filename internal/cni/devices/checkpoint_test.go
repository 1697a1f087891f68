// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
)

// kubelet makes a kubelet directory with that checkpoint.
func kubelet(t testing.TB, checkpoint string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"), checkpoint)
	return dir
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// entries is a checkpoint with those entries.
func entries(list ...string) string {
	return `{"Data":{"PodDeviceEntries":[` + strings.Join(list, ",") + `],"RegisteredDevices":{"ex.com/vf":["a","b"]}},"Checksum":1234567890}`
}

func entry(uid, resource, ids string) string {
	return `{"PodUID":"` + uid + `","ContainerName":"c","ResourceName":"` + resource + `","DeviceIDs":` + ids + `,"AllocResp":"CgA="}`
}

func TestCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want map[string][]string
	}{
		"by NUMA node": {
			entries(entry("uid-1", "ex.com/vf", `{"1":["0000:03:02.1"],"0":["0000:03:02.0"]}`)),
			map[string][]string{"ex.com/vf": {"0000:03:02.0", "0000:03:02.1"}},
		},
		"no NUMA node":      {entries(entry("uid-1", "ex.com/vf", `{"-1":["a"]}`)), map[string][]string{"ex.com/vf": {"a"}}},
		"plain array (B32)": {entries(entry("uid-1", "ex.com/vf", `["b","a"]`)), map[string][]string{"ex.com/vf": {"a", "b"}}},
		"several containers and resources": {
			entries(entry("uid-1", "ex.com/vf", `{"0":["b"]}`), entry("uid-1", "ex.com/gpu", `["g"]`), entry("uid-1", "ex.com/vf", `{"0":["a","b"]}`)),
			map[string][]string{"ex.com/vf": {"a", "b"}, "ex.com/gpu": {"g"}},
		},
		"another pod's": {entries(entry("uid-2", "ex.com/vf", `["a"]`)), map[string][]string{}},
		// What is broken about other pods is theirs.
		"another pod's, broken": {entries(entry("uid-2", "ex.com/vf", `7`), entry("uid-1", "r", `["x"]`)), map[string][]string{"r": {"x"}}},
		"no entries":            {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, map[string][]string{}},
		"null IDs":              {entries(entry("uid-1", "ex.com/vf", `null`)), map[string][]string{"ex.com/vf": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := devices.Checkpoint(kubelet(t, c.text), "uid-1")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := devices.Checkpoint(kubelet(t, entries(entry("", "r", `["x"]`))), ""); err != nil || len(got) > 0 {
		t.Errorf("no UID matches nothing: %v, %v", got, err)
	}
}

func TestCheckpointAbsent(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		got, err := devices.Checkpoint(dir, "uid-1")
		if err != nil || got == nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func TestBrokenCheckpoint(t *testing.T) {
	for name, c := range map[string]struct{ text, words string }{
		"empty":          {"", "unexpected end"},
		"cut off":        {entries(entry("uid-1", "r", `["x"]`))[:90], "unexpected end"},
		"not an object":  {`[]`, "array"},
		"no data":        {`{"Checksum":1}`, "it has no Data"},
		"IDs a number":   {entries(entry("uid-1", "r", `7`)), "Data.PodDeviceEntries[0].DeviceIDs"},
		"IDs of numbers": {entries(entry("uid-2", "r", `[]`), entry("uid-1", "r", `{"0":[7]}`)), "Data.PodDeviceEntries[1].DeviceIDs"},
		"an empty ID":    {entries(entry("uid-1", "r", `[""]`)), "a device ID is empty"},
		"no resource":    {entries(entry("uid-1", "", `["a"]`)), "Data.PodDeviceEntries[0].ResourceName is empty"},
		"too large":      {strings.Repeat(" ", devices.MaxCheckpoint+1), "is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := kubelet(t, c.text)
			got, err := devices.Checkpoint(dir, "uid-1")
			if got != nil {
				t.Errorf("devices %v beside an error", got)
			}
			wantFault(t, err, fault.TryLater, "file "+dir+"/device-plugins/kubelet_internal_checkpoint", c.words)
		})
	}
	t.Run("symbolic link", func(t *testing.T) {
		dir := kubelet(t, entries())
		file := filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint")
		if err := os.Rename(file, file+".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("kubelet_internal_checkpoint.old", file); err != nil {
			t.Fatal(err)
		}
		_, err := devices.Checkpoint(dir, "uid-1")
		wantFault(t, err, fault.TryLater, "is a symbolic link")
	})
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := devices.Checkpoint(dir, "uid-1")
		wantFault(t, err, fault.TryLater, "is no regular file")
	})
}

// TestByAnother: a device is compared with all of the node's, so the file's IDs are read once and for
// all; what cannot be read of another pod says nothing.
func TestByAnother(t *testing.T) {
	held, err := devices.ReadCheckpoint(kubelet(t, entries(
		entry("uid-2", "r", `{"0":["a","b"]}`), entry("uid-3", "r", `["c",""]`), entry("uid-1", "r", `["b"]`), entry("uid-2", "other", `["d"]`),
	)))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"a": true, "b": false, "c": false, "d": false} {
		if got := held.ByAnother("uid-1", "r", id); got != want {
			t.Errorf("device %s is another's: %t", id, got)
		}
	}
	if n := testing.AllocsPerRun(10, func() { held.ByAnother("uid-1", "r", "a") }); n != 0 {
		t.Errorf("a comparison takes %v allocations: something is read again", n)
	}
}

func TestMerge(t *testing.T) {
	a := map[string][]string{"vf": {"b", "a"}, "x": nil}
	got := devices.Merge(a, nil, map[string][]string{"vf": {"a", "c"}, "gpu": {"g"}})
	if diff := cmp.Diff(map[string][]string{"vf": {"a", "b", "c"}, "gpu": {"g"}, "x": nil}, got); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
	if a["vf"][0] != "b" {
		t.Error("a source was changed")
	}
	if devices.Merge() == nil {
		t.Error("nothing merged is nil")
	}
}

// wantFault says that err is one fault of that code whose text holds all words.
func wantFault(t testing.TB, err error, code fault.Code, words ...string) {
	t.Helper()
	all := fault.All(err)
	if len(all) != 1 {
		t.Fatalf("want one fault with %q, got %d: %v", words, len(all), err)
	}
	text := all[0].Error()
	if all[0].Code != code {
		t.Errorf("code %d, want %d: %s", all[0].Code, code, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in %q", word, text)
		}
	}
}

// wantTidy checks what every map of devices promises.
func wantTidy(t testing.TB, found map[string][]string) {
	t.Helper()
	if found == nil {
		t.Fatal("no map and no error")
	}
	for resource, ids := range found {
		if resource == "" || slices.Contains(ids, "") || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
			t.Errorf("%q has %q", resource, ids)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(entries(entry("uid-1", "ex.com/vf", `{"0":["b","a"]}`), entry("uid-1", "ex.com/vf", `["a"]`))))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1"}]}}`))
	f.Add([]byte(`{"data":null}`))
	dir := kubelet(f, "")
	f.Fuzz(func(t *testing.T, b []byte) {
		write(t, filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"), string(b))
		found, err := devices.Checkpoint(dir, "uid-1")
		if err == nil {
			wantTidy(t, found)
			return
		}
		if all := fault.All(err); len(all) != 1 || all[0].Code != fault.TryLater || strings.ContainsAny(all[0].Error(), "\r\n") {
			t.Errorf("malformed fault: %v", err)
		}
	})
}
