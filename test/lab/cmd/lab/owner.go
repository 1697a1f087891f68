// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/weftnet/weft/test/lab"
)

const (
	ownerCommand   = "own"  // not for people: the process that a cluster lives and dies with
	installCommand = "weft" // what the owner is asked for through its socket
	downCommand    = "down"
	progressFD     = 3 // of the owner: what the one who started it shows, until the cluster is up
)

// state is what the owner tells the other commands.
type state struct {
	Kubeconfig string         `json:"kubeconfig"`
	Kubectl    []string       `json:"kubectl"`
	Nodes      map[string]int `json:"nodes"` // name to pid
}

func statePath() (string, error) { return cachePath("up.json") }

func cachePath(name string) (string, error) {
	cache, err := lab.Cache()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, name), os.MkdirAll(cache, 0o755)
}

// up starts the owner, detached, and shows its progress until the cluster is up.
func up(ctx context.Context, version string, nodes int) error {
	if _, err := tellRaw("ping"); err == nil {
		return errors.New("up: a cluster is up already; end it by \"down\"")
	}
	if err := lab.Build(ctx, version, os.Stderr); err != nil {
		return err
	}
	logPath, err := cachePath("up.log")
	if err != nil {
		return err
	}
	log, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	progress, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer progress.Close()
	owner := exec.Command("/proc/self/exe", ownerCommand, "--nodes="+strconv.Itoa(nodes))
	owner.Env = append(os.Environ(), "K8S_VERSION="+version)
	owner.Stdout, owner.Stderr, owner.ExtraFiles = log, log, []*os.File{theirs}
	owner.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := owner.Start(); err != nil {
		return err
	}
	theirs.Close()
	stop := context.AfterFunc(ctx, func() { owner.Process.Signal(syscall.SIGTERM) }) //nolint:errcheck // it may have ended
	defer stop()
	for lines := bufio.NewScanner(progress); lines.Scan(); {
		if kubeconfig, ok := strings.CutPrefix(lines.Text(), "KUBECONFIG="); ok {
			fmt.Println("KUBECONFIG=" + kubeconfig)
			return owner.Process.Release()
		}
		fmt.Fprintln(os.Stderr, lines.Text())
	}
	return fmt.Errorf("up: the cluster did not start, see %s", logPath)
}

// own starts a cluster and keeps it until somebody asks for its end.
func own(ctx context.Context, version string, nodes int) error {
	progress := os.NewFile(progressFD, "progress")
	syscall.CloseOnExec(progressFD)
	// Whoever started this may go away before it is up; then only the log remains.
	say := io.MultiWriter(os.Stderr, deaf{progress})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket, err := listen()
	if err != nil {
		return err
	}
	defer socket.Close()
	cp, err := lab.Up(ctx, lab.Options{Kubernetes: version, Progress: say}, nodes)
	if err != nil {
		fmt.Fprintln(say, "lab:", err)
		return err
	}
	defer cp.Stop() //nolint:errcheck // what it leaves, the next lab takes
	if err := publish(cp); err != nil {
		fmt.Fprintln(say, "lab:", err)
		return err
	}
	path, _ := statePath()
	defer os.Remove(path)
	go answer(ctx, socket, cp, cancel)
	fmt.Fprintln(say, "KUBECONFIG="+cp.Kubeconfig)
	progress.Close()
	<-ctx.Done()
	return nil
}

// deaf is a writer whose reader may be gone.
type deaf struct{ io.Writer }

func (d deaf) Write(p []byte) (int, error) {
	d.Writer.Write(p) //nolint:errcheck // that is what deaf is for
	return len(p), nil
}

func publish(cp *lab.ControlPlane) error {
	s := state{Kubeconfig: cp.Kubeconfig, Kubectl: cp.KubectlProgram(), Nodes: map[string]int{}}
	for _, n := range cp.Nodes() {
		s.Nodes[n.Name] = n.PID()
	}
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path, err := statePath()
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// socketAddress is abstract: it has no file, so it is gone when its owner is.
func socketAddress() (*net.UnixAddr, error) {
	path, err := cachePath("")
	return &net.UnixAddr{Net: "unix", Name: "@weft-lab:" + path}, err
}

func listen() (*net.UnixListener, error) {
	address, err := socketAddress()
	if err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", address)
}

// answer serves the other commands: a line each way, the answer's being empty when all is well.
func answer(ctx context.Context, socket *net.UnixListener, cp *lab.ControlPlane, end func()) {
	for {
		conn, err := socket.AcceptUnix()
		if err != nil {
			return
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		switch strings.TrimSpace(line) {
		case installCommand:
			if err := cp.InstallWeft(ctx); err != nil {
				fmt.Fprint(conn, err)
			}
		case downCommand:
			end()
			continue // the connection ends with this process
		}
		conn.Close()
	}
}

// tellRaw says one word to the owner and returns its answer, which may be its end.
func tellRaw(word string) (string, error) {
	address, err := socketAddress()
	if err != nil {
		return "", err
	}
	conn, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	fmt.Fprintln(conn, word)
	text, err := io.ReadAll(conn)
	if errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	return string(text), err
}

func tell(_ context.Context, word string) error {
	text, err := tellRaw(word)
	if err != nil {
		return errNotUp
	}
	if text != "" {
		return errors.New(text)
	}
	return nil
}

var errNotUp = errors.New("no cluster is up: start one by \"up\"") //nolint:gochecknoglobals // a constant in all but name

// down ends the cluster. That none is up is what was asked for; what a killed one left is removed.
func down(ctx context.Context) error {
	if err := tell(ctx, downCommand); err != nil && !errors.Is(err, errNotUp) {
		return err
	}
	return lab.Reap()
}

func current() (state, error) {
	if _, err := tellRaw("ping"); err != nil {
		return state{}, errNotUp
	}
	path, err := statePath()
	if err != nil {
		return state{}, err
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, errNotUp
	}
	if err != nil {
		return state{}, err
	}
	var s state
	return s, json.Unmarshal(content, &s)
}

// execute runs a command on a node with this process' streams.
func execute(ctx context.Context, node string, args []string) error {
	s, err := current()
	if err != nil {
		return err
	}
	pid, ok := s.Nodes[node]
	if !ok {
		return fmt.Errorf("exec: there is no node %s", node)
	}
	cmd := lab.CommandIn(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := lab.StartIn(pid, cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

func kubectl(ctx context.Context, args []string) error {
	s, err := current()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.Kubectl[0], append(s.Kubectl[1:], args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
