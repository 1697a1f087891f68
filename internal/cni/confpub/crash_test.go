// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/host/replace"
	"github.com/weftnet/weft/test/crash/ptrace"
)

// publisherEnv makes this test a process that publishes once into the directory it names.
const publisherEnv = "CONFPUB_TEST_PUBLISH"

// publishOnce is the first look of an agent that may publish.
func publishOnce(dir string) error {
	pub, err := confpub.New(confpub.Options{ConfDir: dir, ConfName: "00-weft.conflist", AgentSocket: "/run/weft/agent.sock"}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if _, err := replace.Leftovers(filepath.Join(dir, "00-weft.conflist")); err != nil {
		return err
	}
	pub.Allow()
	pub.Pass(time.Now())
	st := pub.Status()
	return errors.Join(st.PrimaryErr, st.Err)
}

// scene is a directory before a publisher starts: what it holds, and which primaries may
// stand in the published conf afterwards, whatever happens ("" = none is published).
type scene struct {
	own, primary string // the primary that was published, and that is there now
	may          []string
}

func scenes() map[string]scene {
	return map[string]scene{
		"first":  {"", confA, []string{"", confA}},
		"change": {confB, confA, []string{confB, confA}},
		"same":   {confA, confA, []string{confA}},
	}
}

// walk runs a publisher over and over under do, which says whether to go on, and checks
// what each left, and that the next publisher sets it right.
func walk(t *testing.T, s scene, do func(n *node, step int) (more bool)) {
	t.Helper()
	for step, more := 1, true; more; step++ {
		n := newNode(t)
		if s.own != "" {
			n.write("10-a.conflist", s.own)
			n.pub.Allow()
			n.pass(0)
		}
		n.write("10-a.conflist", s.primary)
		n.write(".00-weft.conflist.1.tmp", "of a kill before")
		more = do(n, step)
		found := ""
		if _, err := os.Lstat(n.at("00-weft.conflist")); err == nil {
			found = string(n.own().Primary)
		}
		if !slices.Contains(s.may, found) {
			t.Errorf("step %d leaves %q, want one of %q", step, found, s.may)
		}
		if err := publishOnce(n.dir); err != nil || string(n.own().Primary) != s.primary {
			t.Errorf("step %d: the next publisher: %v, %q", step, err, n.own().Primary)
		}
		if left, _ := filepath.Glob(n.at(".*")); len(left) > 0 {
			t.Errorf("step %d: left %v", step, left)
		}
	}
}

func traced(t *testing.T, n *node, c ptrace.Command) ptrace.Outcome {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	n.must(err)
	defer null.Close()
	c.Path, c.Args, c.Dir = os.Args[0], []string{"publisher"}, n.dir
	c.Env = []string{publisherEnv + "=" + n.dir, "GOMAXPROCS=1"}
	c.Files = []*os.File{null, null, null}
	out, err := ptrace.Run(t.Context(), c)
	n.must(err)
	return out
}

func needTrace(t *testing.T) {
	t.Helper()
	if err := ptrace.Probe(t.Context(), "/proc/self/exe", []string{"-test.run=^$"}); err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// A publisher that is killed before any of its system calls leaves the conf of before or
// the new one, and nothing that the next does not clear.
func TestKilledAnywhere(t *testing.T) {
	needTrace(t)
	for name, s := range scenes() {
		t.Run(name, func(t *testing.T) {
			kills := 0
			walk(t, s, func(n *node, step int) bool {
				out := traced(t, n, ptrace.Command{KillAt: step})
				if out.Killed {
					kills++
				}
				return out.Killed && !t.Failed()
			})
			if kills < 10 {
				t.Errorf("killed only %d times", kills)
			}
			t.Logf("killed at %d calls", kills)
		})
	}
}

// So does one whose disk fails at any of its calls on the directory, and it says so.
func TestDiskFailsAnywhere(t *testing.T) {
	needTrace(t)
	for name, s := range scenes() {
		t.Run(name, func(t *testing.T) {
			failed := 0
			walk(t, s, func(n *node, step int) bool {
				calls, hit := 0, ""
				out := traced(t, n, ptrace.Command{Fail: func(c ptrace.Call) syscall.Errno {
					if !strings.HasPrefix(c.Path, n.dir+"/") || c.Name == "close" {
						return 0
					}
					if calls++; calls != step {
						return 0
					}
					hit = c.String()
					return syscall.ENOSPC
				}})
				if hit != "" {
					failed++
				}
				// A read that fails may be of no consequence; a write is told.
				for _, call := range []string{"write", "fsync", "rename", "fchmod"} {
					if strings.HasPrefix(hit, call) && out.Status.ExitStatus() != 3 {
						t.Errorf("%s fails, exit %d", hit, out.Status.ExitStatus())
					}
				}
				return hit != "" && !t.Failed()
			})
			if failed < 2 {
				t.Errorf("only %d calls failed", failed)
			}
			t.Logf("%d calls failed", failed)
		})
	}
}

// helper is TestMain's part of a publisher.
func helper(dir string) int {
	if err := publishOnce(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}
