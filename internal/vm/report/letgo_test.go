// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
)

// holding is what this process has that machines' pods make it have.
type holding struct {
	files      []string // descriptors of files and of sockets to libvirt, as /proc names what they are
	goroutines int      // of the packages of machines
}

// holds looks. Connections to the API server are none of a pod's, and come and go.
func holds(t *testing.T) holding {
	t.Helper()
	sockets, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	var h holding
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		what, err := os.Readlink(link)
		if err != nil {
			continue // it was the one that the look itself had
		}
		inode, socket := strings.CutPrefix(what, "socket:[")
		if socket && bytes.Contains(sockets, []byte(" "+strings.TrimSuffix(inode, "]"))) ||
			strings.HasPrefix(what, "/") && !strings.HasPrefix(what, "/proc/") {
			h.files = append(h.files, what)
		}
	}
	slices.Sort(h.files)
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("/internal/vm/")) {
			h.goroutines++
		}
	}
	return h
}

// kept says what is still held of a machine, in words: nothing of what was not held before, and its
// memory is free.
func (h holding) kept(t *testing.T, w weak.Pointer[watched]) (all []string) {
	t.Helper()
	now := holds(t)
	if slices.ContainsFunc(now.files, func(f string) bool { return !slices.Contains(h.files, f) }) {
		all = append(all, "descriptor")
	}
	if now.goroutines > h.goroutines {
		all = append(all, "goroutine")
	}
	runtime.GC()
	if w.Value() != nil {
		all = append(all, "memory")
	}
	return all
}

// deaf is a connection that does not end when it is told to.
type deaf struct{ net.Conn }

func (deaf) Close() error { return nil }

// When a machine's pod has gone, the agent has no descriptor, no goroutine, no connection and no memory
// of it any more. Each kind of leak is planted once: what looks for them finds it, and nothing else.
func TestPodIsLetGo(t *testing.T) {
	g := newRig(t, 1)
	var undo []func() // what was planted
	for name, c := range map[string]struct {
		dialled func(*testing.T, net.Conn) net.Conn
		watched func(*watched)
		want    []string
	}{
		"nothing is planted": {},
		"descriptor": {
			dialled: func(t *testing.T, c net.Conn) net.Conn {
				t.Helper()
				u, ok := c.(*net.UnixConn)
				if !ok {
					t.Fatalf("a connection to libvirt is a %T", c)
				}
				f, err := u.File()
				if err != nil {
					t.Error(err)
				}
				undo = append(undo, func() { f.Close() })
				return c
			},
			want: []string{"descriptor"},
		},
		"goroutine": {
			dialled: func(_ *testing.T, c net.Conn) net.Conn {
				end := make(chan struct{})
				go func() { <-end }()
				undo = append(undo, func() { close(end) })
				return c
			},
			want: []string{"goroutine"},
		},
		"connection": {
			dialled: func(_ *testing.T, c net.Conn) net.Conn {
				undo = append(undo, func() { c.Close() })
				return deaf{c}
			},
			want: []string{"descriptor", "goroutine", "memory"}, // who waits for its end
		},
		"memory": {
			watched: func(w *watched) { undo = append(undo, func() { w.stop() }) },
			want:    []string{"memory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g.noPods.Store(true)
			r, stop := g.start(t, true, func(r *Reporter) {
				if c.dialled != nil {
					r.dial = leaking(r.dial, func(conn net.Conn) net.Conn { return c.dialled(t, conn) })
				}
			})
			defer stop()
			defer func() {
				for _, f := range undo {
					f()
				}
				undo = nil
			}()
			until(t, "the machine is known", func() bool { return len(r.VMIs()) == 1 })
			before := holds(t)
			g.noPods.Store(false)
			r.PodChanged(machineName(0))
			g.readSince(t, r, time.Time{})
			g.settled(t, r)
			w := r.weakly(c.watched)
			if d := cmp.Diff([]string{"descriptor", "goroutine", "memory"}, before.kept(t, w)); d != "" {
				t.Error("held while the pod is there (-want +got):\n", d)
			}
			g.noPods.Store(true)
			r.PodChanged(machineName(0))
			until(t, "the pod is let go", func() bool { _, all := r.Differing(); return all == 0 })
			var got []string
			defer func() {
				if t.Failed() {
					t.Logf("kept: %v, planted: %v", got, c.want)
				}
			}()
			until(t, "as much is kept as was planted", func() bool {
				got = before.kept(t, w)
				return slices.Equal(c.want, got)
			})
		})
	}
}

// weakly is the one machine, which the caller does not hold.
func (r *Reporter) weakly(plant func(*watched)) weak.Pointer[watched] {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.machines["ns/"+machineName(0)]
	if plant != nil {
		plant(w)
	}
	return weak.Make(w)
}

// leaking has what is dialled changed.
func leaking(dial func(string) func(context.Context) (net.Conn, error), change func(net.Conn) net.Conn) func(string) func(context.Context) (net.Conn, error) {
	return func(pod string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			c, err := dial(pod)(ctx)
			if err == nil {
				c = change(c)
			}
			return c, err
		}
	}
}
