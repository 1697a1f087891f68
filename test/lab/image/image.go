// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image writes container images out of static programs, as the archive that
// "docker save" writes and every runtime imports. No registry is asked and nothing is pulled:
// an image is a single layer with the given files, and the same files give the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// Image is one image of an archive.
type Image struct {
	Name       string            // with its tag: "localhost/lab/busybox:1"
	Files      map[string]string // path in the image: program on the machine
	Links      map[string]string // path in the image: what it points to
	Entrypoint []string
}

// BusyboxName is the image that tests' pods run: a shell and the usual commands.
const BusyboxName = "localhost/lab/busybox:1"

// Busybox is an image of the machine's static busybox (Debian: busybox-static).
func Busybox() (Image, error) {
	const program = "/bin/busybox"
	f, err := elf.Open(program)
	if err != nil {
		return Image{}, fmt.Errorf("find a static busybox (package busybox-static): %w", err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return Image{}, fmt.Errorf("%s is not static: install busybox-static", program)
	}
	links := map[string]string{}
	for name := range strings.FieldsSeq("sh sleep ip ping ping6 cat ls echo nc env arping grep sed awk head tail wc true false test kill ps id hostname date mkdir rm touch nslookup wget httpd timeout seq ifconfig route netstat tr sort") {
		links["bin/"+name] = "busybox"
	}
	return Image{
		Name: BusyboxName, Files: map[string]string{"bin/busybox": program}, Links: links,
		Entrypoint: []string{"/bin/sleep", "1000000"},
	}, nil
}

// manifest is one entry of the archive's manifest.json.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// config is what a runtime reads of an image's configuration.
type config struct {
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Config       execution  `json:"config"`
	RootFS       filesystem `json:"rootfs"`
}

type execution struct {
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Env        []string          `json:"Env"`
	Labels     map[string]string `json:"Labels"`
}

type filesystem struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// Write writes an archive of images.
func Write(file string, images ...Image) error {
	content := map[string][]byte{}
	var manifests []manifest
	for _, i := range images {
		layer, err := i.layer()
		if err != nil {
			return fmt.Errorf("make layer of %s: %w", i.Name, err)
		}
		sum := digest(layer)
		// The name is in the configuration, or two images of the same bytes would be one.
		c, err := json.Marshal(config{
			Architecture: "amd64", OS: "linux",
			Config: execution{
				Entrypoint: i.Entrypoint, Env: []string{"PATH=/bin"},
				Labels: map[string]string{"name": i.Name},
			},
			RootFS: filesystem{Type: "layers", DiffIDs: []string{"sha256:" + sum}},
		})
		if err != nil {
			return err
		}
		m := manifest{Config: digest(c) + ".json", RepoTags: []string{i.Name}, Layers: []string{sum + ".tar"}}
		content[m.Config], content[m.Layers[0]] = c, layer
		manifests = append(manifests, m)
	}
	index, err := json.Marshal(manifests)
	if err != nil {
		return err
	}
	content["manifest.json"] = index
	archive, err := pack(content)
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive, 0o644)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func pack(content map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if err := add(w, &tar.Header{Name: name, Mode: 0o644}, content[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func add(w *tar.Writer, h *tar.Header, content []byte) error {
	h.Size = int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// layer is the image's only layer: the directories that a container wants, files and links.
func (i Image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	directories := []string{"dev", "etc", "proc", "sys", "tmp"}
	for name := range i.Files {
		directories = append(directories, parents(name)...)
	}
	slices.Sort(directories)
	for _, d := range slices.Compact(directories) {
		if err := add(w, &tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		content, err := os.ReadFile(i.Files[name])
		if err != nil {
			return nil, err
		}
		if err := add(w, &tar.Header{Name: name, Mode: 0o755}, content); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		h := &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: i.Links[name], Mode: int64(fs.ModePerm)}
		if err := add(w, h, nil); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// parents are the directories above a relative path, the outermost first.
func parents(name string) []string {
	var all []string
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		all = append(all, d)
	}
	slices.Reverse(all)
	return all
}
