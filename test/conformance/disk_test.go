// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package conformance_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	. "github.com/weftnet/weft/test/conformance"
	"github.com/weftnet/weft/test/crash/ptrace"
)

// TestFullDisk lets every call that needs room on the state directory's disk answer ENOSPC:
// each alone, and each with all that follow. An ADD is then undone, or was not begun, and
// says so with code 101; if it succeeds all the same, all is there. Whatever happened, a
// DEL leaves nothing; also one whose own writes fail, which must not keep the pod.
func TestFullDisk(t *testing.T) {
	if err := ptrace.Probe(t.Context(), New(t, Manifests).Bin, []string{"weft-cni"}); err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		whole := newDisk(t)
		if verb == "DEL" {
			whole.add(t)
		}
		whole.run(t, verb, nil)
		if whole.calls < 5 {
			t.Fatalf("%s needs room on the disk only %d times", verb, whole.calls)
		}
		for n := 1; n <= whole.calls; n++ {
			for _, stays := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s call %d, stays full %t", verb, n, stays), func(t *testing.T) {
					d := newDisk(t)
					if verb == "DEL" {
						d.add(t)
					}
					d.check(t, verb, n, stays)
				})
			}
		}
	}
}

// disk is a rig whose state directory's disk can be full.
type disk struct {
	*Rig
	calls int      // that needed room
	hit   []string // that were refused
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{Rig: New(t, Manifests)}
	d.Pod("default", "pod-a", "uid-1", map[string]string{NetworksAnnotation: "neta,other/netb"}, nil)
	return d
}

func (d *disk) add(t *testing.T) {
	t.Helper()
	if o := d.Call("ADD"); o.Status != 0 {
		t.Fatal(o.Stdout)
	}
}

func (d *disk) check(t *testing.T, verb string, n int, stays bool) {
	t.Helper()
	o := d.run(t, verb, func(call int) bool { return call == n || stays && call > n })
	defer func() {
		if t.Failed() {
			t.Logf("refused %q; %s: exit status %d\n%s\n%s", d.hit, verb, o.Status, o.Stdout, o.Stderr)
		}
	}()
	held := d.held(t)
	switch {
	case o.Status == 0 && verb == "ADD":
		if len(held) != 3 {
			t.Errorf("ADD succeeded, and delegates hold %q", held)
		}
		before := len(d.Events())
		if again := d.Call("ADD"); again.Status != 0 || again.Stdout != o.Stdout || len(d.Events()) > before {
			t.Errorf("ADD again: %s, calls %+v", again.Stdout, d.Events()[before:])
		}
	case verb == "ADD":
		if o.Error.Code != 101 || !strings.Contains(o.Error.Msg, "no space left on device") {
			t.Errorf("ADD answers %d %q, want 101 and that no space is left", o.Error.Code, o.Error.Msg)
		}
		d.undone(t)
		fallthrough
	default:
		if len(held) > 0 {
			t.Errorf("after %s delegates hold %q", verb, held)
		}
		if verb == "DEL" && o.Status != 0 {
			t.Errorf("a full disk keeps the pod: %s", o.Stdout)
		}
	}
	// There is room again. The runtime's DEL, and the sweep of a later call, clear up.
	for range 2 {
		if del := d.Call("DEL"); del.Status != 0 {
			t.Errorf("DEL with room again: %s", del.Stdout)
		}
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("left after DEL: %q", left)
	}
}

