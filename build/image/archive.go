// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// archive is an OCI layout of the images for one or several processors, under one name.
type archive struct {
	name   string
	images []*image
	index  *blob // of the images; nil when there is only one
	head   descriptor
}

// newArchive looks at the programs and computes what the archive will be.
func newArchive(name string, args []string) (*archive, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	paths, aliases := split(args)
	sets, err := inspect(paths)
	if err == nil {
		err = check(aliases, sets[0])
	}
	if err != nil {
		return nil, err
	}
	a := &archive{name: name}
	var manifests []descriptor
	for _, programs := range sets {
		img, err := newImage(programs, aliases)
		if err != nil {
			return nil, err
		}
		a.images = append(a.images, img)
		manifests = append(manifests, img.descriptor())
	}
	a.head = manifests[0]
	if len(manifests) > 1 {
		index, err := jsonBlob(indexOf(manifests))
		if err != nil {
			return nil, err
		}
		a.index, a.head = &index, index.descriptor(typeIndex)
	}
	a.head.Annotations = map[string]string{annotationName: name, annotationTag: name[strings.LastIndex(name, ":")+1:]}
	return a, nil
}

// descriptor names the image together with the machines that it is for.
func (img *image) descriptor() descriptor {
	d := img.manifest.descriptor(typeManifest)
	d.Platform = &platform{Architecture: img.arch, OS: "linux"}
	return d
}

func indexOf(manifests []descriptor) map[string]any {
	return map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": manifests}
}

// platforms are the machines that the archive is for, as people write them.
func (a *archive) platforms() (all []string) {
	for _, img := range a.images {
		all = append(all, "linux/"+img.arch)
	}
	return all
}

// checkName accepts the references that no tool rewrites: containerd would put docker.io in
// front of a name without a registry, and a missing tag would be latest.
func checkName(name string) error {
	reference := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	if !reference.MatchString(name) {
		return fmt.Errorf("name %q: want registry/path:tag", name)
	}
	host, _, _ := strings.Cut(name, "/")
	if host != "localhost" && !strings.ContainsAny(host, ".:") {
		return fmt.Errorf("name %q: %q is no registry (want a dot, a port or localhost)", name, host)
	}
	return nil
}

// write writes the archive: the OCI layout first, then Docker's manifest for older tools, which
// has no words for a second processor.
func (a *archive) write(w io.Writer) error {
	type file struct {
		name string
		v    any
	}
	texts := []file{
		{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
		{"index.json", indexOf([]descriptor{a.head})},
	}
	var blobs []blob
	if a.index == nil {
		img := a.images[0]
		texts = append(texts, file{"manifest.json", []map[string]any{{
			"Config": img.config.path(), "RepoTags": []string{a.name}, "Layers": []string{img.layer.path()},
		}}})
	} else {
		blobs = append(blobs, *a.index)
	}
	for _, img := range a.images {
		blobs = append(blobs, img.config, img.manifest, img.layer)
	}
	out := tar.NewWriter(w)
	for _, t := range texts {
		b, err := jsonBlob(t.v)
		if err != nil {
			return err
		}
		if err := writeBlob(out, t.name, b); err != nil {
			return err
		}
	}
	for _, b := range blobs {
		if err := writeBlob(out, b.path(), b); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return nil
}
