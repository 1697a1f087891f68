// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package held_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/test/lab/held"
)

// elsewhere does something in namespaces of its own, in a thread that stays there until the test says
// otherwise.
func elsewhere(t *testing.T, flags int, do func() error) (leave func()) {
	t.Helper()
	ready, end, done := make(chan error), make(chan struct{}), make(chan struct{})
	var enter func()
	enter = func() {
		runtime.LockOSThread() //nolint:forbidigo // the lab is not linked with internal/host
		if unix.Gettid() == unix.Getpid() {
			go enter() // the first thread's namespaces count as the process' own
			<-done
			runtime.UnlockOSThread() //nolint:forbidigo // as above
			return
		}
		defer close(done)
		err := unix.Unshare(flags)
		if err == nil && do != nil {
			err = do()
		}
		ready <- err
		<-end // and the thread ends with its goroutine
	}
	go enter()
	if err := <-ready; err != nil {
		t.Skipf("no namespaces can be made here: %v", err)
	}
	return func() {
		close(end)
		<-done
	}
}

// Each kind of leak is planted, named, and no longer named once it has gone.
func TestForeign(t *testing.T) {
	for _, c := range []struct {
		name, want string
		plant      func(*testing.T) (undo func())
	}{
		{"a thread in another network namespace", "/ns/net", func(t *testing.T) func() {
			t.Helper()
			return elsewhere(t, unix.CLONE_NEWNET, nil)
		}},
		{"a thread in another mount namespace", "/ns/mnt", func(t *testing.T) func() {
			t.Helper()
			return elsewhere(t, unix.CLONE_FS|unix.CLONE_NEWNS, nil)
		}},
		{"a file in another mount namespace", "none of its own", func(t *testing.T) func() {
			t.Helper()
			var file *os.File
			leave := elsewhere(t, unix.CLONE_FS|unix.CLONE_NEWNS, func() (err error) {
				file, err = os.Open("/proc/self/exe")
				if err == nil {
					err = file.Close()
				}
				if err == nil {
					file, err = os.Open(os.Args[0])
				}
				return err
			})
			leave()
			return func() { file.Close() }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			settled(t, "")
			undo := c.plant(t)
			settled(t, c.want)
			undo()
			settled(t, "")
		})
	}
}

// settled waits until what is said of this process names something; "" for nothing at all. A thread
// that ends is seen for a moment.
func settled(t *testing.T, want string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		err := held.Foreign(os.Getpid())
		if err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
			return
		}
		select {
		case <-late:
			t.Fatalf("it says %v, want %q", err, want)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestMounts(t *testing.T) {
	uid := "held-" + strings.ReplaceAll(t.TempDir(), "/", "-")
	dir := filepath.Join(t.TempDir(), uid)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := held.Mounts(uid); err != nil {
		t.Fatalf("before anything is mounted: %v", err)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none "$1" && echo mounted && cat`, "sh", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		in.Close()
		t.Skipf("nothing can be mounted here: %q, %v: %v", line, err, cmd.Wait())
	}
	if err := held.Mounts(uid); err == nil {
		t.Error("a mount in another process is not found")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := held.Mounts(uid); err != nil {
		t.Errorf("after its process has ended: %v", err)
	}
}
