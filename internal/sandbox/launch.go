// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options says what to run.
type Options struct {
	Dir      string        // directory of YAML
	BinDirs  []string      // where the CNI plugins are
	StateDir string        // where a kept sandbox is remembered, "" for the user's own place
	Cut      string        // link of the pretended host that is taken down before the probes
	Keep     bool          // leave the pods running
	Timeout  time.Duration // of everything but taking down
	// Command starts Inside in a new process.
	Command []string
	Stderr  io.Writer // progress
}

// ErrForbidden tells that the system does not let this user make namespaces. Its text says
// how to go on.
type ErrForbidden struct {
	Err  error
	Hint string
}

func (e *ErrForbidden) Error() string { return fmt.Sprintf("%v\n%s", e.Err, e.Hint) }

// Unwrap gives the cause.
func (e *ErrForbidden) Unwrap() error { return e.Err }

// UsageError tells that what was asked for makes no sense.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// stopTime is how long the process inside may take to end after it was told to.
const stopTime = takeDownTime + 15*time.Second

// Run runs the pods of a directory and reports. When ctx ends, everything is taken down and
// what was found until then is reported.
func Run(ctx context.Context, opts Options) (*Report, error) {
	dir, err := realDir(opts.Dir)
	if err != nil {
		return nil, &UsageError{err}
	}
	o := order{Dir: dir, Cut: opts.Cut, Keep: opts.Keep, Timeout: opts.Timeout}
	for _, d := range opts.BinDirs {
		bin, err := realDir(d)
		if err != nil {
			return nil, &UsageError{fmt.Errorf("%w (the CNI plugins are looked for there; see --bin-dir)", err)}
		}
		o.BinDirs = append(o.BinDirs, bin)
	}
	for _, needed := range []string{"weft-cni", "loopback"} {
		if !slices.ContainsFunc(o.BinDirs, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, needed))
			return err == nil
		}) {
			return nil, &UsageError{fmt.Errorf("find plugin: no %s in %s (see --bin-dir)", needed, strings.Join(o.BinDirs, ":"))}
		}
	}
	var place *place
	if opts.Keep {
		if place, err = newPlace(opts.StateDir); err != nil {
			return nil, err
		}
		defer place.close()
	}
	c, err := start(opts, o, place)
	if err != nil {
		return nil, err
	}
	defer c.control.Close()
	return c.await(ctx, opts, place)
}

// child is the process inside, seen from outside.
type child struct {
	cmd     *exec.Cmd
	user    bool     // in a user namespace of its own
	control *os.File // closing it takes the sandbox down
	answer  chan answered
}

type answered struct {
	answer answer
	err    error
}

// start starts the process inside in its namespaces.
func start(opts Options, o order, place *place) (*child, error) {
	orders, control, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer orders.Close()
	answers, answerEnd, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make pipe: %w", err), control.Close())
	}
	defer answerEnd.Close()
	cmd, user, err := startIn(opts, []*os.File{orders, answerEnd}, place)
	if err != nil {
		return nil, errors.Join(forbidden(fmt.Errorf("make namespaces: %w", err)), control.Close(), answers.Close())
	}
	c := &child{cmd: cmd, user: user, control: control, answer: make(chan answered, 1)}
	go func() {
		defer answers.Close()
		var a answered
		a.err = json.NewDecoder(answers).Decode(&a.answer)
		c.answer <- a
	}()
	if err := json.NewEncoder(control).Encode(o); err != nil {
		return nil, errors.Join(fmt.Errorf("order sandbox: %w", err), c.kill())
	}
	return c, nil
}

// startIn starts the process inside, in a user namespace when the rights to do without are
// missing: an ordinary user's are, and root's are in many containers.
func startIn(opts Options, files []*os.File, place *place) (cmd *exec.Cmd, user bool, err error) {
	if place != nil {
		files = append(files, place.log)
	}
	for _, user = range []bool{false, true} {
		cmd = exec.Command(opts.Command[0], opts.Command[1:]...)
		// A file is inherited as it is, which lets a kept sandbox outlive this process.
		cmd.Stderr = opts.Stderr
		cmd.ExtraFiles = files
		cmd.SysProcAttr = attributes(user)
		if err = cmd.Start(); !errors.Is(err, unix.EPERM) {
			break
		}
	}
	return cmd, user, err
}

