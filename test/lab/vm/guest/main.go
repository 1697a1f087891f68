// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command guest is pid 1 of the machine: it mounts what a Linux system mounts, loads modules, makes
// virtual functions, runs the commands that it was given and ends the machine with their status.
//
// It owns the machine. It knows nothing of what the commands do.
//
// Implements: architecture 5 (SR-IOV).
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/test/lab/vm/order"
)

func main() {
	// For what this program itself looks up.
	_ = os.Setenv("PATH", path)
	status := 1
	o, err := start()
	switch {
	case err != nil:
		fmt.Println("vm: start the machine:", err)
	case o.Serve:
		if err = serve(); err == nil {
			status = 0
		}
		fmt.Println("vm: nobody is served any more:", err)
	default:
		status = run(o)
	}
	end(status)
}

// mounts are those of any Linux system.
var mounts = []struct{ kind, at, data string }{ //nolint:gochecknoglobals // a table
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"devtmpfs", "/dev", ""},
	{"devpts", "/dev/pts", ""},
	{"tmpfs", "/dev/shm", ""},
	{"tmpfs", "/run", "mode=755"},
	{"tmpfs", "/tmp", ""},
	{"cgroup2", "/sys/fs/cgroup", ""},
	{"bpf", "/sys/fs/bpf", ""},
}

func start() (order.Order, error) {
	for _, m := range mounts {
		if err := os.MkdirAll(m.at, 0o755); err != nil && !strings.HasPrefix(m.at, "/sys/") {
			return order.Order{}, err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil {
			return order.Order{}, fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := errors.Join(os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/var", 0o755), os.Symlink("../run", "/var/run"),
		unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")); err != nil {
		return order.Order{}, err
	}
	o, err := order.Read(order.Path)
	if err != nil {
		return o, err
	}
	for _, path := range o.Modules {
		if err := load(path); err != nil {
			return o, err
		}
	}
	if err := up("lo"); err != nil {
		return o, err
	}
	if err := attach(o); err != nil {
		return o, err
	}
	return o, makeVFs(o.VFs)
}

// attach mounts what the caller gave the machine.
func attach(o order.Order) error {
	if o.Share {
		if err := mount("share", "/share", "9p", "trans=virtio,version=9p2000.L,msize=262144"); err != nil {
			return err
		}
	}
	if o.Disk {
		if err := appear("/dev/vda"); err != nil {
			return err
		}
		if err := mount("/dev/vda", "/disk", "ext4", ""); err != nil {
			return err
		}
	}
	if o.Serve {
		return enter("/disk")
	}
	return nil
}

func mount(what, at, kind, data string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(what, at, kind, 0, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", what, at, err)
	}
	return nil
}

// appear waits for a device's file: the kernel looks for disks in its own time.
func appear(path string) error {
	const limit, pause = 1000, 10 * time.Millisecond
	for range limit {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		<-time.After(pause)
	}
	devices, err := os.ReadDir("/sys/block")
	return fmt.Errorf("%s does not appear; there are %v, %w", path, devices, err)
}

func load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}

func up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

// makeVFs gives each card that can have virtual functions n of them.
func makeVFs(n int) error {
	cards, err := filepath.Glob("/sys/class/net/*/device/sriov_totalvfs")
	if err != nil || n == 0 {
		return err
	}
	for _, path := range cards {
		device := filepath.Dir(path)
		// A card that is down refuses to talk to its virtual functions.
		if err := up(filepath.Base(filepath.Dir(device))); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(device, "sriov_numvfs"), []byte(strconv.Itoa(n)), 0); err != nil {
			return err
		}
	}
	return nil
}

// run runs the commands one after the other; the first status that is not 0 is that of the machine.
func run(o order.Order) (status int) {
	for i, args := range o.Commands {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append([]string{"PATH=" + path, "HOME=/tmp", "TMPDIR=/tmp"}, o.Env...)
		cmd.Dir = "/test"
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		got := 127
		if err := cmd.Start(); err != nil {
			fmt.Println("vm:", err)
		} else {
			got = wait(cmd.Process.Pid)
		}
		fmt.Println(order.StatusLine(i, got))
		if status == 0 {
			status = got
		}
	}
	return status
}

// path has what the caller gave the machine before busybox's.
const path = "/usr/bin:/bin:/sbin"

// wait waits for a process, and meanwhile takes the status of every process that lost its parent:
// that is what a first process is for. One that a signal ended has the status that a shell gives it.
func wait(pid int) int {
	const signalled = 128
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Println("vm: wait for the command:", err)
			return 127
		case ended != pid:
		case status.Signaled():
			return signalled + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}

// end writes the status to the port that ends QEMU.
func end(status int) {
	const port, most = 0xf4, 120
	if status < 0 || status > most {
		status = most
	}
	// The line is slower than the machine: the last words have to be out.
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1)
	_ = unix.Unmount("/disk", 0)
	unix.Sync()
	if file, err := os.OpenFile("/dev/port", os.O_WRONLY, 0); err == nil {
		_, _ = file.WriteAt([]byte{byte(status)}, port)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	for {
		<-time.After(time.Hour)
	}
}
