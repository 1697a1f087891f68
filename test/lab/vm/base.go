// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const busybox = "/bin/busybox"

// baseImage is an initramfs without the caller's part.
type baseImage struct {
	path    string
	modules []string // where their files are in it, in the order in which they are loaded
}

// base makes the ELF kernel and the initramfs, or finds them.
func (s Store) base(ctx context.Context, k Kernel, names []string) (kernel string, base baseImage, err error) {
	dir, err := s.unpacked(ctx, k)
	if err != nil {
		return "", base, err
	}
	kernel = filepath.Join(dir, elfName)
	version, err := os.ReadDir(filepath.Join(dir, "lib/modules"))
	if err != nil {
		return "", base, err
	}
	if err := static(busybox); err != nil {
		return "", base, err
	}
	shell, err := os.ReadFile(busybox)
	if err != nil {
		return "", base, err
	}
	guest, err := s.guest(ctx)
	if err != nil {
		return "", base, err
	}
	hash := sha256.New()
	for _, part := range [][]byte{shell, guest, fmt.Append(nil, version), []byte(strings.Join(names, " "))} {
		fmt.Fprintln(hash, len(part))
		hash.Write(part)
	}
	base.path = filepath.Join(s.Dir, "base-"+hex.EncodeToString(hash.Sum(nil)[:8])+".cpio")
	list := base.path + ".json"
	if text, err := os.ReadFile(list); err == nil {
		return kernel, base, json.Unmarshal(text, &base.modules)
	}
	unlock, err := s.lock(ctx, "base")
	if err != nil {
		return "", base, err
	}
	defer unlock()
	mods, err := modules(dir, names)
	if err != nil {
		return "", base, err
	}
	for _, m := range mods {
		base.modules = append(base.modules, "/modules/"+m.name+".ko")
	}
	if err := writeBase(ctx, base, mods, shell, guest); err != nil {
		return "", base, fmt.Errorf("make a base image: %w", err)
	}
	text, err := json.Marshal(base.modules)
	if err != nil {
		return "", base, err
	}
	return kernel, base, replace(list, text) // last: who sees it has the image as well
}

// replace writes a file that is there as a whole or not at all.
func replace(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// elfName is the kernel that QEMU starts, beside what the package has.
const elfName = "vmlinux"

// writeELF puts it into the directory of an unpacked package.
func writeELF(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("find the kernel in %s: there are %d", dir, len(found))
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	if unpacked := image(data); unpacked != nil { // QEMU takes the other as well, and is two seconds slower
		data = unpacked
	}
	return os.WriteFile(filepath.Join(dir, elfName), data, 0o644)
}

// static says whether a program needs nothing but a kernel.
func static(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return &MissingError{"a static " + program + " (busybox-static)"}
	}
	defer file.Close()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return &MissingError{"a static " + program + " (busybox-static)"}
	}
	return nil
}

// guest builds the machine's first process; the go command knows whether that is to be done.
func (s Store) guest(ctx context.Context) ([]byte, error) {
	unlock, err := s.lock(ctx, "guest")
	if err != nil {
		return nil, err
	}
	defer unlock()
	out := filepath.Join(s.Dir, "guest")
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", out,
		"github.com/weftnet/weft/test/lab/vm/guest")
	cmd.Dir = filepath.Join(s.Dir, "../../../test/lab")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the machine's first process: %w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// Busybox is a static one, with all that a small system has.
const Busybox = busybox

// Applets are the names that it goes by.
func Applets(ctx context.Context) ([]string, error) {
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool { return name == "busybox" }), nil
}

func writeBase(ctx context.Context, base baseImage, mods []module, shell, guest []byte) error {
	applets, err := Applets(ctx)
	if err != nil {
		return err
	}
	file, err := os.Create(base.path + ".tmp")
	if err != nil {
		return err
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	a := newArchive(w)
	a.file("/init", 0o755, guest)
	a.file("/bin/busybox", 0o755, shell)
	for _, name := range applets {
		a.link("/bin/"+name, "busybox")
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/tmp", "/etc", "/run", "/root", "/sbin", "/usr/bin"} {
		a.dir(dir)
	}
	a.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	a.file("/etc/group", 0o644, []byte("root:x:0:\n"))
	for i, m := range mods {
		a.file(base.modules[i], 0o644, m.data)
	}
	if err := errors.Join(a.close(), w.Flush(), file.Close()); err != nil {
		return err
	}
	return os.Rename(base.path+".tmp", base.path)
}

// Program gives the files of a program of this machine and of the libraries that it is linked to, for
// Options.Files: the program as /usr/bin/NAME, which comes before busybox's of that name.
func Program(ctx context.Context, name string) (map[string]string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name) // not everybody's PATH has it
	}
	if err != nil {
		return nil, fmt.Errorf("find the program %s for the machine: %w", name, err)
	}
	files, err := Libraries(ctx, path)
	if err != nil {
		return nil, err
	}
	files["/usr/bin/"+name] = path
	return files, nil
}

// Libraries are the files that a program of this machine is linked to, for Options.Files.
func Libraries(ctx context.Context, path string) (map[string]string, error) {
	files := map[string]string{}
	if static(path) == nil {
		return files, nil
	}
	out, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w\n%s", path, err, out)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			files[field] = field
		}
	}
	return files, nil
}

// MakeDisk makes an empty disk of a size in MiB. The file takes what is written to it.
func MakeDisk(ctx context.Context, path string, size int) error {
	return makeDisk(ctx, path, size)
}

// MakeRoot makes a disk that has what is in a directory.
func MakeRoot(ctx context.Context, path, dir string, size int) error {
	return makeDisk(ctx, path, size, "-E", "root_owner=0:0", "-d", dir)
}

func makeDisk(ctx context.Context, path string, size int, options ...string) error {
	args := slices.Concat([]string{"-q", "-t", "ext4"}, options, []string{path, fmt.Sprintf("%dM", size)})
	out, err := exec.CommandContext(ctx, mke2fs(), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make disk %s: %w\n%s", path, err, out)
	}
	return nil
}

func mke2fs() string {
	if path, err := exec.LookPath("mke2fs"); err == nil {
		return path
	}
	return "/sbin/mke2fs" // not everybody's PATH has it
}
