// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// image takes the ELF kernel out of a bzImage that is compressed with zstd: QEMU starts an ELF with
// a PVH note at once, without firmware, real mode and decompression. Nil: there is none in it. (That
// of xz has a filter for machine code in front, which no library of Go's undoes.)
func image(bzImage []byte) []byte {
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd}
	for at := 0; ; at++ {
		next := bytes.Index(bzImage[at:], magic)
		if next < 0 {
			return nil
		}
		at += next
		out := unpack(bzImage[at:], func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) })
		if bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
			return out
		}
	}
}

// unpack gives what comes before the first error: what follows the stream is none of it.
func unpack(data []byte, open func(io.Reader) (io.Reader, error)) []byte {
	r, err := open(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	var out bytes.Buffer
	_, _ = io.Copy(&out, r)
	return out.Bytes()
}

// module is a kernel module, decompressed.
type module struct {
	name string
	data []byte
}

// modules gives the named modules of an unpacked kernel and what they depend on, in the order in
// which they can be loaded. Names of what is built in are left out.
func modules(dir string, names []string) ([]module, error) {
	files, builtin, err := index(dir)
	if err != nil {
		return nil, err
	}
	var all []module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if done[name] || builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("this kernel has no module %s", name)
		}
		m, depends, err := readModule(name, path)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		all = append(all, m)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func stem(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// index finds the files of modules, and the names of those that are built in.
func index(dir string) (files map[string]string, builtin map[string]bool, err error) {
	files, builtin = map[string]string{}, map[string]bool{}
	err = filepath.WalkDir(filepath.Join(dir, "lib/modules"), func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.Contains(e.Name(), ".ko"):
			files[stem(path)] = path
		case e.Name() == "modules.builtin":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				builtin[stem(strings.TrimSpace(line))] = true
			}
		}
		return nil
	})
	return files, builtin, err
}

func readModule(name, path string) (m module, depends []string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return module{}, nil, err
	}
	if strings.HasSuffix(path, ".xz") {
		data = unpack(data, func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) })
	}
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return module{}, nil, fmt.Errorf("read module %s: %w", path, err)
	}
	info := file.Section(".modinfo")
	if info == nil {
		return module{}, nil, fmt.Errorf("read module %s: it does not say what it depends on", path)
	}
	text, err := info.Data()
	if err != nil {
		return module{}, nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			depends = strings.Split(list, ",")
		}
	}
	return module{name: name, data: data}, slices.DeleteFunc(depends, func(s string) bool { return s == "" }), nil
}
