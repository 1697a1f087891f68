// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const reference = "localhost/weft/test:1"

// built is a small static program for linux/amd64, linked once.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(path)
})

// compile gives a program of that name for linux/arch: another architecture is another number
// in the header, and a name behind the last section changes nothing that a loader looks at.
func compile(t *testing.T, name, arch string) string {
	t.Helper()
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	b = append(bytes.Clone(b), name...)
	binary.LittleEndian.PutUint16(b[18:], uint16(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]))
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// pack runs the command and returns the archive's bytes.
func pack(t *testing.T, name string, paths ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := run(out, name, paths, io.Discard); err != nil {
		t.Fatal(err)
	}
	return read(t, out)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack reads a tar and fails on anything that depends on the machine that it was made on.
func unpack(t *testing.T, archive []byte, mode int64) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(0, 0)) || h.Mode != mode {
			t.Errorf("header of %s: %+v", h.Name, h)
		}
		files[h.Name] = b
	}
}

func decode[T any](t *testing.T, files map[string][]byte, name string) T {
	t.Helper()
	var v T
	b, ok := files[name]
	if !ok {
		t.Fatalf("the archive has no %s", name)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// blobOf finds what a descriptor names and checks its size.
func blobOf(t *testing.T, files map[string][]byte, d descriptor) string {
	t.Helper()
	path := "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:")
	if got := int64(len(files[path])); got != d.Size {
		t.Fatalf("%s has %d bytes, announced are %d", path, got, d.Size)
	}
	return path
}

// TestReadBack follows the archive from both of its entrances down to the programs.
func TestReadBack(t *testing.T) {
	first, second := compile(t, "first", "amd64"), compile(t, "second", "amd64")
	files := unpack(t, pack(t, reference, first, second), 0o644)
	for path, b := range files {
		if name, ok := strings.CutPrefix(path, "blobs/sha256/"); ok {
			if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != name {
				t.Errorf("%s has another digest", path)
			}
		}
	}

	if v := decode[map[string]string](t, files, "oci-layout"); v["imageLayoutVersion"] != "1.0.0" {
		t.Errorf("oci-layout: %v", v)
	}
	index := decode[struct{ Manifests []descriptor }](t, files, "index.json")
	if len(index.Manifests) != 1 {
		t.Fatalf("index.json has %d manifests", len(index.Manifests))
	}
	head := index.Manifests[0]
	want := map[string]string{annotationName: reference, annotationTag: "1"}
	if d := cmp.Diff(want, head.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
	if d := cmp.Diff(&platform{Architecture: "amd64", OS: "linux"}, head.Platform); d != "" {
		t.Errorf("platform (-want +got):\n%s", d)
	}
	manifest := decode[struct {
		Config descriptor
		Layers []descriptor
	}](t, files, blobOf(t, files, head))
	if len(manifest.Layers) != 1 {
		t.Fatalf("manifest has %d layers", len(manifest.Layers))
	}
	layer := blobOf(t, files, manifest.Layers[0])
	config := decode[struct {
		Architecture, OS string
		Config           struct{ Entrypoint []string }
		RootFS           struct {
			Type    string
			DiffIDs []string `json:"diff_ids"`
		}
	}](t, files, blobOf(t, files, manifest.Config))
	if config.Architecture != "amd64" || config.OS != "linux" || config.RootFS.Type != "layers" ||
		!slices.Equal(config.Config.Entrypoint, []string{"/first"}) ||
		!slices.Equal(config.RootFS.DiffIDs, []string{manifest.Layers[0].Digest}) {
		t.Errorf("config: %+v", config)
	}

	docker := decode[[]struct {
		Config           string
		RepoTags, Layers []string
	}](t, files, "manifest.json")
	if len(docker) != 1 || docker[0].Config != blobOf(t, files, manifest.Config) ||
		!slices.Equal(docker[0].RepoTags, []string{reference}) || !slices.Equal(docker[0].Layers, []string{layer}) {
		t.Errorf("manifest.json: %+v", docker)
	}

	root := unpack(t, files[layer], 0o755)
	if d := cmp.Diff(map[string][]byte{"first": read(t, first), "second": read(t, second)}, root); d != "" {
		t.Error("the layer holds other bytes than the programs do")
	}
}

// TestSameBytes: neither time, place, mode nor umask of the programs shows.
func TestSameBytes(t *testing.T) {
	path := compile(t, "program", "arm64")
	archive := pack(t, reference, path)
	elsewhere := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(elsewhere, read(t, path), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(elsewhere, time.Time{}, time.Unix(1_000_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive, pack(t, reference, elsewhere)) {
		t.Error("the same program gave another archive")
	}
	if bytes.Equal(archive, pack(t, "localhost/weft/test:2", path)) {
		t.Error("another name gave the same archive")
	}
	index := decode[struct{ Manifests []descriptor }](t, unpack(t, archive, 0o644), "index.json")
	if got := index.Manifests[0].Platform.Architecture; got != "arm64" {
		t.Errorf("architecture %q of an arm64 program", got)
	}
}

// TestRefused: what would not start in the image is named, and no archive is left.
func TestRefused(t *testing.T) {
	amd, arm := compile(t, "program", "amd64"), compile(t, "program", "arm64")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		name  string
		paths []string
		words []string
	}{
		"a script":       {reference, []string{script}, []string{script}},
		"no such file":   {reference, []string{script + "x"}, []string{script + "x"}},
		"one name twice": {reference, []string{amd, amd}, []string{"would both be /program"}},
		"one architecture lacks a program": {
			reference,
			[]string{amd, compile(t, "second", "amd64"), arm},
			[]string{"second is made for amd64, and there is no second for arm64"},
		},
		"every fault at once": {reference, []string{script, amd, compile(t, "second", "arm64")}, []string{script, "no program for arm64", "no second for amd64"}},
		"name without tag":    {"localhost/weft", []string{amd}, []string{`"localhost/weft"`}},
		"name without registry": {
			"weft/weft:dev",
			[]string{amd},
			[]string{`"weft" is no registry`},
		},
		"dynamic": {reference, []string{dynamic(t)}, []string{"dynamic loader"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "image.tar")
			err := run(out, c.name, c.paths, io.Discard)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// dynamic makes a program that asks for a loader, without needing a C compiler.
func dynamic(t *testing.T) string {
	t.Helper()
	path := compile(t, "dynamic", "amd64")
	b := read(t, path)
	// The type of a program header is its first four bytes; the first header follows the ELF
	// header of 64 bytes. PT_PHDR, which Go writes there, becomes PT_INTERP.
	if b[64] != 6 {
		t.Fatalf("the first program header is of type %d, not PT_PHDR", b[64])
	}
	b[64] = 3
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProgramChangesWhilePacked: the second reading is held against the first.
func TestProgramChangesWhilePacked(t *testing.T) {
	path := compile(t, "program", "amd64")
	img, err := newArchive(reference, []string{path})
	if err != nil {
		t.Fatal(err)
	}
	b := read(t, path)
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := img.write(io.Discard); err == nil {
		t.Error("an archive with another program than announced was written")
	}
}

// TestNothingHalfWritten: an archive that cannot be finished leaves the old one.
func TestNothingHalfWritten(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(out, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(out, reference, []string{out}, io.Discard); err == nil {
		t.Fatal("packed something that is no program")
	}
	if got := string(read(t, out)); got != "old" {
		t.Errorf("the archive is now %q", got)
	}
	if err := run(filepath.Join(out, "x"), reference, []string{compile(t, "program", "amd64")}, io.Discard); err == nil {
		t.Error("wrote below a file")
	}
}

// TestAlias: another name of a program is a link to it; of one that is not there, or with a name that
// is taken, there is no image.
func TestAlias(t *testing.T) {
	first := compile(t, "first", "amd64")
	files := unpack(t, pack(t, reference, first, "other=first"), 0o644)
	manifest := decode[struct{ Layers []descriptor }](t, files, blobOf(t, files, decode[struct{ Manifests []descriptor }](t, files, "index.json").Manifests[0]))
	links := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(files[blobOf(t, files, manifest.Layers[0])])); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		links[h.Name] = h.Linkname
	}
	if d := cmp.Diff(map[string]string{"first": "", "other": "first"}, links); d != "" {
		t.Errorf("root (-want +got):\n%s", d)
	}
	for _, wrong := range []string{"other=second", "first=first", "=first", "..=first"} {
		if err := run(filepath.Join(t.TempDir(), "image.tar"), reference, []string{first, wrong}, io.Discard); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
