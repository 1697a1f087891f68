// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command delegate is a CNI plugin that records how it is called and misbehaves on
// request. Black-box tests link it under the plugin names that they need.
//
// It touches no network and knows nothing of Weft. Its own configuration says what
// it does (type config); every call is one JSON line at its start and one at its end
// in the file that "log" names, each written at once, so that calls of several
// processes never mix. It implements CNI SPEC 1.1 for every version from 0.1.0 on.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// config is the part of the network configuration that drives the delegate.
// Maps are keyed by CNI command; durations are those of time.ParseDuration.
type config struct {
	CNIVersion string          `json:"cniVersion"`
	Type       string          `json:"type"`
	PrevResult json.RawMessage `json:"prevResult"`

	Log string `json:"log"` // absolute path of the call log; "" = none
	// Detail adds the environment's names and the inherited descriptors to the log.
	Detail bool `json:"detail"`
	// Hold is a directory in which ADD makes <containerID>-<ifName>-<type> and DEL removes it.
	Hold string `json:"hold"`
	// Result answers ADD. ${CNI_IFNAME}, ${CNI_NETNS} and ${CNI_CONTAINERID} in it are replaced.
	// Without it a chained delegate passes prevResult on, a first one answers the
	// minimal result of the configuration's version.
	Result json.RawMessage `json:"result"`
	// ResultRaw is written to stdout as it stands, whatever it is.
	ResultRaw *string `json:"resultRaw"`

	Fail   map[string]failure `json:"fail"`
	Sleep  map[string]string  `json:"sleep"`
	Stderr map[string]string  `json:"stderr"`
	// Child leaves a process behind that sleeps this long with stdout, stderr and every
	// inherited descriptor open; with Session it is in a session of its own.
	Child   map[string]string `json:"child"`
	Session bool              `json:"session"`
	// Crash ends the delegate by SIGKILL instead of an answer.
	Crash map[string]bool `json:"crash"`
	// Flood writes this many bytes to stdout instead of an answer.
	Flood map[string]int `json:"flood"`
}

// failure is the answer of a command that fails. With neither code nor msg nothing
// goes to stdout. Exit is the exit status (0: 1; -1: status 0 with the error on stdout).
type failure struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
	// Times limits the failure to the first calls of that command for one container,
	// interface and type, counted in the log; 0 = always.
	Times int `json:"times"`
	Exit  int `json:"exit"`
}

// event is one line of the log.
type event struct {
	Command     string   `json:"command"`
	ContainerID string   `json:"containerID"`
	IfName      string   `json:"ifName"`
	Netns       string   `json:"netns"`
	Args        string   `json:"args"`
	Path        string   `json:"path"`
	Type        string   `json:"type"`
	Stdin       string   `json:"stdin,omitempty"`
	PID         int      `json:"pid"`
	Child       int      `json:"child,omitempty"` // process left behind, on the end line
	T           int64    `json:"t"`               // nanoseconds since 1970
	End         bool     `json:"end,omitempty"`
	Env         []string `json:"env,omitempty"` // names only
	FDs         []int    `json:"fds,omitempty"` // descriptors other than 0, 1, 2
}

const childVar = "DELEGATE_CHILD"

func main() {
	if d := os.Getenv(childVar); d != "" {
		sleep(d)
		return
	}
	status, err := run()
	if err != nil {
		answer(map[string]any{"code": 100, "msg": "recording delegate: " + err.Error()})
		status = 1
	}
	os.Exit(status)
}

