// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// packages are what a pod and its guest run; apt adds what they need.
func packages() []string {
	return []string{"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86", "qemu-guest-agent", "iproute2"}
}

// unwanted are drivers of libvirt's that look for what no pod has, and say so at length.
const unwanted = "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_{interface,network,nodedev,nwfilter,secret,storage}.so"

// Root is the directory of the unpacked packages below cache; the first time it is made.
func Root(ctx context.Context, cache string, progress io.Writer) (string, error) {
	dir := filepath.Join(cache, "libvirt")
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	debs, err := fetch(ctx, filepath.Join(dir, "apt"), progress)
	if err != nil {
		return "", err
	}
	tmp := root + ".tmp"
	if err := unpack(ctx, debs, tmp); err != nil {
		return "", err
	}
	return root, os.Rename(tmp, root)
}

// fetch downloads the packages and all that they need, as on a machine that has none, from where
// this machine gets its own, with lists of its own.
func fetch(ctx context.Context, dir string, progress io.Writer) ([]string, error) {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	apt := func(args ...string) error {
		options := []string{
			"-o", "Dir::State=" + filepath.Join(dir, "state"), "-o", "Dir::State::status=" + status,
			"-o", "Dir::Cache=" + filepath.Join(dir, "cache"), "-o", "APT::Sandbox::User=root", "-q",
		}
		cmd := exec.CommandContext(ctx, "apt-get", append(options, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
		}
		return nil
	}
	fmt.Fprintln(progress, "guest: downloading libvirt and its guest agent")
	if err := apt("update"); err != nil {
		return nil, err
	}
	if err := apt(append([]string{"install", "-y", "--no-install-recommends", "--download-only"}, packages()...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "cache/archives/*.deb"))
}

// unpack makes a root out of packages, whose scripts are not run.
func unpack(ctx context.Context, debs []string, root string) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} { // as any Debian of today has them
		if err := os.MkdirAll(filepath.Join(root, "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", deb, err, out)
		}
	}
	return configure(root)
}

// configure makes of unpacked packages what a pod needs.
func configure(root string) error {
	if err := os.RemoveAll(filepath.Join(root, "var/run")); err != nil {
		return err
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		return err
	}
	before, rest, _ := strings.Cut(unwanted, "{")
	names, after, _ := strings.Cut(rest, "}")
	for name := range strings.SplitSeq(names, ",") {
		if err := os.Remove(filepath.Join(root, before+name+after)); err != nil {
			return err
		}
	}
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "root", "weft", "var/lib/libvirt/qemu", "var/log/libvirt/qemu", "var/cache/libvirt/qemu"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range files() {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files are configuration: libvirt runs everything as root and touches no owners, security labels,
// cgroups or namespaces, which are the pod's.
func files() map[string]string {
	return map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:64055::/var/lib/libvirt:/bin/false\n",
		"etc/group":  "root:x:0:\nkvm:x:106:\nlibvirt:x:107:\nlibvirt-qemu:x:64055:\n",
		"etc/libvirt/libvirtd.conf": `unix_sock_group = "root"
auth_unix_ro = "none"
auth_unix_rw = "none"
`,
		"etc/libvirt/qemu.conf": `user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
`,
	}
}

// program gives the files of a program of the root and of the libraries that it is linked to, as
// vm.Options.Files wants them.
func program(ctx context.Context, root, path string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, "chroot", root, "/lib64/ld-linux-x86-64.so.2", "--list", path).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w\n%s", path, err, out)
	}
	all := map[string]string{"/usr/bin/" + filepath.Base(path): filepath.Join(root, path)}
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			all[field] = filepath.Join(root, field)
		}
	}
	return all, nil
}
