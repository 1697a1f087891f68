// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weftnet/weft/test/lab/build"
)

// Kernel is one of the kernels that machines boot.
type Kernel string

// The kernels.
const (
	Current Kernel = "6.12" // of the backports
	Old     Kernel = "6.1"  // bookworm's own
)

// release is that of Debian whose kernels and QEMU these are.
const release = "bookworm"

// Qemu is the program; versions before 8 emulate no card with virtual functions.
const Qemu = "qemu-system-x86_64"

// MissingError says what this machine lacks, and what installs it.
type MissingError struct{ What string }

func (e *MissingError) Error() string {
	return e.What + " is missing; as root on Debian 12: make vm-install"
}

// Store is where kernels and images are kept.
type Store struct {
	Dir      string    // <repository>/.cache/lab/vm
	Progress io.Writer // says what takes long
}

// apt runs a program of apt on lists of its own, so that the machine's stay as they are.
func (s Store) apt(ctx context.Context, program string, args ...string) (string, error) {
	dir := filepath.Join(s.Dir, "apt")
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	options := []string{
		"-o", "Dir::State=" + filepath.Join(dir, "state"), "-o", "Dir::State::status=/var/lib/dpkg/status",
		"-o", "Dir::Cache=" + filepath.Join(dir, "cache"), "-o", "APT::Sandbox::User=root",
		"-o", "Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"), "-o", "Dir::Etc::SourceParts=/dev/null", "-q",
	}
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// update reads the lists of the release and its backports, from where this machine gets the
// release itself.
func (s Store) update(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "apt-get", "-q", "update", "--print-uris") // asks nobody
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("ask apt for this machine's mirror of Debian: %w", err)
	}
	sources := sources(string(out))
	if sources == "" {
		return errors.New("apt knows no mirror of Debian 12 (bookworm), whose kernels the machine boots")
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, "apt"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "apt/sources.list"), []byte(sources), 0o644); err != nil {
		return err
	}
	fmt.Fprintln(s.Progress, "vm: reading the lists of Debian's packages")
	_, err = s.apt(ctx, "apt-get", "update")
	return err
}

// sources are the lines of a sources.list, of what update --print-uris says: a quoted address, the
// name of a file, its size.
func sources(uris string) string {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	for line := range strings.Lines(uris) {
		mirror, rest, ok := strings.Cut(strings.TrimPrefix(line, "'"), "/dists/"+release+"/InRelease'")
		if ok && !strings.ContainsAny(mirror, " '") && strings.HasPrefix(rest, " ") {
			return fmt.Sprintf("deb [signed-by=%[1]s] %[2]s %[3]s main\ndeb [signed-by=%[1]s] %[2]s %[3]s-backports main\n", keyring, mirror, release)
		}
	}
	return ""
}

// Install installs what is missing of QEMU and the machine's own programs, for which it must be root.
func (s Store) Install(ctx context.Context) error {
	var missing []string
	if QemuFault(ctx) != nil {
		missing = append(missing, "qemu-system-x86")
	}
	if static(busybox) != nil {
		missing = append(missing, "busybox-static")
	}
	if _, err := exec.LookPath(mke2fs()); err != nil {
		missing = append(missing, "e2fsprogs")
	}
	if len(missing) == 0 {
		return nil
	}
	if err := s.update(ctx); err != nil {
		return err
	}
	fmt.Fprintf(s.Progress, "vm: installing %s\n", strings.Join(missing, ", "))
	_, err := s.apt(ctx, "apt-get", append([]string{"install", "-y", "--no-install-recommends", "-t", release + "-backports"}, missing...)...)
	return err
}

// QemuFault says why no machine can run here; nil when one can.
func QemuFault(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, Qemu, "--version").Output()
	if err != nil {
		return &MissingError{Qemu}
	}
	var major int
	if _, err := fmt.Sscanf(string(out), "QEMU emulator version %d", &major); err != nil {
		return fmt.Errorf("read the version of %s: %w", Qemu, err)
	}
	if major < 8 {
		return &MissingError{fmt.Sprintf("%s 8 or later (there is %d)", Qemu, major)}
	}
	return nil
}

// unpacked is the directory of a kernel package: boot, lib/modules, and elfName.
func (s Store) unpacked(ctx context.Context, k Kernel) (string, error) {
	done := filepath.Join(s.Dir, "linux-"+string(k))
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	unlock, err := s.lock(ctx, filepath.Base(done))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(done); err == nil { // by whoever held the lock
		return done, nil
	}
	file, err := s.fetch(ctx, k)
	if err != nil {
		return "", err
	}
	defer os.Remove(file)
	tmp := done + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, tmp).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w\n%s", file, err, out)
	}
	if err := writeELF(tmp); err != nil {
		return "", err
	}
	return done, os.Rename(tmp, done)
}

// fetch downloads the newest package of a kernel.
func (s Store) fetch(ctx context.Context, k Kernel) (file string, err error) {
	name, err := s.find(ctx, k)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(s.Progress, "vm: fetching %s (once)\n", name)
	if _, err := s.apt(ctx, "apt-get", "download", name); err != nil {
		// Lists of long ago name versions that the mirror has no more.
		if err := s.update(ctx); err != nil {
			return "", err
		}
		if name, err = s.find(ctx, k); err != nil {
			return "", err
		}
		if _, err := s.apt(ctx, "apt-get", "download", name); err != nil {
			return "", err
		}
	}
	packages, err := filepath.Glob(filepath.Join(s.Dir, "apt", name+"_*.deb"))
	if err != nil {
		return "", err
	}
	if len(packages) != 1 {
		return "", fmt.Errorf("fetch %s: %d files came", name, len(packages))
	}
	return packages[0], nil
}

// find names the newest package of a kernel.
func (s Store) find(ctx context.Context, k Kernel) (string, error) {
	pattern := regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(string(k)) + `[.][0-9]+(-[0-9]+|[+]deb12)-amd64-unsigned$`)
	names := func() (all []string) {
		out, err := s.apt(ctx, "apt-cache", "pkgnames", "linux-image-"+string(k)+".")
		if err != nil {
			return nil
		}
		for name := range strings.FieldsSeq(out) {
			if pattern.MatchString(name) {
				all = append(all, name)
			}
		}
		return all
	}
	all := names()
	if len(all) == 0 {
		if err := s.update(ctx); err != nil {
			return "", err
		}
		all = names()
	}
	if len(all) == 0 {
		return "", fmt.Errorf("apt has no package of Linux %s", k)
	}
	return slices.MaxFunc(all, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }), nil
}

// numbers are those in a name, for comparing versions.
func numbers(name string) (all []int) {
	for _, text := range regexp.MustCompile(`[0-9]+`).FindAllString(name, -1) {
		n := 0
		for _, digit := range text {
			n = 10*n + int(digit-'0')
		}
		all = append(all, n)
	}
	return all
}

// lock has one process at a time make what has that name; it ends with the process that holds it.
func (s Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	return build.Lock(ctx, s.Dir, name, func() {
		fmt.Fprintf(s.Progress, "vm: waiting for another process that makes %s\n", name)
	})
}
