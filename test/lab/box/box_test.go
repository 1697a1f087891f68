// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package box

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownerVariable makes the test binary an owner that prints its box' pid and waits to be killed.
const ownerVariable = "WEFT_BOX_OWNER"

func TestMain(m *testing.M) {
	Init()
	if log := os.Getenv(ownerVariable); log != "" {
		if err := beOwner(log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func beOwner(log string) error {
	b, err := New("owned", os.Stderr)
	if err != nil {
		return err
	}
	if _, err := b.Start(Process{Name: "sleep", Args: []string{"/bin/sleep", "1000"}, Log: log}); err != nil {
		return err
	}
	fmt.Println(b.PID())
	select {}
}

func newBox(t *testing.T, listeners ...*net.TCPListener) *Box {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	b, err := New(t.Name(), os.Stderr, listeners...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func shell(t *testing.T, name, script string) Process {
	t.Helper()
	return Process{
		Name: name, Args: []string{"/bin/sh", "-c", script},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Log: filepath.Join(t.TempDir(), name),
	}
}

func output(t *testing.T, p Process) string {
	t.Helper()
	content, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A box has a network of its own, with nothing but a loopback link that is up.
func TestOwnNetwork(t *testing.T) {
	b := newBox(t)
	p := shell(t, "links", "ip -o link")
	if err := b.Run(t.Context(), p); err != nil {
		t.Fatal(err, output(t, p))
	}
	links := strings.Split(strings.TrimSpace(output(t, p)), "\n")
	if len(links) != 1 || !strings.Contains(links[0], "lo: <LOOPBACK,UP,LOWER_UP>") {
		t.Errorf("links of the box: %q", links)
	}
}

// What ends badly is told so, and by which signal.
func TestStatus(t *testing.T) {
	b := newBox(t)
	if err := b.Run(t.Context(), shell(t, "fail", "exit 3")); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("run what exits with 3: %v", err)
	}
	p := shell(t, "long", "exec sleep 1000")
	r, err := b.Start(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(p); err == nil {
		t.Error("a second process of one name was started")
	}
	if err := b.End(t.Context(), "long", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	if r.Status() != "signal: killed" {
		t.Errorf("status %q, want signal: killed", r.Status())
	}
	if _, err := b.Start(Process{Name: "absent", Args: []string{"/no/such/program"}, Log: p.Log}); err == nil {
		t.Error("a program that is not there was started")
	}
}

// An orphan that ends is reaped by the box' first process.
func TestOrphanIsReaped(t *testing.T) {
	b := newBox(t)
	if err := b.Run(t.Context(), shell(t, "parent", "sleep 0.2 &")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(childrenOf(t, b.PID())) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the orphan is still there")
		}
	}
}

// A listener of the machine serves what listens inside the box.
func TestForward(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(t, l)
	l.Close()
	if err := b.Forward(0, "127.0.0.1:80"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte("inside"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(shell(t, "httpd", "exec busybox httpd -f -p 127.0.0.1:80 -h "+dir)); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(time.Minute); ; {
		response, err := client.Get("http://" + l.Addr().String() + "/index.html")
		if err == nil {
			text, _ := bufio.NewReader(response.Body).ReadString(0)
			response.Body.Close()
			if text != "inside" {
				t.Errorf("the answer is %q", text)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A command that starts inside sees the box' root and processes.
func TestRoot(t *testing.T) {
	b := newBox(t)
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := b.SetRoot(Root{
		Hostname: "inside", Size: "16m", Memory: []string{"/run", "/tmp"}, Fresh: []string{"/var/lib/fresh", "/etc/cni"},
		Bind: map[string]string{"/lab/bound": source}, Copy: map[string]string{"/lab/copied": source},
		Write: map[string][]byte{"/var/lib/fresh/written": []byte("text")},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "hostname; cat /lab/bound /lab/copied /var/lib/fresh/written; echo; ls -A /tmp /etc/cni; cat /proc/1/comm; touch /made-by-a-test; ls /sys/class/net")
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := b.StartInside(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	got, _ := os.ReadFile(out)
	if want := "inside\ntexttexttext\n/etc/cni:\n\n/tmp:\nexe\nlo\n"; string(got) != want {
		t.Errorf("the box shows %q, want %q", got, want)
	}
	if _, err := os.Stat("/made-by-a-test"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the box wrote is on the machine: %v", err)
	}
}

// However the owner ends, nothing of its box stays.
func TestOwnerKilled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+filepath.Join(t.TempDir(), "log"))
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	child := childrenOf(t, pid)
	if len(child) != 1 {
		t.Fatalf("the processes of the box' first one: %q", child)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	for _, p := range append(child, strconv.Itoa(pid)) {
		for deadline := time.Now().Add(time.Minute); alive(p); {
			if time.Now().After(deadline) {
				t.Fatalf("process %s of the box outlives the owner", p)
			}
		}
	}
}

// childrenOf are the pids of a process' children, whichever of its threads started them.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range threads {
		content, err := os.ReadFile(f)
		if err != nil {
			continue // that thread has ended
		}
		all = append(all, strings.Fields(string(content))...)
	}
	return all
}

// alive says whether a process runs; one that nobody has reaped yet does not.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
