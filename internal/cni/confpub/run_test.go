// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/weftnet/weft/internal/cni/confpub"
)

// bound is how long something that must happen may take on a busy machine.
const bound = 30 * time.Second

// await polls what is real until it is so.
func (n *node) await(what string, ok func() bool) {
	n.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(bound); !ok(); {
		select {
		case <-deadline:
			n.Fatalf("never: %s\nstatus %+v\n%s", what, n.pub.Status(), &n.log)
		case <-tick.C:
		}
	}
}

// run runs a Publisher until the returned function is called.
func run(t *testing.T, p *confpub.Publisher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func (n *node) holds(primary string) func() bool {
	return func() bool {
		b, err := os.ReadFile(n.at("00-weft.conflist"))
		if err != nil {
			return false
		}
		p, err := confpub.Read(b)
		return err == nil && string(p.Primary) == primary
	}
}

// Changes are seen as they happen: the next rescan would be an hour away. That of a
// directory that is not there, or another one now, is by rescan.
func TestRunSeesChanges(t *testing.T) {
	n := newNode(t)
	n.write(".00-weft.conflist.123.tmp", "left by a crash")
	n.write(".00-weft.conflist.12x.tmp", "not ours")
	n.pub.Quick(time.Hour)
	stop := run(t, n.pub)
	n.pub.Allow()
	n.await("the first look", func() bool { return n.pub.Status().PrimaryErr != nil })
	n.write("10-a.conflist", confA)
	n.await("published", n.holds(confA))
	n.write("10-a.conflist", confB)
	n.await("published anew", n.holds(confB))
	n.must(os.Rename(n.at("00-weft.conflist"), n.at("00-weft.conflist.cilium_bak")))
	n.await("restored", n.holds(confB))
	n.must(os.Remove(n.at("10-a.conflist")))
	n.await("gone is told", func() bool { return errors.Is(n.pub.Status().PrimaryErr, confpub.ErrGone) })
	stop()
	if !n.holds(confB)() {
		t.Error("stopping took the conf away")
	}
	left, err := filepath.Glob(n.at(".00*"))
	if n.must(err); len(left) != 1 || left[0] != n.at(".00-weft.conflist.12x.tmp") {
		t.Errorf("temporary files: %v", left)
	}
}

func TestRunFollowsTheDirectory(t *testing.T) {
	n := newNode(t)
	n.must(os.Remove(n.dir))
	n.pub.Quick(20 * time.Millisecond)
	run(t, n.pub)
	n.pub.Allow()
	n.must(os.Mkdir(n.dir, 0o755))
	n.write("10-a.conflist", confA)
	n.await("published", n.holds(confA))
	for range 3 {
		n.must(os.Rename(n.dir, n.dir+".old"))
		n.must(os.Mkdir(n.dir, 0o755))
		n.await("published in the new directory", n.holds(confA))
		n.must(os.RemoveAll(n.dir + ".old"))
	}
}

// readers read the published conf as a runtime does, all the time, and fail the test when
// it is missing or not whole.
func (n *node) readers(number int) (stop func()) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	for range number {
		wait.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				b, err := os.ReadFile(n.at("00-weft.conflist"))
				if err == nil {
					_, err = confpub.Read(b)
				}
				if err == nil {
					_, err = libcni.ConfListFromBytes(b)
				}
				if err != nil {
					n.Errorf("a reader sees %q: %v", b, err)
					return
				}
			}
		})
	}
	return func() { close(done); wait.Wait() }
}

// disturb does one thing to the primary that a pod network's agent may do.
func (n *node) disturb(i int) {
	n.Helper()
	path, text := n.at("10-a.conflist"), fmt.Sprintf(`{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"pa","n":%d,"x":"%s"}]}`, i, strings.Repeat("x", rand.IntN(5000)))
	switch i % 6 {
	case 0:
		n.must(os.WriteFile(path, []byte(text[:len(text)/2]), 0o644))
	case 1:
		n.must(os.WriteFile(path, []byte(text), 0o644))
	case 2:
		n.must(os.Rename(path, path+".bak"))
	case 3:
		n.must(os.WriteFile(path, nil, 0o644))
	case 4:
		n.must(os.Remove(path))
	case 5:
		n.must(os.WriteFile(path+".new", []byte(text), 0o644))
		n.must(os.Rename(path+".new", path))
	}
}

func TestReadersNeverSeeAnInvalidConf(t *testing.T) {
	n := newNode(t)
	n.pub.Quick(5 * time.Millisecond)
	run(t, n.pub)
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	n.await("published", n.holds(confA))
	stop := n.readers(1)
	seen := map[string]bool{}
	for i := range 500 {
		n.disturb(i)
		seen[string(n.own().Primary)] = true
	}
	n.write("10-a.conflist", confB)
	n.await("published at the end", n.holds(confB))
	stop()
	if len(seen) < 2 {
		t.Error("nothing was published in between")
	}
	if st := n.pub.Status(); st.Restored > 0 {
		t.Errorf("status %+v", st)
	}
}

// Two publishers with the same options, as while a DaemonSet is rolled, agree.
func TestTwoPublishers(t *testing.T) {
	n := newNode(t)
	other, err := confpub.New(n.opts, slog.New(slog.DiscardHandler))
	n.must(err)
	n.write("10-a.conflist", confA)
	for _, p := range []*confpub.Publisher{n.pub, other} {
		p.Quick(5 * time.Millisecond)
		p.Allow()
	}
	stopOne, stopOther := run(t, n.pub), run(t, other)
	n.await("published", n.holds(confA))
	stop := n.readers(1)
	for i := range 200 {
		n.disturb(i)
	}
	n.write("10-a.conflist", confB)
	n.await("published at the end", n.holds(confB))
	calm := func() bool {
		a, b := n.pub.Status(), other.Status()
		return a.Published && b.Published && a.PrimaryErr == nil && b.PrimaryErr == nil && a.Err == nil && b.Err == nil
	}
	n.await("both are calm", calm)
	stop()
	stopOne()
	stopOther()
	before, err := os.Stat(n.at("00-weft.conflist"))
	n.must(err)
	for range 3 {
		n.pass(time.Minute)
		other.Pass(n.now)
	}
	after, err := os.Stat(n.at("00-weft.conflist"))
	if n.must(err); !os.SameFile(before, after) {
		t.Error("written without a reason")
	}
}

// Two that want different things do not busy each other: the file stays whole, and the
// writes become rare. The times are the real ones.
func TestTwoThatDisagree(t *testing.T) {
	n := newNode(t)
	o := n.opts
	o.Extra = map[string]json.RawMessage{"strict": json.RawMessage("true")}
	other, err := confpub.New(o, slog.New(slog.DiscardHandler))
	n.must(err)
	n.write("10-a.conflist", confA)
	n.pub.Allow()
	other.Allow()
	n.pass(0)
	stop := n.readers(1)
	for range 600 {
		n.pass(50 * time.Millisecond)
		other.Pass(n.now)
	}
	stop()
	if total := n.pub.Status().Restored + other.Status().Restored; total < 4 || total > 40 {
		t.Errorf("%d restorings in 30 s", total)
	}
}
