// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const podUID = "0f3a2b1c-1111-2222-3333-444455556666"

func TestPodOf(t *testing.T) {
	under := strings.ReplaceAll(podUID, "-", "_")
	for cgroup, want := range map[string]string{
		"0::/kubepods/burstable/pod" + podUID + "/abc\n":                                                                                                         podUID,
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/cri-containerd-abc.scope\n":                                     podUID,
		"0::/../../kubepods.slice/kubepods-pod" + under + ".slice/crio-abc.scope\n":                                                                              podUID,
		"12:pids:/kubepods/pod" + podUID + "/abc\n11:cpu:/\n":                                                                                                    podUID,
		"0::/kubepods/pod" + podUID + "/abc/podaaaaaaaa-1111-2222-3333-444455556666\n":                                                                           podUID, // the pod's own names say nothing
		"0::/kubepods/burstable/pod" + podUID + "/abc:pod\n":                                                                                                     podUID,
		"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + under + ".slice/cri-containerd-abc.scope\n": podUID,
		"0::/kubelet/kubepods/burstable/pod" + podUID + "/abc\n":                                                                                                 podUID,
		"0::/a-b-kubepods-pod" + under + ".slice/kubepods-podaaaaaaaa_1111_2222_3333_444455556666.slice\n":                                                       podUID,
		"0::/user.slice/kubepods-x-y-pod" + under + ".slice\n":                                                                                                   "",
		"0::/user.slice/session.scope\n":                                                                                                                         "",
		"0::/podman/libpod-abc\n":                                                                                                                                "",
		"":                                                                                                                                                       "",
	} {
		if got := podOf(cgroup); got != want {
			t.Errorf("%q is of pod %q, want %q", cgroup, got, want)
		}
	}
}

// proc is a /proc with this process as one of a pod, whose root is a directory, and beside it one
// of another pod.
func proc(t *testing.T, of string) (dir, root string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root = filepath.Join(dir, "1", "root")
	for _, d := range []string{filepath.Join(root, "run/libvirt"), filepath.Join(dir, strconv.Itoa(os.Getpid()))} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for pid, pod := range map[string]string{"1": podUID, strconv.Itoa(os.Getpid()): of} {
		if err := os.WriteFile(filepath.Join(dir, pid, "cgroup"), []byte("0::/kubepods/pod"+pod+"/abc\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, root
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func TestLauncher(t *testing.T) {
	for name, c := range map[string]struct {
		of   string // the pod of who listens
		make func(t *testing.T, dir, root string)
		want string // of the error; "" = it connects
	}{
		"there": {podUID, func(t *testing.T, _, root string) {
			t.Helper()
			listen(t, root+"/run/libvirt/virtqemud-sock")
		}, ""},
		"by the other name, over a link of the image": {podUID, func(t *testing.T, _, root string) {
			t.Helper()
			must(t, os.MkdirAll(root+"/var", 0o755), os.Remove(root+"/run/libvirt"), os.Remove(root+"/run"),
				os.MkdirAll(root+"/data/libvirt", 0o755), os.Symlink("/data", root+"/var/run"))
			listen(t, root+"/data/libvirt/libvirt-sock")
		}, ""},
		"nothing": {podUID, func(*testing.T, string, string) {}, "no process of the pod"},
		"a link that leads out": {podUID, func(t *testing.T, dir, root string) {
			t.Helper()
			listen(t, dir+"/host.sock")
			must(t, os.Symlink(dir+"/host.sock", root+"/run/libvirt/virtqemud-sock"))
		}, "no process of the pod"},
		"a link that climbs out": {podUID, func(t *testing.T, dir, root string) {
			t.Helper()
			listen(t, dir+"/host.sock")
			must(t, os.Symlink("../../../../../host.sock", root+"/run/libvirt/virtqemud-sock"))
		}, "no process of the pod"},
		"a directory that leads out": {podUID, func(t *testing.T, dir, root string) {
			t.Helper()
			must(t, os.Mkdir(dir+"/libvirt", 0o755), os.Remove(root+"/run/libvirt"), os.Symlink(dir+"/libvirt", root+"/run/libvirt"))
			listen(t, dir+"/libvirt/virtqemud-sock")
		}, "no process of the pod"},
		"a magic link": {podUID, func(t *testing.T, _, root string) {
			t.Helper()
			must(t, os.Symlink("/proc/self/fd/0", root+"/run/libvirt/virtqemud-sock"))
		}, "no process of the pod"},
		"no socket": {podUID, func(t *testing.T, _, root string) {
			t.Helper()
			must(t, os.WriteFile(root+"/run/libvirt/virtqemud-sock", nil, 0o644))
		}, "it is no socket"},
		"another pod listens": {"aaaaaaaa-1111-2222-3333-444455556666", func(t *testing.T, _, root string) {
			t.Helper()
			listen(t, root+"/run/libvirt/virtqemud-sock")
		}, "none of the pod"},
		"a loop": {podUID, func(t *testing.T, _, root string) {
			t.Helper()
			must(t, os.Symlink("virtqemud-sock", root+"/run/libvirt/virtqemud-sock"))
		}, "symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, root := proc(t, c.of)
			c.make(t, dir, root)
			conn, err := Launcher{Processes: NewProcesses(dir), Pod: podUID}.Dial(t.Context())
			if conn != nil {
				conn.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Who gives up is not kept waiting.
func TestLauncherGivesUp(t *testing.T) {
	dir, root := proc(t, podUID)
	listen(t, root+"/run/libvirt/virtqemud-sock")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	conn, err := Launcher{Processes: NewProcesses(dir), Pod: podUID}.Dial(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", conn, err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
