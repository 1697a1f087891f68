// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package box

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Root describes the root of a box: the machine's own files below, everything written above
// them in memory. What is written vanishes with the box.
type Root struct {
	Hostname string            `json:"hostname"`
	Size     string            `json:"size"`   // bound of all that is written, as tmpfs says it: "2g"
	Fresh    []string          `json:"fresh"`  // directories that are empty, and no overlay: what the machine has there is not seen
	Memory   []string          `json:"memory"` // directories that are file systems of their own in memory
	Bind     map[string]string `json:"bind"`   // path in the box: file or directory of the machine
	Copy     map[string]string `json:"copy"`   // path in the box: file of the machine
	Write    map[string][]byte `json:"write"`  // path in the box: content
}

// scratch is where the new root is put together: any empty directory that every machine has.
// Only this mount namespace sees what is mounted on it.
const scratch = "/mnt"

// enter makes the root and moves into it.
func (r Root) enter() error {
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "size="+r.Size); err != nil {
		return fmt.Errorf("mount memory: %w", err)
	}
	for _, d := range []string{"upper", "work", "root", "fresh"} {
		if err := os.Mkdir(filepath.Join(scratch, d), 0o755); err != nil {
			return err
		}
	}
	root := filepath.Join(scratch, "root")
	options := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", scratch, scratch)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	for _, step := range []func(string) error{r.kernelFiles, r.directories, r.files, pivot} {
		if err := step(root); err != nil {
			return err
		}
	}
	if r.Hostname != "" {
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
	}
	return nil
}

// kernelFiles mounts what shows the box' own namespaces, and the machine's cgroups and devices.
func (r Root) kernelFiles(root string) error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"proc", "proc", "proc", 0},
		{"sysfs", "sys", "sysfs", 0}, // shows the links of the namespace that mounts it
		{"/sys/fs/cgroup", "sys/fs/cgroup", "", unix.MS_BIND | unix.MS_REC},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC},
	} {
		target := filepath.Join(root, m.target)
		if err := unix.Mount(m.source, target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// The machine's mounts below the bound trees must not hear of the box' mounts.
	if err := unix.Mount("", root, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

func (r Root) directories(root string) error {
	for _, d := range r.Memory {
		if err := mountAt(root, d, "tmpfs", "tmpfs", 0); err != nil {
			return err
		}
	}
	for i, d := range r.Fresh {
		source := filepath.Join(scratch, "fresh", fmt.Sprint(i))
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if err := mountAt(root, d, source, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	return nil
}

func mountAt(root, dir, source, kind string, flags uintptr) error {
	target := filepath.Join(root, dir)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

func (r Root) files(root string) error {
	for to, from := range r.Bind {
		if err := bind(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	for to, from := range r.Copy {
		if err := copyFile(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	for to, content := range r.Write {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func bind(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o755)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// pivot makes root the root, and lets go of the old one.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is stacked under the new one, then taken away from there.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Containers' mounts travel between runtime and kubelet, inside the box.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}
