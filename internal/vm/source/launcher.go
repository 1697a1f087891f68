// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoLauncher: no process of the pod has libvirt's socket (yet).
var ErrNoLauncher = errors.New("no process of the pod has libvirt's socket") //nolint:gochecknoglobals // a sentinel

// sockets are where libvirt listens in a pod: the daemon of one driver, and the one of all.
func sockets() []string {
	return []string{"run/libvirt/virtqemud-sock", "run/libvirt/libvirt-sock", "var/run/libvirt/virtqemud-sock", "var/run/libvirt/libvirt-sock"}
}

// Launcher finds the libvirt of a pod.
type Launcher struct {
	Proc string // the host's /proc
	Pod  string // UID
}

// Dial connects to libvirt in the pod.
//
// The pod's processes are those whose cgroup lies below the pod's: only the runtime puts a process
// there, and of names below a pod's cgroup, which the pod could choose, none is looked at. The path
// to the socket is the pod's own and may be made of links: it is resolved as inside of the pod's
// root, and what it ends at is connected to by its descriptor and not by its name. The process that
// listens there has to be one of the pod: a volume could hold another's socket.
func (l Launcher) Dial(context.Context) (net.Conn, error) {
	pids, err := l.processes()
	if err != nil {
		return nil, err
	}
	err = ErrNoLauncher
	for _, pid := range pids {
		conn, dialErr := l.dial(pid)
		if dialErr == nil {
			return conn, nil
		}
		if !errors.Is(dialErr, fs.ErrNotExist) {
			err = fmt.Errorf("libvirt's socket in process %d: %w", pid, dialErr)
		}
	}
	return nil, err
}

// processes are those of the pod, the oldest first as far as numbers tell.
func (l Launcher) processes() ([]int, error) {
	entries, err := os.ReadDir(l.Proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && l.owns(pid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// podCgroup is a directory of the kubelet's for a pod, of either of its drivers.
var podCgroup = regexp.MustCompile(`^(?:kubepods(?:-[a-z]+)?-)?pod([0-9a-f]{8}[-_][0-9a-f_-]+?)(?:\.slice)?$`) //nolint:gochecknoglobals // a constant

// podOf is the UID of the pod that a cgroup file names, "" for none: the outermost one of its path.
func podOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		for dir := range strings.SplitSeq(parts[2], "/") {
			if found := podCgroup.FindStringSubmatch(dir); found != nil {
				return strings.ReplaceAll(found[1], "_", "-")
			}
		}
	}
	return ""
}

// maxCgroup is far more than a process' cgroup file has.
const maxCgroup = 64 << 10

func (l Launcher) owns(pid int) bool {
	data, err := readBounded(filepath.Join(l.Proc, strconv.Itoa(pid), "cgroup"), maxCgroup)
	return err == nil && l.Pod != "" && podOf(data) == l.Pod
}

func readBounded(path string, limit int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data := make([]byte, limit)
	n := 0
	for n < len(data) {
		m, err := file.Read(data[n:])
		n += m
		if err != nil {
			break
		}
	}
	return string(data[:n]), nil
}

func (l Launcher) dial(pid int) (net.Conn, error) {
	root, err := unix.Open(filepath.Join(l.Proc, strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	defer unix.Close(root)
	if !l.owns(pid) { // the number is another process' by now
		return nil, fs.ErrNotExist
	}
	for _, path := range sockets() {
		conn, err := dialIn(root, path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := l.trust(conn); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), conn.Close())
		}
		return conn, nil
	}
	return nil, fs.ErrNotExist
}

// dialIn connects to a socket below a root whose owner may have put links anywhere in it.
func dialIn(root int, path string) (*net.UnixConn, error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("it is no socket")
	}
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: "/proc/self/fd/" + strconv.Itoa(fd), Net: "unix"})
}

// trust asks who listens.
func (l Launcher) trust(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if asked != nil {
		return asked
	}
	if !l.owns(int(peer.Pid)) {
		return fmt.Errorf("process %d listens there, which is none of the pod", peer.Pid)
	}
	return nil
}
