// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSeveralProcessors: one name, an index behind it, and for each processor its programs and aliases;
// Docker's manifest, which could name one of them only, is not there.
func TestSeveralProcessors(t *testing.T) {
	var paths []string
	for _, arch := range []string{"amd64", "arm64"} {
		paths = append(paths, compile(t, "first", arch), compile(t, "second", arch))
	}
	files := unpack(t, pack(t, reference, append(paths, "other=second")...), 0o644)
	if _, is := files["manifest.json"]; is {
		t.Error("Docker's manifest is there")
	}
	heads := decode[struct{ Manifests []descriptor }](t, files, "index.json").Manifests
	if len(heads) != 1 || heads[0].MediaType != typeIndex || heads[0].Annotations[annotationName] != reference {
		t.Fatalf("index.json: %+v", heads)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, d := range decode[struct{ Manifests []descriptor }](t, files, blobOf(t, files, heads[0])).Manifests {
		want, known := machines[d.Platform.Architecture]
		if !known || d.Platform.OS != "linux" {
			t.Fatalf("platform %+v", d.Platform)
		}
		delete(machines, d.Platform.Architecture)
		manifest := decode[struct {
			Config descriptor
			Layers []descriptor
		}](t, files, blobOf(t, files, d))
		if got := decode[platform](t, files, blobOf(t, files, manifest.Config)); got != *d.Platform {
			t.Errorf("config of %+v: %+v", d.Platform, got)
		}
		got := map[string]string{}
		for r := tar.NewReader(bytes.NewReader(files[blobOf(t, files, manifest.Layers[0])])); ; {
			h, err := r.Next()
			if err == io.EOF { //nolint:errorlint // as archive/tar says
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got[h.Name] = h.Linkname
			if h.Typeflag == tar.TypeSymlink {
				continue
			}
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			f, err := elf.NewFile(bytes.NewReader(b))
			if err != nil || f.Machine != want {
				t.Errorf("%s for %s: %v %v", h.Name, d.Platform.Architecture, f.Machine, err)
			}
		}
		if diff := cmp.Diff(map[string]string{"first": "", "second": "", "other": "second"}, got); diff != "" {
			t.Errorf("root of %s (-want +got):\n%s", d.Platform.Architecture, diff)
		}
	}
	if len(machines) > 0 {
		t.Errorf("no image for %v", machines)
	}
}

// TestCheck: an archive that was written passes; one whose index promises another processor, or with
// a bit turned anywhere in a blob, does not.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := run(path, reference, []string{compile(t, "program", "amd64"), compile(t, "program", "arm64"), "other=program"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if err := checkArchive(path, &said); err != nil {
		t.Fatal(err)
	}
	if want := "linux/amd64, static: program, other -> program\nlinux/arm64, static: program, other -> program\n"; said.String() != want {
		t.Errorf("said %q, want %q", said.String(), want)
	}
	whole := read(t, path)
	for _, word := range []string{"rootfs", "\x7fELF", `"layers"`} {
		b := bytes.Clone(whole)
		b[bytes.LastIndex(b, []byte(word))] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkArchive(path, io.Discard); err == nil {
			t.Errorf("a turned bit in %q is not seen", word)
		}
	}
	files, err := members(whole)
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var images struct{ Manifests []descriptor }
	text, err := content(files, index.Manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &images); err != nil {
		t.Fatal(err)
	}
	d := images.Manifests[1]
	d.Platform.Architecture = "amd64"
	if err := checkImage(files, d, io.Discard); err == nil || !strings.Contains(err.Error(), "the index says") {
		t.Errorf("an image for arm64 that the index calls one for amd64: %v", err)
	}
	d.Platform.Architecture = "arm64"
	text, err = content(files, d)
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Layers []descriptor }
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if err := checkLayer(files, manifest.Layers[0], "amd64", io.Discard); err == nil || !strings.Contains(err.Error(), "made for arm64") {
		t.Errorf("an arm64 program in an image for amd64: %v", err)
	}
}

// TestDockerfile: it makes what "make image" makes, from nothing.
func TestDockerfile(t *testing.T) {
	file, makefile := string(read(t, "Dockerfile")), string(read(t, "../../Makefile"))
	var last string
	for line := range strings.Lines(file) {
		if strings.HasPrefix(line, "FROM ") {
			last = strings.TrimSpace(line)
		}
	}
	if last != "FROM scratch" {
		t.Errorf("the image begins with %q", last)
	}
	if want := `ENTRYPOINT ["/weft-agent"]`; !strings.Contains(file, want) {
		t.Errorf("no %s", want)
	}
	if !strings.Contains(makefile, "IMAGE_PROGRAMS := weft-agent weft-cni weft weft-operator\n") || !strings.Contains(file, "make programs") {
		t.Error("Dockerfile and make name other programs")
	}
}
