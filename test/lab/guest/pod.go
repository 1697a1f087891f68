// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/test/lab/box"
)

// Pod is what a virt-launcher's pod is to who looks at it from the node: processes in a cgroup with
// its name, and libvirt's socket in their root.
type Pod struct {
	UID string

	box    *box.Box
	log    *os.File
	cgroup string
	n      int // of daemons that were started
}

// layout makes the pod's root, above which everything is written in memory, and stays in it.
const layout = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir="$1",upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mkdir -p run/libvirt run/weft
cp "$2/kernel" "$2/initrd" weft/
`

// StartPod starts a pod with libvirt in it. boot holds kernel and initrd, which its machines boot.
func StartPod(ctx context.Context, root, boot, uid string, log *os.File) (_ *Pod, err error) {
	cgroup, err := makeCgroup(uid)
	if err != nil {
		return nil, err
	}
	b, err := box.New("launcher", log)
	if err != nil {
		return nil, errors.Join(err, os.Remove(cgroup))
	}
	p := &Pod{UID: uid, box: b, log: log, cgroup: cgroup}
	defer func() { //nolint:contextcheck // what is cleaned up is so when ctx has ended, too
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err := b.Run(ctx, box.Process{
		Name: "layout", Args: []string{"/bin/sh", "-c", layout, "layout", root, boot}, Env: os.Environ(), Log: log.Name(),
	}); err != nil {
		return nil, err
	}
	return p, p.StartLibvirt(ctx)
}

// makeCgroup makes one as the kubelet does for a container of a pod, in one of the hierarchies.
func makeCgroup(uid string) (string, error) {
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/pids"); err == nil { // cgroup v1
		top += "/pids"
	}
	dir := filepath.Join(top, "kubepods", "burstable", "pod"+uid, "compute")
	return dir, os.MkdirAll(dir, 0o755)
}

// StartLibvirt starts libvirt, after KillLibvirt, and waits for its socket.
func (p *Pod) StartLibvirt(ctx context.Context) error {
	p.n++
	const start = `echo 0 > "$1/cgroup.procs"; exec chroot /mnt/root /usr/sbin/libvirtd`
	run, err := p.box.Start(box.Process{
		Name: fmt.Sprint("libvirtd", p.n), Args: []string{"/bin/sh", "-c", start, "start", p.cgroup}, Env: os.Environ(), Log: p.log.Name(),
	})
	if err != nil {
		return err
	}
	return poll(ctx, "libvirt's socket", func() error {
		select {
		case <-run.Done():
			return fmt.Errorf("libvirtd ended: %s", run.Status())
		default:
		}
		_, err := p.Virsh(ctx, "version")
		return err
	})
}

// KillLibvirt kills libvirt; its machines go on.
func (p *Pod) KillLibvirt(ctx context.Context) error {
	return p.box.End(ctx, fmt.Sprint("libvirtd", p.n), syscall.SIGKILL)
}

// Path is a path of the pod as the machine sees it.
func (p *Pod) Path(path string) string {
	return filepath.Join("/proc", fmt.Sprint(p.box.PID()), "root/mnt/root", path)
}

// Virsh runs libvirt's client in the pod.
func (p *Pod) Virsh(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "/usr/sbin/chroot", append([]string{"/mnt/root", "/usr/bin/virsh", "-q"}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.box.StartInside(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Close ends the pod.
func (p *Pod) Close() error {
	err := p.box.Close()
	// Its processes are gone; the kernel takes them out of the cgroup in its own time.
	for _, dir := range []string{p.cgroup, filepath.Dir(p.cgroup)} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = errors.Join(err, poll(ctx, "empty cgroup "+dir, func() error {
			if err := os.Remove(dir); !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		}))
		cancel()
	}
	return err
}

// poll tries until it works; ctx ends it.
func poll(ctx context.Context, what string, try func() error) error {
	const pause = 100 * time.Millisecond
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
