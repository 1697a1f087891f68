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
// Programs of several processors make an image for each, and an OCI index of them: the same names for
// each, or there is none. Docker's manifest knows no such thing and is left out then.
//
// Invariants: the same programs and the same name give the same bytes, on any machine and at
// any time; a program that would not start in the image (it asks for a dynamic loader, or is
// missing for a processor that the others are there for) is refused; an archive that is half written is
// never seen under its name. It must not know what the programs do. It owns the image that
// deploy/ names. Implements: architecture 2.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/renameio/v2"
)

func main() {
	out := flag.String("o", "", "the archive to write")
	name := flag.String("name", "localhost/weft/weft:dev", "the image's `reference`, with registry and tag")
	check := flag.String("check", "", "the `archive` to check; nothing is written")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "Usage: image -o ARCHIVE [-name REFERENCE] PROGRAM... [NAME=PROGRAM...]\n       image -check ARCHIVE")
		flag.PrintDefaults()
	}
	flag.Parse()
	if (*out == "" || flag.NArg() == 0) == (*check == "") {
		flag.Usage()
		os.Exit(2)
	}
	var err error
	if *check != "" {
		err = checkArchive(*check, os.Stdout)
	} else {
		err = run(*out, *name, flag.Args(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the archive and says what it wrote.
func run(out, name string, paths []string, say io.Writer) (err error) {
	a, err := newArchive(name, paths)
	if err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(out, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("make %s: %w", out, err)
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	if err := a.write(f); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	fmt.Fprintf(say, "wrote %s: %s (%s) %s\n", out, name, strings.Join(a.platforms(), ", "), a.head.Digest)
	return nil
}
