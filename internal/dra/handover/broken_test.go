// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// A record whose end is broken is salvaged when the sandbox ends; a live sandbox keeps its links
// until then.
func TestBrokenRecord(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.remember()
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	path := filepath.Join(r.dir, "handovers", "s1.jsonl")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"attempting"`, `"attempted!"`, 1)), 0o600))
	must(t, os.WriteFile(filepath.Join(r.dir, "handovers", "other.jsonl"), []byte("nonsense\n"), 0o600))
	r.open()
	must(t, r.h.Recover(t.Context()))
	r.is("interfaces", r.names(ns), []string{"sriov0"})
	must(t, r.h.Detach(t.Context(), "s1"))
	r.is("interfaces", r.names(ns), nil)
	r.unchanged()
}

// A broken record whose link cannot come home is written anew before it is given up: it is tried again, by
// the next process as well, and what was written stays in quarantine.
func TestBrokenRecordIsTriedAgain(t *testing.T) {
	for name, end := range map[string]func(*rig, handover.Sandbox) error{
		"detach": func(r *rig, s handover.Sandbox) error { return r.h.Detach(r.t.Context(), s.ID) },
		"return": func(r *rig, _ handover.Sandbox) error { return r.h.Return(r.t.Context(), "c1", "p1") },
		"attach elsewhere": func(r *rig, s handover.Sandbox) error {
			s.ID = "s2"
			s.Namespace = r.machine.AddNamespace("/run/netns/s2").Path
			_, err := r.h.Attach(r.t.Context(), s)
			return err
		},
		"gone": func(r *rig, s handover.Sandbox) error {
			if _, err := r.machine.NamespaceID(s.Namespace); err == nil {
				r.machine.DestroyNamespace(s.Namespace)
			}
			return r.h.Recover(r.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.vf(0, "c1", "p1", "sriov0")
			r.remember()
			s, _ := r.sandbox("s1")
			_, err := r.h.Attach(t.Context(), s)
			must(t, err)
			path := filepath.Join(r.dir, "handovers", "s1.jsonl")
			text, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"attempting"`, `"attempted!"`, 1)), 0o600))
			for _, method := range []string{"Move", "Restore"} {
				r.machine.Fail(method, errors.New("no such luck"))
			}
			for range 2 {
				r.open()
				if err := end(r, s); err == nil {
					t.Fatal("it is home")
				}
				r.is("records", r.records(), []string{"s1.jsonl"})
			}
			kept, err := filepath.Glob(filepath.Join(r.dir, "quarantine", "*-s1.jsonl"))
			must(t, err)
			if len(kept) != 1 {
				t.Errorf("in quarantine are %q", kept)
			}
			for _, method := range []string{"Move", "Restore"} {
				r.machine.Fail(method, nil)
			}
			r.open()
			must(t, r.h.Detach(t.Context(), "s1"))
			r.unchanged()
			r.is("records", r.records(), nil)
		})
	}
}

// A running sandbox whose record is broken, or lost, keeps its links as they are when it is looked at again,
// and has a record of them afterwards. What is not as it was handed over is handed over anew.
func TestBrokenRecordOfARunningSandbox(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"a phase":        func(text string) string { return strings.Replace(text, `"attempting"`, `"attempted!"`, 1) },
		"the last phase": func(text string) string { return strings.TrimSuffix(text, "}\n") + "!\n" },
		"the intent":     func(text string) string { return "x" + text },
	} {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, all there %t", name, whole), func(t *testing.T) {
				r := newRig(t)
				r.vf(0, "c1", "p1", "sriov0")
				r.vf(1, "c1", "p1", "sriov1")
				r.remember()
				s, ns := r.sandbox("s1")
				_, err := r.h.Attach(t.Context(), s)
				must(t, err)
				if !whole {
					link, err := r.machine.LinkOf(ns, kerneltest.VFAddr(pf, 1))
					must(t, err)
					_, err = r.machine.Move(ns, link.Index, kernel.Namespace{}, "ens1f0v1")
					must(t, err)
				}
				path := filepath.Join(r.dir, "handovers", "s1.jsonl")
				text, err := os.ReadFile(path)
				must(t, err)
				must(t, os.WriteFile(path, []byte(damage(string(text))), 0o600))
				r.open()
				must(t, r.h.Recover(t.Context()))
				if whole {
					r.machine.Fail("Move", errors.New("it is touched"))
				}
				for range 2 {
					s.Yields = true
					given, err := r.h.Attach(t.Context(), s)
					must(t, err)
					if len(given) != 2 {
						t.Errorf("given are %v", given)
					}
				}
				r.machine.Fail("Move", nil)
				r.is("interfaces", r.names(ns), []string{"sriov0", "sriov1"})
				must(t, r.h.Return(t.Context(), "c1", "p1"))
				r.unchanged()
				r.is("records", r.records(), nil)
			})
		}
	}
}

// A record that is lost with its sandbox goes to quarantine; one that cannot go there stays where it is.
func TestLostRecord(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	s, _ := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	path := filepath.Join(r.dir, "handovers", "s1.jsonl")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append([]byte("x"), text...), 0o600))
	quarantine := filepath.Join(r.dir, "quarantine")
	must(t, os.WriteFile(quarantine, nil, 0o600))
	if err := r.h.Detach(t.Context(), "s1"); err == nil {
		t.Error("it was given up")
	}
	if _, err := r.h.Attach(t.Context(), s); err == nil {
		t.Error("it was given up")
	}
	r.is("records", r.records(), []string{"s1.jsonl"})
	must(t, os.Remove(quarantine))
	must(t, r.h.Detach(t.Context(), "s1"))
	r.is("records", r.records(), nil)
}
