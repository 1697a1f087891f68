// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package box

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	ossignal "os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// What pid 1 inherits behind the standard streams.
const (
	ownerFD       = 3
	firstListener = 4
)

// Init does not return in a process that is pid 1 of a box. Every program that makes boxes
// calls it before anything else.
func Init() {
	if os.Args[0] != initName {
		return
	}
	if err := inNamespaces(); err != nil {
		fmt.Fprintf(os.Stderr, "%s %v: %v\n", initName, os.Args[1:], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// server is pid 1: it starts, signals and reaps.
type server struct {
	mu    sync.Mutex // also held from a fork until its pid is known here
	out   *json.Encoder
	names map[int]string // by pid
	pids  map[string]int
}

// inNamespaces serves the owner who made them.
func inNamespaces() error {
	unix.CloseOnExec(ownerFD)
	// Mounts made in the box stay in the box.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return Serve(os.NewFile(ownerFD, "owner"))
}

// Serve is what pid 1 of a box does, or of a machine that takes the place of one (Over): it carries
// out the owner's requests until there is no owner.
func Serve(owner io.ReadWriter) error {
	s := &server{out: json.NewEncoder(owner), names: map[int]string{}, pids: map[string]int{}}
	children := make(chan os.Signal, 1)
	ossignal.Notify(children, unix.SIGCHLD)
	go s.reap(children)
	if err := linkUp("lo"); err != nil {
		return err
	}
	for d := json.NewDecoder(owner); ; {
		var r request
		if err := d.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		m := message{ID: r.ID}
		if err := s.do(r); err != nil {
			m.Error = err.Error()
		}
		s.tell(m)
	}
}

// tell writes to the owner. If there is none, serve is about to end.
func (s *server) tell(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Encode(m) //nolint:errcheck // see above
}

func (s *server) do(r request) error {
	switch {
	case r.Root != nil:
		return r.Root.enter()
	case r.Start != nil:
		return s.start(*r.Start)
	case r.Signal != nil:
		return s.signal(*r.Signal)
	case r.Memory != nil:
		return unix.Mount("tmpfs", *r.Memory, "tmpfs", 0, "")
	case r.Forward != nil:
		return serveForward(*r.Forward)
	default:
		return fmt.Errorf("unknown request %d", r.ID)
	}
}

func (s *server) start(p Process) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(p.Args[0], p.Args, &syscall.ProcAttr{
		Dir: "/", Env: p.Env, Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Args[0], err)
	}
	s.names[pid], s.pids[p.Name] = p.Name, pid
	return nil
}

func (s *server) signal(r signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, ok := s.pids[r.Name]
	if !ok {
		return fmt.Errorf("signal %s: it does not run", r.Name)
	}
	return syscall.Kill(pid, r.Signal)
}

// reap waits for children, its own and those that lost their parent (shims, for one).
func (s *server) reap(children <-chan os.Signal) {
	for range children {
		for {
			var status syscall.WaitStatus
			s.mu.Lock()
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			name := s.names[pid]
			if pid > 0 && name != "" {
				delete(s.names, pid)
				delete(s.pids, name)
			}
			s.mu.Unlock()
			if err == syscall.EINTR { //nolint:errorlint // a bare errno
				continue
			}
			if pid <= 0 {
				break
			}
			if name != "" {
				s.tell(message{Exited: name, Status: statusText(status)})
			}
		}
	}
}

func statusText(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "signal: " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}

// serveForward accepts on an inherited listener until the box ends.
func serveForward(f forward) error {
	unix.CloseOnExec(f.FD)
	file := os.NewFile(uintptr(f.FD), "listener")
	l, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("take listener %d: %w", f.FD, err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go pass(conn, f.To)
		}
	}()
	return nil
}

// pass carries bytes both ways until either end is done.
func pass(outer net.Conn, to string) {
	defer outer.Close()
	inner, err := net.Dial("tcp", to)
	if err != nil {
		return // the caller sees a closed connection: nothing listens there
	}
	defer inner.Close()
	done := make(chan struct{}, 2)
	carry := func(dst, src net.Conn) {
		io.Copy(dst, src)               //nolint:errcheck // an end that went away ends the connection
		dst.(*net.TCPConn).CloseWrite() //nolint:errcheck // see above
		done <- struct{}{}
	}
	go carry(inner, outer)
	go carry(outer, inner)
	<-done
	<-done
}

// linkUp sets a link of the box up.
func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket for %s: %w", name, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
