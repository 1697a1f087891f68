// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a dead lab left is removed by the next one, its logs are kept, and a living lab is let be.
func TestReap(t *testing.T) {
	cache := t.TempDir()
	living, err := newWorkspace(cache)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newWorkspace(cache)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead.log("etcd.log"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	stuck := exec.Command("sleep", "1000")
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	defer stuck.Process.Kill()
	if err := dead.notePID(stuck.Process.Pid); err != nil {
		t.Fatal(err)
	}
	// The same number, but another process: must live.
	if err := dead.note(func(r *record) { r.PIDs = append(r.PIDs, process{PID: os.Getpid(), Start: 1}) }); err != nil {
		t.Fatal(err)
	}
	dead.lock.Close() // as the kernel does for one that is killed

	next, err := newWorkspace(cache)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead.dir); !os.IsNotExist(err) {
		t.Errorf("the dead lab's directory: %v", err)
	}
	if _, err := os.Stat(living.dir); err != nil {
		t.Errorf("the living lab's directory: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(cache, "logs", dead.id, "etcd.log")); err != nil || string(text) != "text" {
		t.Errorf("the dead lab's log: %q, %v", text, err)
	}
	if err := stuck.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the dead lab's process: %v, want killed", err)
	}
	for _, w := range []*workspace{living, next} {
		if _, err := w.remove(false); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "run", "*")); len(left) > 0 {
		t.Errorf("directories stay: %v", left)
	}
}

// A cgroup is made in every hierarchy and removed from all of them, with what is below.
func TestCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := "weft-lab-test-" + filepath.Base(t.TempDir()) + "-" + strings.ToLower(filepath.Base(t.Name()))
	if err := makeCgroup(name); err != nil {
		t.Fatal(err)
	}
	all, err := hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	for _, h := range all {
		if err := os.Mkdir(filepath.Join(h, name, "below"), 0o755); err != nil {
			t.Error(err)
		}
	}
	for range 2 { // the second time there is nothing to remove
		if err := removeCgroup(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range all {
		if _, err := os.Stat(filepath.Join(h, name)); !os.IsNotExist(err) {
			t.Errorf("%s/%s: %v", h, name, err)
		}
	}
}
