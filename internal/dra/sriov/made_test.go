// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"os"
	"path/filepath"
	"testing"
)

func openRecords(t *testing.T, dir string) *Records {
	t.Helper()
	r, err := OpenRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func expectMade(t *testing.T, r *Records, want int) {
	t.Helper()
	if got, err := r.Made(pf0); err != nil || got != want {
		t.Errorf("made %d, %v; want %d", got, err, want)
	}
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	r := openRecords(t, dir)
	expectMade(t, r, 0)
	for _, n := range []int{4, 2, 0, 0, 3} {
		if err := r.SetMade(pf0, n); err != nil {
			t.Fatal(err)
		}
		expectMade(t, r, n)
	}
	expectMade(t, openRecords(t, dir), 3) // another agent of the same boot
	later := openRecords(t, dir)
	later.boot = "another boot"
	expectMade(t, later, 0)
}

// A record that says nothing sensible counts as none, is told, and does not stop a new one.
func TestCorruptRecord(t *testing.T) {
	dir := t.TempDir()
	r := openRecords(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "pfs", string(pf0)+".jsonl"), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Made(pf0); err == nil || n != 0 {
		t.Errorf("made %d, %v", n, err)
	}
	if err := r.SetMade(pf0, 4); err != nil {
		t.Fatal(err)
	}
	expectMade(t, r, 4)
}