// TestSmallDisk has a disk of so many pages, the kernel's own: it also cuts writes short.
func TestSmallDisk(t *testing.T) {
	kerneltest.Need(t)
	const most = 40
	page, failed := os.Getpagesize(), 0
	for pages := 1; pages <= most; pages++ {
		d := newDisk(t)
		// Networks of a page and a half each, so that a record grows over several.
		for _, name := range []string{"default/neta", "other/netb"} {
			d.NAD(name, `{"cniVersion":"1.0.0","type":"pb","x":"`+strings.Repeat("x", page*3/2)+`"}`, nil)
		}
		d.Set(`{"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa","result":{"cniVersion":"1.0.0","dns":{"domain":"` + strings.Repeat("y", page) + `"}}}]}`)
		must(t, os.Mkdir(d.At("state"), 0o700))
		must(t, syscall.Mount("tmpfs", d.At("state"), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", pages*page)))
		t.Cleanup(func() { must(t, syscall.Unmount(d.At("state"), syscall.MNT_DETACH)) })
		o := d.Call("ADD")
		if o.Status != 0 {
			failed++
			if o.Error.Code != 101 {
				t.Errorf("%d pages: ADD answers %s", pages, o.Stdout)
			}
			d.undone(t)
			if held := d.held(t); len(held) > 0 {
				t.Errorf("%d pages: delegates hold %q", pages, held)
			}
		}
		if del := d.Call("DEL"); del.Status != 0 {
			t.Errorf("%d pages: DEL answers %s", pages, del.Stdout)
		}
		if left := d.Left(); len(left) > 0 {
			t.Errorf("%d pages: left %q", pages, left)
		}
		if o.Status == 0 {
			if failed < 3 {
				t.Errorf("only %d disks were too small", failed)
			}
			return
		}
	}
	t.Errorf("no disk of up to %d pages was large enough", most)
}

// undone checks that every ADD that began was followed by a DEL.
func (d *disk) undone(t *testing.T) {
	t.Helper()
	open := map[string]bool{}
	for _, c := range d.Events() {
		switch key := c.Type + " " + c.IfName; {
		case c.Command == "ADD" && !c.End:
			open[key] = true
		case c.Command == "DEL" && c.End:
			delete(open, key)
		}
	}
	for key := range open {
		t.Errorf("ADD of %s was not followed by a DEL", key)
	}
}

func (d *disk) held(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(d.Left(), func(path string) bool { return !strings.HasPrefix(path, "hold/") })
}

// run runs weft-cni under the tracer; full says whether the n-th call that needs room fails.
func (d *disk) run(t *testing.T, verb string, full func(n int) bool) Outcome {
	t.Helper()
	cmd := d.Command(verb)
	conf, err := json.Marshal(d.Conf)
	if err != nil {
		t.Fatal(err)
	}
	d.Write("stdin", string(conf))
	var files []*os.File
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		flags := os.O_RDWR | os.O_CREATE | os.O_TRUNC
		if i == 0 {
			flags = os.O_RDONLY
		}
		f, err := os.OpenFile(d.At(name), flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	d.calls = 0
	out, err := ptrace.Run(t.Context(), ptrace.Command{
		Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Files: files,
		Fail: func(c ptrace.Call) syscall.Errno {
			if !d.needsRoom(c) {
				return 0
			}
			d.calls++
			if full == nil || !full(d.calls) {
				return 0
			}
			d.hit = append(d.hit, strings.TrimPrefix(c.String(), d.Dir))
			return syscall.ENOSPC
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !out.Status.Exited() {
		t.Fatalf("%s: status %#x", verb, uint32(out.Status))
	}
	o := Outcome{Status: out.Status.ExitStatus(), Stdout: d.read(t, "stdout"), Stderr: d.read(t, "stderr")}
	if o.Status != 0 {
		if err := json.Unmarshal([]byte(o.Stdout), &o.Error); err != nil {
			t.Fatalf("no CNI error: %v: %s", err, o.Stdout)
		}
	}
	return o
}

// needsRoom tells the calls that a full disk refuses: writing below the state directory,
// and making what is not there.
func (d *disk) needsRoom(c ptrace.Call) bool {
	if !strings.HasPrefix(c.Path, d.At("state")) {
		return false
	}
	switch c.Name {
	case "write", "writev", "pwrite64", "fsync", "fdatasync", "fallocate", "mkdirat", "mkdir", "linkat", "symlinkat":
		return true
	case "openat":
		_, err := os.Lstat(c.Path)
		return c.Flags&syscall.O_CREAT != 0 && os.IsNotExist(err)
	default:
		return false
	}
}

func (d *disk) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(d.At(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
