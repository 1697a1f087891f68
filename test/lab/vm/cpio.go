// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Modes of what an archive holds.
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

// archive writes a cpio archive, as the kernel reads its initramfs; several may follow each other.
// The first error is kept and given by close.
type archive struct {
	w    io.Writer
	n    int64
	ino  int
	dirs map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true, "/": true}}
}

func (a *archive) write(data []byte) {
	if a.err == nil {
		var n int
		n, a.err = a.w.Write(data)
		a.n += int64(n)
	}
}

func (a *archive) pad() {
	const align = 4
	if rest := a.n % align; rest != 0 {
		a.write(make([]byte, align-rest))
	}
}

func (a *archive) entry(name string, mode int, data []byte) {
	a.ino++
	name = strings.TrimPrefix(name, "/")
	// Magic, then eight hexadecimal digits each: inode, mode, uid, gid, links, time, size, device
	// numbers of the entry and of what it is, length of the name, checksum.
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name))
	a.pad()
	a.write(data)
	a.pad()
}

// dir adds a directory and those above it.
func (a *archive) dir(path string) {
	path = filepath.Clean(path)
	if a.dirs[path] {
		return
	}
	a.dir(filepath.Dir(path))
	a.dirs[path] = true
	a.entry(path, typeDir|0o755, nil)
}

func (a *archive) file(path string, mode os.FileMode, data []byte) {
	a.dir(filepath.Dir(path))
	a.entry(path, typeFile|int(mode.Perm()), data)
}

func (a *archive) link(path, to string) {
	a.dir(filepath.Dir(path))
	a.entry(path, typeLink|0o777, []byte(to))
}

// copy adds a file of this machine, or a directory with all that is in it, what links point at in
// place of the links.
func (a *archive) copy(path, from string) {
	info, err := os.Stat(from)
	if err != nil {
		a.fail(err)
		return
	}
	if !info.IsDir() {
		data, err := os.ReadFile(from)
		if err != nil {
			a.fail(err)
			return
		}
		a.file(path, info.Mode(), data)
		return
	}
	a.dir(path)
	entries, err := os.ReadDir(from)
	if err != nil {
		a.fail(err)
		return
	}
	slices.SortFunc(entries, func(x, y os.DirEntry) int { return strings.Compare(x.Name(), y.Name()) })
	for _, e := range entries {
		a.copy(filepath.Join(path, e.Name()), filepath.Join(from, e.Name()))
	}
}

func (a *archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	const block = 512
	if rest := a.n % block; rest != 0 {
		a.write(make([]byte, block-rest))
	}
	return a.err
}
