// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read unpacks a tar archive: names to contents, links to what they point to.
func read(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h.Linkname + string(content)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	one := Image{Name: "localhost/one:1", Files: map[string]string{"usr/bin/program": program}, Links: map[string]string{"usr/bin/link": "program"}, Entrypoint: []string{"/usr/bin/program"}}
	two := one
	two.Name = "localhost/two:1"
	path := filepath.Join(dir, "images.tar")
	if err := Write(path, one, two); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := read(t, first)
	var manifests []manifest
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifests); err != nil {
		t.Fatal(err)
	}
	if len(manifests) != 2 || manifests[0].Config == manifests[1].Config {
		t.Fatalf("two images of the same files are to be two: %+v", manifests)
	}
	for _, m := range manifests {
		layer := files[m.Layers[0]]
		var c config
		if err := json.Unmarshal([]byte(files[m.Config]), &c); err != nil {
			t.Fatal(err)
		}
		if want := []string{"sha256:" + digest([]byte(layer))}; !cmp.Equal(want, c.RootFS.DiffIDs) {
			t.Errorf("%v: layers %v, want %v", m.RepoTags, c.RootFS.DiffIDs, want)
		}
		want := map[string]string{
			"dev/": "", "etc/": "", "proc/": "", "sys/": "", "tmp/": "", "usr/": "", "usr/bin/": "",
			"usr/bin/program": "program", "usr/bin/link": "program",
		}
		if diff := cmp.Diff(want, read(t, []byte(layer))); diff != "" {
			t.Errorf("%v: layer (-want +got):\n%s", m.RepoTags, diff)
		}
	}
	if err := Write(path, one, two); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(path); err != nil || !bytes.Equal(first, second) {
		t.Errorf("written again, the archive differs (%v)", err)
	}
}
