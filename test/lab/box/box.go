// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package box runs processes in a set of namespaces that cannot outlive their owner.
//
// A box is one process that is pid 1 of new network, mount, pid, UTS and IPC namespaces, and
// whatever it was told to start there. Its owner holds the only other end of a socket to it.
// However the owner ends, also by SIGKILL, that end closes; pid 1 then ends, and the kernel
// kills every process of the pid namespace and drops the mounts and links with the last one.
// Nothing has a name outside: no file below /run/netns, no pid file.
//
// Whoever makes boxes calls Init first thing in its main: pid 1 of a box is the same program.
// The package knows nothing of Kubernetes; the lab says what runs.
package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initName is argv[0] of a box's pid 1.
const initName = "weft-lab-init"

// request is one order to pid 1; exactly one of the pointers is set.
type request struct {
	ID      int      `json:"id"`
	Root    *Root    `json:"root,omitempty"`
	Start   *Process `json:"start,omitempty"`
	Signal  *signal  `json:"signal,omitempty"`
	Forward *forward `json:"forward,omitempty"`
	Memory  *string  `json:"memory,omitempty"` // a directory
}

// Process is something to run in a box.
type Process struct {
	Name string   `json:"name"` // unique in the box while it runs
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Log  string   `json:"log"` // appended to; a path as the box sees it
}

type signal struct {
	Name   string         `json:"name"`
	Signal syscall.Signal `json:"signal"`
}

// forward passes what reaches a listener on to an address inside the box.
type forward struct {
	FD int    `json:"fd"` // of pid 1
	To string `json:"to"`
}

// message is an answer to a request, or, with Exited, news.
type message struct {
	ID     int    `json:"id,omitempty"`
	Error  string `json:"error,omitempty"`
	Exited string `json:"exited,omitempty"` // the process' name
	Status string `json:"status,omitempty"`
}

// Box is the owner's side.
type Box struct {
	name string
	cmd  *exec.Cmd // of pid 1; nil of a machine's
	conn net.Conn
	gone chan struct{} // closed when pid 1 has ended

	writing sync.Mutex // one request at a time on the socket
	mu      sync.Mutex
	nextID  int
	answers map[int]chan error
	running map[string]*Running
}

// Running is a process of a box.
type Running struct {
	name   string
	done   chan struct{}
	status string
}

// success is the status of a process that ended well.
const success = "exit status 0"

// Done is closed when the process has ended.
func (r *Running) Done() <-chan struct{} { return r.done }

// Status says how it ended; only after Done.
func (r *Running) Status() string { return r.status }

// New makes a box. Its pid 1 writes its own faults to log. Of listeners, number n is what
// Forward(n, …) forwards: a socket belongs to the namespace that it was opened in, so a box
// can serve one of the machine's without having a link to it.
func New(name string, log *os.File, listeners ...*net.TCPListener) (*Box, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make socket of box %s: %w", name, err)
	}
	defer theirs.Close()
	files := []*os.File{theirs}
	for _, l := range listeners {
		f, err := l.File()
		if err != nil {
			ours.Close()
			return nil, fmt.Errorf("pass listener to box %s: %w", name, err)
		}
		defer f.Close()
		files = append(files, f)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{initName, name}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, files
	cmd.SysProcAttr = namespaces()
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start box %s: %w", name, err)
	}
	return serving(name, cmd, ours), nil
}

// Over is a machine as a box: conn leads to its first process, which calls Serve. The caller ends the
// machine.
func Over(name string, conn net.Conn) *Box { return serving(name, nil, conn) }

func serving(name string, pid1 *exec.Cmd, conn net.Conn) *Box {
	b := &Box{
		name: name, cmd: pid1, conn: conn, gone: make(chan struct{}),
		answers: map[int]chan error{}, running: map[string]*Running{},
	}
	go b.listen()
	return b
}

// namespaces are those of a new box. Who is not root becomes root of a user namespace: enough
// for a control plane, which needs no more than a network and a mount of its own.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		// Ctrl-C is for the owner, who then stops its boxes in order.
		Setsid: true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
			unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "box"), os.NewFile(uintptr(fds[1]), "owner")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// PID is the machine's number of the box's pid 1; 0 of a machine's, which is another's.
func (b *Box) PID() int {
	if b.cmd == nil {
		return 0
	}
	return b.cmd.Process.Pid
}

// Gone is closed when the box is no more.
func (b *Box) Gone() <-chan struct{} { return b.gone }

