// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoLauncher says that no process of the pod has libvirt's socket (yet).
var ErrNoLauncher = errors.New("no process of the pod has libvirt's socket") //nolint:gochecknoglobals // a sentinel

// sockets are where libvirt listens in a pod: the daemon of one driver, and the one of all.
func sockets() []string {
	return []string{"run/libvirt/virtqemud-sock", "run/libvirt/libvirt-sock", "var/run/libvirt/virtqemud-sock", "var/run/libvirt/libvirt-sock"}
}

// Processes are those of a node, by their pods. All machines of a node share one.
type Processes struct {
	proc string

	mu    sync.Mutex
	at    time.Time
	byPod map[string][]int
}

// NewProcesses looks at the host's /proc.
func NewProcesses(proc string) *Processes { return &Processes{proc: proc} }

// sharedFor is how long a look at all processes serves: when a node starts, hundreds want one.
const sharedFor = 2 * time.Second

// of are the processes of a pod, the oldest first as far as numbers tell.
func (p *Processes) of(pod string) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) > sharedFor || p.byPod == nil {
		byPod, err := p.look()
		if err != nil {
			return nil, err
		}
		p.at, p.byPod = time.Now(), byPod
	}
	return slices.Clone(p.byPod[pod]), nil
}

func (p *Processes) look() (map[string][]int, error) {
	entries, err := os.ReadDir(p.proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	byPod := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if pod := p.podOf(pid); pod != "" {
			byPod[pod] = append(byPod[pod], pid)
		}
	}
	for _, pids := range byPod {
		slices.Sort(pids)
	}
	return byPod, nil
}

// maxCgroup is far more than a process' cgroup file has.
const maxCgroup = 64 << 10

// podOf is the UID of a process' pod, "" for none.
func (p *Processes) podOf(pid int) string {
	file, err := os.Open(filepath.Join(p.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxCgroup))
	if err != nil {
		return ""
	}
	return podOf(string(data))
}

// Launcher finds the libvirt of a pod.
type Launcher struct {
	Processes *Processes
	Pod       string // UID
}

// Dial connects to libvirt in the pod.
//
// The pod's processes are those whose cgroup lies below the pod's: only the runtime puts a process
// there, and of names below a pod's cgroup, which the pod could choose, none is looked at. The path
// to the socket is the pod's own and may be made of links: it is resolved as inside of the pod's
// root, and what it ends at is connected to by its descriptor and not by its name. The process that
// listens there has to be one of the pod: a volume could hold another's socket.
func (l Launcher) Dial(ctx context.Context) (net.Conn, error) {
	pids, err := l.Processes.of(l.Pod)
	if err != nil {
		return nil, err
	}
	err = ErrNoLauncher
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		conn, dialErr := l.dial(ctx, pid)
		if dialErr == nil {
			return conn, nil
		}
		if !errors.Is(dialErr, fs.ErrNotExist) {
			err = fmt.Errorf("libvirt's socket in process %d: %w", pid, dialErr)
		}
	}
	return nil, err
}

// podCgroup is a directory of the kubelet's for a pod, of either of its drivers. With a root of its
// own (--cgroup-root, as in kind) the systemd driver's names begin with that.
var podCgroup = regexp.MustCompile(`^(?:(?:.+-)?kubepods(?:-[a-z]+)?-)?pod([0-9a-f]{8}[-_][0-9a-f_-]+?)(?:\.slice)?$`) //nolint:gochecknoglobals // a constant

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

func (l Launcher) owns(pid int) bool { return l.Pod != "" && l.Processes.podOf(pid) == l.Pod }

func (l Launcher) dial(ctx context.Context, pid int) (net.Conn, error) {
	root, err := unix.Open(filepath.Join(l.Processes.proc, strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	defer unix.Close(root)
	if !l.owns(pid) { // the number is another process' by now
		return nil, fs.ErrNotExist
	}
	for _, path := range sockets() {
		conn, err := dialIn(ctx, root, path)
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
func dialIn(ctx context.Context, root int, path string) (*net.UnixConn, error) {
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
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil //nolint:forcetypeassert // a connection of that network is one
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
	if peer.Pid == 0 {
		return errors.New("a process listens there that is not seen from here: the agent needs the host's processes (hostPID)")
	}
	if !l.owns(int(peer.Pid)) {
		return fmt.Errorf("process %d listens there, which is none of the pod", peer.Pid)
	}
	return nil
}
