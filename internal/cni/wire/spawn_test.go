// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// The test binary is also every planner that is spawned here: it acts by the name
// that it is started under.
func TestMain(m *testing.M) {
	name, ok := strings.CutPrefix(filepath.Base(os.Args[0]), "planner-")
	if !ok {
		os.Exit(m.Run())
	}
	os.Exit(actAs(name))
}

func actAs(name string) int {
	rounds := 0
	serve := func() int {
		_ = Serve(os.Stdin, os.Stdout, func(req Request) Response {
			rounds++
			if len(req.Plan.Files) == 0 {
				return Response{Need: []plan.Need{"confDir/a"}}
			}
			return Response{Plan: &plan.Plan{PodName: strconv.Itoa(rounds), PodUID: strings.Join(os.Environ(), ",")}}
		})
		return 0
	}
	forever := func() { <-time.After(time.Hour) }
	var req Request
	switch name {
	case "good":
		return serve()
	case "dies":
		_ = Read(os.Stdin, &req)
		fmt.Fprintln(os.Stderr, "panic: no idea")
		return 3
	case "half": // kill -9 in the middle of the answer
		_ = Read(os.Stdin, &req)
		_, _ = os.Stdout.WriteString("\x00\x00\x10\x00{\"version\":1,")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "slow": // with a child that holds all of its stdio
		child := exec.Command("/proc/self/exe")
		child.Args = []string{"planner-sleeps"}
		child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return 1
		}
		fmt.Fprintln(os.Stderr, os.Getpid(), child.Process.Pid)
		forever()
	case "sleeps":
		forever()
	case "floods":
		_, _ = os.Stderr.Write(bytes.Repeat([]byte("x"), 1<<20))
		return serve()
	case "lingers": // goes on when its input has ended
		serve()
		forever()
	case "babbles":
		_, _ = os.Stdout.WriteString("starting up…\n")
		return serve()
	}
	return 1
}

// planner returns a program that acts as name.
func planner(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "planner-"+name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func spawn(ctx context.Context, t *testing.T, name string, stderr io.Writer) *Client {
	t.Helper()
	c, err := Spawn(ctx, planner(t, name), stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func oneFile(plan.Need) plan.File { return plan.File{Found: true} }

func TestSpawn(t *testing.T) {
	t.Setenv("SECRET", "1")
	c := spawn(t.Context(), t, "good", nil)
	for i, want := range []string{"2", "4"} { // one process: two rounds each
		p, err := c.Plan(t.Context(), testRequest, oneFile)
		if err != nil {
			t.Fatal(err)
		}
		if p.PodName != want {
			t.Errorf("plan %d came after %s rounds, want %s", i, p.PodName, want)
		}
		if p.PodUID != "GOMAXPROCS=1" { // and no secret of the runtime's
			t.Errorf("the planner's environment is %q", p.PodUID)
		}
	}
	if group, err := syscall.Getpgid(c.proc.child.PID); err != nil || group != c.proc.child.PID {
		t.Errorf("process group %d, %v; want its own", group, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.proc.end(); got != "exit status 0" {
		t.Errorf("planner ended with %s", got)
	}
}

func TestSpawnFaults(t *testing.T) {
	for name, c := range map[string]struct {
		code fault.Code
		text string
	}{
		"dies":    {11, ": ends without an answer (exit status 3): panic: no idea"},
		"half":    {11, ": ends without an answer (signal: killed)"},
		"babbles": {100, ": answers nonsense: receive message of 1937006962 bytes: message is larger than 32 MiB"},
		"unknown": {11, ": ends without an answer (exit status 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			client := spawn(t.Context(), t, name, nil)
			_, err := client.Plan(t.Context(), testRequest, oneFile)
			f, ok := errors.AsType[*fault.Fault](err)
			if !ok || f.Code != c.code || f.Error() != client.name+c.text {
				t.Errorf("error %v\nwant %s%s", err, client.name, c.text)
			}
		})
	}
	for name, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "none"), "a directory": t.TempDir()} {
		_, err := Spawn(t.Context(), path, nil)
		if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || !strings.HasPrefix(f.Error(), "planner "+path+": start: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestSpawnedPlannerIsKilledFromOutside(t *testing.T) {
	c := spawn(t.Context(), t, "sleeps", nil)
	time.AfterFunc(20*time.Millisecond, func() { _ = syscall.Kill(c.proc.child.PID, syscall.SIGKILL) })
	_, err := c.Plan(t.Context(), testRequest, oneFile)
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || !strings.HasSuffix(f.Error(), ": ends without an answer (signal: killed)") {
		t.Errorf("error %v", err)
	}
}

// saying keeps what is said, and does something then.
type saying struct {
	bytes.Buffer
	then func()
}

func (s *saying) Write(b []byte) (int, error) {
	s.then()
	return s.Buffer.Write(b)
}

// TestSlowPlannerDiesWithItsChildren: neither outlives the context of Spawn.
func TestSlowPlannerDiesWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	round, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	said := &saying{then: stop} // what is not answered by then will not be
	c := spawn(ctx, t, "slow", said)
	_, err := c.Plan(round, testRequest, oneFile)
	var leader, child int
	if _, err := fmt.Fscan(&said.Buffer, &leader, &child); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s: gives no answer in time: %d %d", c.name, leader, child)
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || f.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	cancel()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := c.proc.end(); got != "signal: killed" {
		t.Errorf("planner ended with %s", got)
	}
	waitGone(t, leader)
	waitGone(t, child)
}

func TestCloseDoesNotWaitForever(t *testing.T) {
	c := spawn(t.Context(), t, "lingers", nil)
	if _, err := c.Plan(t.Context(), testRequest, oneFile); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*endWait {
		t.Errorf("close took %v", took)
	}
	if got := c.proc.end(); got != "signal: killed" {
		t.Errorf("planner ended with %s", got)
	}
}

func TestStderrIsBounded(t *testing.T) {
	var stderr bytes.Buffer
	c := spawn(t.Context(), t, "floods", &stderr)
	if p, err := c.Plan(t.Context(), testRequest, oneFile); err != nil || p.PodName != "2" {
		t.Errorf("plan %+v, %v", p, err)
	}
	c.Close()
	if stderr.Len() != maxStderr {
		t.Errorf("%d bytes forwarded, want %d", stderr.Len(), maxStderr)
	}
	if got := c.proc.tail(); got != ": "+strings.Repeat("x", tailSize) {
		t.Errorf("the tail has %d bytes", len(got))
	}
}

// waitGone polls until a process is dead: gone, or a zombie that its new parent has not reaped.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // bounded polling of a real process
	}
	t.Errorf("process %d still lives", pid)
}
