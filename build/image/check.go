// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// checkArchive reads an archive as a runtime does, from index.json down to the programs, and says what
// is in it for each platform. Every blob has its digest, and every program is static and made for
// the processor that the index promises.
func checkArchive(name string, say io.Writer) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("check archive: %w", err)
	}
	files, err := members(b)
	if err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		return fmt.Errorf("check %s: index.json: %w", name, err)
	}
	for _, d := range index.Manifests {
		if err := checkImage(files, d, say); err != nil {
			return fmt.Errorf("check %s: %w", name, err)
		}
	}
	return nil
}

func members(archive []byte) (map[string][]byte, error) {
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// checkImage follows a descriptor of an index, or of the image for one processor.
func checkImage(files map[string][]byte, d descriptor, say io.Writer) error {
	text, err := content(files, d)
	if err != nil {
		return err
	}
	var v struct {
		Manifests, Layers []descriptor
		Config            descriptor
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("read %s: %w", d.Digest, err)
	}
	for _, image := range v.Manifests {
		if err := checkImage(files, image, say); err != nil {
			return err
		}
	}
	if d.MediaType == typeIndex {
		return nil
	}
	if d.Platform == nil || len(v.Layers) == 0 {
		return fmt.Errorf("%s has no platform or no layer", d.Digest)
	}
	text, err = content(files, v.Config)
	if err != nil {
		return err
	}
	var config platform
	if err := json.Unmarshal(text, &config); err != nil || config != *d.Platform {
		return fmt.Errorf("the configuration of %s is for %+v, the index says %+v", d.Digest, config, *d.Platform)
	}
	for _, layer := range v.Layers {
		if err := checkLayer(files, layer, d.Platform.Architecture, say); err != nil {
			return err
		}
	}
	return nil
}

// content gives a blob, and checks its size and digest.
func content(files map[string][]byte, d descriptor) ([]byte, error) {
	b, is := files[blob{digest: d.Digest}.path()]
	m := newMeter(io.Discard)
	_, _ = m.Write(b) // a hash takes everything
	if !is || m.size != d.Size || m.digest() != d.Digest {
		return nil, fmt.Errorf("%s is missing or is something else", d.Digest)
	}
	return b, nil
}

func checkLayer(files map[string][]byte, d descriptor, arch string, say io.Writer) error {
	b, err := content(files, d)
	if err != nil {
		return err
	}
	programs, err := members(b)
	if err != nil {
		return err
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			if _, is := programs[h.Linkname]; !is || path.Base(h.Linkname) != h.Linkname {
				return fmt.Errorf("%s is a link to %s, which the image does not have", h.Name, h.Linkname)
			}
			names = append(names, h.Name+" -> "+h.Linkname)
			continue
		}
		f, err := elf.NewFile(bytes.NewReader(programs[h.Name]))
		if err != nil {
			return fmt.Errorf("read program %s: %w", h.Name, err)
		}
		got, err := machine(h.Name, f)
		if err != nil {
			return err
		}
		if got != arch {
			return fmt.Errorf("%s is made for %s, the image for %s", h.Name, got, arch)
		}
		names = append(names, h.Name)
	}
	fmt.Fprintf(say, "linux/%s, static: %s\n", arch, strings.Join(names, ", "))
	return nil
}
