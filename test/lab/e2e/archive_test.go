// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The archive of make images is what docs/install.md says: containerd imports it, and its programs
// start there under their names with nothing else in the image. It has a namespace of containerd to
// itself, so that no pod gets an image which is older than the tree.
func TestArchive(t *testing.T) {
	r := newRig(t)
	r.step("weft is installed")
	archive, err := r.cp.Give(r.archive())
	if err != nil {
		t.Fatal(err)
	}
	const namespace, reference = "archive", "localhost/weft/weft:dev"
	ctr := func(args ...string) (string, error) {
		return r.node.Exec(r.ctx(), append([]string{"ctr", "--namespace=" + namespace}, args...)...)
	}
	t.Cleanup(func() {
		for _, args := range [][]string{{"images", "rm", "--sync", reference}, {"namespaces", "rm", namespace}} {
			if out, err := ctr(args...); err != nil {
				t.Errorf("%s: %v %s", args[0], err, out)
			}
		}
	})
	if out, err := ctr("images", "import", archive); err != nil {
		t.Fatalf("ctr images import: %v\n%s", err, out)
	}
	if out, err := ctr("images", "ls"); err != nil || !strings.Contains(out, reference) || !strings.Contains(out, "linux/amd64") {
		t.Fatalf("ctr images ls: %v\n%s", err, out)
	}
	r.step("imported")
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"agent", "weft-agent ", []string{"/weft-agent", "--version"}},
		{"hands", `"supportedVersions"`, []string{"/weft-cni"}},
		{"operator", "weft-operator ", []string{"/weft-operator", "--version"}},
		{"cli", "weft ", []string{"/weft", "--version"}},
		{"alias", "statedb", []string{"/cilium-dbg", "--help"}},
	} {
		out, err := ctr(append([]string{"run", "--rm", "--cgroup=", "--env=CNI_COMMAND=VERSION", reference, c.name}, c.args...)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s in the image: %v\n%s\nwant %q", strings.Join(c.args, " "), err, out, c.want)
		}
	}
	r.step("its programs run")
}

// archive is the archive of make images where there is one; else its part for this processor is made
// by the same rules.
func (r *rig) archive() string {
	r.t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		r.t.Fatal(err)
	}
	made := filepath.Join(root, "bin", "weft-images.tar")
	if _, err := os.Stat(made); err == nil {
		return made
	}
	dir := r.t.TempDir()
	cmd := exec.CommandContext(r.t.Context(), "make", "--directory="+root, "images", "IMAGE_ARCHS=amd64", "BIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("make images: %v\n%s", err, out)
	}
	r.step("make images, for amd64")
	return filepath.Join(dir, "weft-images.tar")
}