func run() (status int, err error) {
	command := os.Getenv("CNI_COMMAND")
	stdin, err := readStdin()
	if err != nil {
		return 0, err
	}
	if command == "VERSION" {
		return 0, answer(map[string]any{"cniVersion": "1.1.0", "supportedVersions": versions()})
	}
	var c config
	if err := json.Unmarshal(stdin, &c); err != nil {
		return 0, fmt.Errorf("decode configuration: %w", err)
	}
	e := event{
		Command: command, ContainerID: os.Getenv("CNI_CONTAINERID"), IfName: os.Getenv("CNI_IFNAME"),
		Netns: os.Getenv("CNI_NETNS"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"),
		Type: c.Type, Stdin: string(stdin), PID: os.Getpid(), T: time.Now().UnixNano(),
	}
	if c.Detail {
		e.Env, e.FDs = environment(), descriptors()
	}
	if err := e.write(c.Log); err != nil {
		return 0, err
	}
	status, child, err := c.perform(command, e)
	e.Stdin, e.Env, e.FDs, e.End, e.Child, e.T = "", nil, nil, true, child, time.Now().UnixNano()
	if err := e.write(c.Log); err != nil {
		return 0, err
	}
	return status, err
}

// perform does what the configuration says about one command.
func (c *config) perform(command string, e event) (status, child int, err error) {
	if d := c.Child[command]; d != "" {
		if child, err = leaveChild(d, c.Session); err != nil {
			return 0, 0, err
		}
	}
	sleep(c.Sleep[command])
	fmt.Fprint(os.Stderr, c.Stderr[command])
	if c.Crash[command] {
		return 0, child, syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if n := c.Flood[command]; n > 0 {
		return 0, child, flood(n)
	}
	if f, ok := c.Fail[command]; ok && (f.Times == 0 || e.seen(c.Log) <= f.Times) {
		return f.answer(c.CNIVersion), child, nil
	}
	switch command {
	case "ADD":
		err = c.add(e)
	case "DEL":
		if path := c.held(e); path != "" {
			if err = os.Remove(path); os.IsNotExist(err) {
				err = nil
			}
		}
	}
	return 0, child, err
}

func (c *config) held(e event) string {
	if c.Hold == "" {
		return ""
	}
	return filepath.Join(c.Hold, e.ContainerID+"-"+e.IfName+"-"+c.Type)
}

func (c *config) add(e event) error {
	if path := c.held(e); path != "" {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	out := c.Result
	switch {
	case c.ResultRaw != nil:
		out = []byte(*c.ResultRaw)
	case out != nil:
		out = []byte(strings.NewReplacer("${CNI_IFNAME}", e.IfName, "${CNI_NETNS}", e.Netns,
			"${CNI_CONTAINERID}", e.ContainerID).Replace(string(out)))
	case c.PrevResult != nil:
		out = c.PrevResult
	default:
		return answer(map[string]any{"cniVersion": orOldest(c.CNIVersion)})
	}
	_, err := os.Stdout.Write(out)
	return err
}

func (f failure) answer(version string) int {
	if f.Code != 0 || f.Msg != "" {
		m := map[string]any{"cniVersion": orOldest(version), "code": f.Code, "msg": f.Msg}
		if f.Details != "" {
			m["details"] = f.Details
		}
		if answer(m) != nil {
			return 1
		}
	}
	switch f.Exit {
	case 0:
		return 1
	case -1:
		return 0
	default:
		return f.Exit
	}
}

// seen counts the calls that the log has of this command for the same attachment,
// this one included.
func (e event) seen(log string) int {
	data, err := os.ReadFile(log)
	if err != nil {
		return 1
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		var o event
		if json.Unmarshal([]byte(line), &o) == nil && !o.End && o.Command == e.Command &&
			o.ContainerID == e.ContainerID && o.IfName == e.IfName && o.Type == e.Type {
			n++
		}
	}
	return n
}

func (e event) write(log string) error {
	if log == "" {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	return f.Close()
}

func readStdin() ([]byte, error) {
	var b strings.Builder
	if _, err := os.Stdin.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("read stdin: %w", err)
	}
	return []byte(b.String()), nil
}

func answer(v any) error {
	return json.NewEncoder(os.Stdout).Encode(v)
}

func sleep(d string) {
	if d == "" {
		return
	}
	if t, err := time.ParseDuration(d); err == nil {
		time.Sleep(t)
	}
}

// leaveChild starts a sleeping copy of this program. Descriptors beyond stdio are
// inherited because nothing closes them on exec.
func leaveChild(d string, session bool) (int, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVar+"="+d)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("leave child: %w", err)
	}
	return cmd.Process.Pid, nil
}

func flood(n int) error {
	chunk := []byte(strings.Repeat("x", 1<<16))
	for n > 0 {
		w, err := os.Stdout.Write(chunk[:min(n, len(chunk))])
		if err != nil {
			return err
		}
		n -= w
	}
	return nil
}

func environment() []string {
	var names []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	return names
}

// descriptors lists inherited descriptors: those without close-on-exec, which Go
// sets on everything that this process opened itself.
func descriptors() []int {
	var fds []int
	for fd := 3; fd < 256; fd++ {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

func versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

func orOldest(version string) string {
	if version == "" {
		return "0.1.0"
	}
	return version
}
