// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Media types and annotations of the OCI image specification 1.1; the second annotation is
// containerd's own, which takes it as the image's whole name.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"

	annotationTag  = "org.opencontainers.image.ref.name"
	annotationName = "io.containerd.image.name"
)

// epoch is every time in the archive: when it was made changes no byte.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

// descriptor names a blob in JSON.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// blob is a file of the archive that has its digest as its name. Its bytes are made twice,
// once to measure them and once to write them, so that no image has to fit into memory.
type blob struct {
	digest string
	size   int64
	bytes  func(io.Writer) error
}

func newBlob(bytes func(io.Writer) error) (blob, error) {
	m := newMeter(io.Discard)
	if err := bytes(m); err != nil {
		return blob{}, err
	}
	return blob{digest: m.digest(), size: m.size, bytes: bytes}, nil
}

// jsonBlob is a blob of a value.
func jsonBlob(v any) (blob, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return blob{}, fmt.Errorf("encode: %w", err)
	}
	return newBlob(func(w io.Writer) error { _, err := w.Write(text); return err })
}

func (b blob) path() string { return "blobs/sha256/" + strings.TrimPrefix(b.digest, "sha256:") }

func (b blob) descriptor(mediaType string) descriptor {
	return descriptor{MediaType: mediaType, Digest: b.digest, Size: b.size}
}

// meter counts and hashes what passes through.
type meter struct {
	io.Writer
	sum  io.Writer
	hash func() []byte
	size int64
}

func newMeter(w io.Writer) *meter {
	h := sha256.New()
	return &meter{Writer: w, sum: h, hash: func() []byte { return h.Sum(nil) }}
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.Writer.Write(p)
	_, _ = m.sum.Write(p[:n]) // a hash takes everything
	m.size += int64(n)
	return n, err
}

func (m *meter) digest() string { return "sha256:" + hex.EncodeToString(m.hash()) }

// image is everything about the image for one processor but the programs' bytes.
type image struct {
	arch                    string
	layer, config, manifest blob
}

// newImage computes the image of programs that are made for one processor.
func newImage(programs []program, aliases []alias) (img *image, err error) {
	img = &image{arch: programs[0].arch}
	if img.layer, err = newBlob(func(w io.Writer) error { return writeLayer(w, programs, aliases) }); err != nil {
		return nil, err
	}
	img.config, err = jsonBlob(map[string]any{
		"created":      epoch(),
		"architecture": img.arch,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/" + programs[0].name}, "WorkingDir": "/", "Env": []string{"PATH=/"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{img.layer.digest}},
	})
	if err != nil {
		return nil, err
	}
	img.manifest, err = jsonBlob(map[string]any{
		"schemaVersion": 2,
		"mediaType":     typeManifest,
		"config":        img.config.descriptor(typeConfig),
		"layers":        []descriptor{img.layer.descriptor(typeLayer)},
	})
	return img, err
}

// writeBlob writes a file of the archive and checks that it is what was announced.
func writeBlob(archive *tar.Writer, name string, b blob) error {
	if err := archive.WriteHeader(header(name, b.size, 0o644)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	m := newMeter(archive)
	if err := b.bytes(m); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if m.digest() != b.digest {
		return errors.New("a program changed while it was read")
	}
	return nil
}

// writeLayer writes the image's root: the programs, their other names and nothing else.
func writeLayer(w io.Writer, programs []program, aliases []alias) error {
	layer := tar.NewWriter(w)
	for _, p := range programs {
		if err := p.writeTo(layer); err != nil {
			return err
		}
	}
	for _, a := range aliases {
		h := header(a.name, 0, 0o777)
		h.Typeflag, h.Linkname = tar.TypeSymlink, a.of
		if err := layer.WriteHeader(h); err != nil {
			return fmt.Errorf("write alias %s: %w", a.name, err)
		}
	}
	return layer.Close()
}

// header holds nothing that differs from one machine to the next. The format is named, so
// that no other one is chosen by what is in it.
func header(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode, ModTime: epoch(), Format: tar.FormatUSTAR}
}
