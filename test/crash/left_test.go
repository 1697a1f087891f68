// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nothingLeft checks that a scene is as if nothing had ever been attached.
func (s *scene) nothingLeft(t *testing.T) {
	t.Helper()
	s.clean(t, s)
	for _, dir := range []string{"attachments", "sweep", "quarantine"} {
		if left := files(t, s.at("state/"+dir)); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
	s.noTemporaryFile(t)
	s.noProcess(t)
	s.noLock(t)
}

func (s *scene) noTemporaryFile(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(s.at("state"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), "tmp") {
			t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// noLock takes every lock of the state directory itself.
func (s *scene) noLock(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(s.at("state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			t.Errorf("lock of %s: %v", path, err)
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// noProcess: delegates and what they left are gone when DEL or GC returns. A planner whose
// weft-cni was killed reads the end of its input and goes by itself.
func (s *scene) noProcess(t *testing.T) {
	t.Helper()
	var left []string
	for wait := time.Millisecond; wait < 4*time.Second; wait *= 2 {
		left = s.processes(t)
		planners := 0
		for _, p := range left {
			if strings.Contains(p, "weft-planner") {
				planners++
			}
		}
		if len(left) == 0 || planners < len(left) {
			break
		}
		<-time.After(wait)
	}
	for _, p := range left {
		t.Errorf("left: process %s", p)
	}
}

// processes are those that work for the scene: they have its directory as their own.
func (s *scene) processes(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range all {
		cwd, err := os.Readlink(p + "/cwd")
		if err != nil || cwd != s.dir {
			continue // gone, a zombie, or somebody else's
		}
		exe, _ := os.Readlink(p + "/exe")
		env, _ := os.ReadFile(p + "/environ")
		out = append(out, fmt.Sprintf("%s %s (%s)", filepath.Base(p), exe, strings.ReplaceAll(string(env), "\x00", " ")))
	}
	return out
}