// listen ends when pid 1 has closed its end, which it does by ending.
func (b *Box) listen() {
	for d := json.NewDecoder(b.conn); ; {
		var m message
		if d.Decode(&m) != nil {
			break
		}
		b.take(m)
	}
	if b.cmd != nil {
		b.cmd.Wait() //nolint:errcheck // killed or not, it is gone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.running {
		r.status = "ended with its box"
		close(r.done)
	}
	b.running = nil
	close(b.gone)
}

func (b *Box) take(m message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Exited != "" {
		if r := b.running[m.Exited]; r != nil {
			delete(b.running, m.Exited)
			r.status = m.Status
			close(r.done)
		}
		return
	}
	answer := b.answers[m.ID]
	delete(b.answers, m.ID)
	if answer == nil {
		return
	}
	if m.Error != "" {
		answer <- errors.New(m.Error)
	}
	close(answer)
}

// ask sends one request and waits for its answer.
func (b *Box) ask(r request) error {
	b.mu.Lock()
	b.nextID++
	r.ID = b.nextID
	answer := make(chan error, 1)
	b.answers[r.ID] = answer
	b.mu.Unlock()

	b.writing.Lock()
	err := json.NewEncoder(b.conn).Encode(r)
	b.writing.Unlock()
	if err != nil {
		return fmt.Errorf("speak to box %s: %w", b.name, err)
	}
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("box %s: %w", b.name, err)
		}
		return nil
	case <-b.gone:
		return fmt.Errorf("box %s is gone", b.name)
	}
}

// SetRoot gives the box a root of its own.
func (b *Box) SetRoot(r Root) error { return b.ask(request{Root: &r}) }

// Memory makes a directory one of memory, as the box sees it.
func (b *Box) Memory(dir string) error { return b.ask(request{Memory: &dir}) }

// Forward passes connections of New's nth listener on to an address inside the box.
func (b *Box) Forward(n int, to string) error {
	return b.ask(request{Forward: &forward{FD: firstListener + n, To: to}})
}

// Start runs a process; it lives until it ends, is signalled, or the box is closed.
func (b *Box) Start(p Process) (*Running, error) {
	r := &Running{name: p.Name, done: make(chan struct{})}
	b.mu.Lock()
	if b.running == nil || b.running[p.Name] != nil {
		b.mu.Unlock()
		return nil, fmt.Errorf("box %s: gone, or %s runs already", b.name, p.Name)
	}
	b.running[p.Name] = r
	b.mu.Unlock()
	if err := b.ask(request{Start: &p}); err != nil {
		b.mu.Lock()
		delete(b.running, p.Name)
		b.mu.Unlock()
		return nil, err
	}
	return r, nil
}

// Run starts a process and waits for its end, which must be a success.
func (b *Box) Run(ctx context.Context, p Process) error {
	r, err := b.Start(p)
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, context.Cause(ctx))
	}
	if r.status != success {
		return fmt.Errorf("run %s: %s, see %s", p.Name, r.status, p.Log)
	}
	return nil
}

// Signal sends a signal to the process of that name.
func (b *Box) Signal(name string, s syscall.Signal) error {
	return b.ask(request{Signal: &signal{Name: name, Signal: s}})
}

// End sends a signal to the process of that name and waits until it has ended. A box without
// that process is what was asked for.
func (b *Box) End(ctx context.Context, name string, s syscall.Signal) error {
	b.mu.Lock()
	r := b.running[name]
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	if err := b.Signal(name, s); err != nil {
		return err
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", name, context.Cause(ctx))
	}
}

// Kill ends the process of that name at once, and waits until it has ended. A box without that
// process is what was asked for.
func (b *Box) Kill(name string) error {
	b.mu.Lock()
	r := b.running[name]
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	if err := b.Signal(name, syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-r.done:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("box %s: %s does not end", b.name, name)
	}
}

// Close ends the box and everything in it, at once, and waits until it is gone.
func (b *Box) Close() error {
	b.conn.(*net.UnixConn).CloseWrite() //nolint:errcheck // killed below if it does not read this
	if b.cmd == nil {
		return b.conn.Close()
	}
	b.cmd.Process.Kill() //nolint:errcheck // it may have ended by itself
	select {
	case <-b.gone:
	case <-time.After(closeTimeout):
		return fmt.Errorf("box %s (pid %d) does not end: a process of it is stuck in the kernel", b.name, b.PID())
	}
	return b.conn.Close()
}

// closeTimeout bounds the end of a box: the kernel kills, and unmounts, in well under a second.
const closeTimeout = 30 * time.Second

var _ io.Closer = (*Box)(nil)