// attributes are the namespaces of the process inside. It is in a session of its own, so
// that a terminal's Ctrl-C reaches the process outside alone, which tells it.
func attributes(user bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:       true,
		Cloneflags:   unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Unshareflags: unix.CLONE_NEWNS, // unlike in Cloneflags, the mounts become private
	}
	if user {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// await waits for the report. When ctx ends, the process inside is told to take down first.
func (c *child) await(ctx context.Context, opts Options, place *place) (*Report, error) {
	var got answered
	select {
	case got = <-c.answer:
	case <-ctx.Done():
		if err := c.control.Close(); err != nil {
			return nil, errors.Join(fmt.Errorf("take down: %w", err), c.kill())
		}
		select {
		case got = <-c.answer:
		case <-time.After(stopTime):
			return nil, errors.Join(fmt.Errorf("take down: no answer in %s; the sandbox was killed", stopTime), c.kill())
		}
	}
	switch {
	case got.err != nil:
		return nil, errors.Join(fmt.Errorf("run sandbox: its process ended without a report: %w", got.err), c.kill())
	case got.answer.Forbidden:
		return nil, errors.Join(&ErrForbidden{Err: errors.New(got.answer.Error), Hint: hint(os.Geteuid(), os.ReadFile)}, c.kill())
	case got.answer.Report == nil:
		return nil, errors.Join(errors.New(got.answer.Error), c.kill())
	case opts.Keep && !got.answer.Report.TakenDown:
		return got.answer.Report, c.letGo(got.answer.Report, opts.StateDir, place)
	}
	if err := c.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("run sandbox: %w", err)
	}
	return got.answer.Report, nil
}

// letGo remembers the process inside and leaves it running.
func (c *child) letGo(r *Report, stateDir string, place *place) error {
	holder, err := newHolder(c.cmd.Process.Pid, c.user)
	if err == nil {
		err = place.remember(holder)
	}
	if err == nil {
		_, err = c.control.WriteString("k\n")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep sandbox: %w", err), c.kill())
	}
	holder.down = downCommand(stateDir)
	r.Holder = holder
	return c.cmd.Process.Release()
}

// kill ends the process inside at once; the kernel then ends all others of the sandbox.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end sandbox: %w", err)
	}
	// How it ended is told by the caller.
	if err := c.cmd.Wait(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return fmt.Errorf("end sandbox: %w", err)
		}
	}
	return nil
}

// forbidden adds how to go on to an error that comes from missing rights.
func forbidden(err error) error {
	for _, cause := range []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL} {
		if errors.Is(err, cause) {
			return &ErrForbidden{Err: err, Hint: hint(os.Geteuid(), os.ReadFile)}
		}
	}
	return err
}

// hint says how to go on when namespaces cannot be made, and which of the settings that are
// known for that forbids it here.
func hint(uid int, read func(path string) ([]byte, error)) string {
	if uid == 0 {
		return "Root lacks the rights to make namespaces here. In a container, start it with them (docker run --privileged)."
	}
	var b strings.Builder
	b.WriteString("This system does not let an ordinary user make namespaces. Run the command as root (sudo), or allow it:")
	found := false
	for _, setting := range []struct{ name, forbids, allow string }{
		{"kernel.unprivileged_userns_clone", "0", "1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
		{"user.max_user_namespaces", "0", "10000"},
	} {
		value, err := read("/proc/sys/" + strings.ReplaceAll(setting.name, ".", "/"))
		if err == nil && string(bytes.TrimSpace(value)) == setting.forbids {
			found = true
			fmt.Fprintf(&b, "\n  sysctl -w %s=%s    # it is %s", setting.name, setting.allow, setting.forbids)
		}
	}
	if !found {
		b.WriteString(" user and mount namespaces must be permitted (in a container: by its seccomp profile).")
	}
	return b.String()
}
