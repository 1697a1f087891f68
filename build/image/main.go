// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image packs static programs into a container image, an archive that "ctr image
// import", "podman load" and "docker load" read. It needs no registry, no base image and no
// container tool:
//
//	go run ./build/image -o bin/weft.tar bin/weft-agent bin/weft-cni bin/weft cilium-dbg=weft
//
// Each program becomes a file in the root of an otherwise empty file system; the first one is
// the entry point, NAME=PROGRAM gives one another name besides, and all are found by their names. The archive is an OCI image layout that holds Docker's manifest besides.
//
// Invariants: the same programs and the same name give the same bytes, on any machine and at
// any time; a program that would not start in the image (it asks for a dynamic loader, or is
// made for another processor than the others) is refused; an archive that is half written is
// never seen under its name. It must not know what the programs do. It owns the image that
// deploy/ names. Implements: architecture 2.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/google/renameio/v2"
)

func main() {
	out := flag.String("o", "", "the archive to write")
	name := flag.String("name", "localhost/weft/weft:dev", "the image's `reference`, with registry and tag")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "Usage: image -o ARCHIVE [-name REFERENCE] PROGRAM... [NAME=PROGRAM...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *name, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the archive and says what it wrote.
func run(out, name string, paths []string, say io.Writer) (err error) {
	img, err := newImage(name, paths)
	if err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(out, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("make %s: %w", out, err)
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	if err := img.write(f); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	fmt.Fprintf(say, "wrote %s: %s (linux/%s) %s\n", out, name, img.arch, img.manifest.digest)
	return nil
}
