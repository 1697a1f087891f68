// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/kube/kubetest"
)

// followEnv makes the test's program one that follows the cluster of a kubeconfig, and ends with
// its stdin.
const followEnv = "INFORMERS_TEST_FOLLOW"

func followUntilEOF(kubeconfig string) {
	debug.SetGCPercent(50)
	c, err := New(Config{NodeName: "n1", Kubeconfig: kubeconfig}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	<-c.Synced()
	fmt.Println(len(c.Pods()), len(c.NADs()))
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	<-done
}

// fill puts pods of about 6 KiB and NADs of a few hundred bytes into a server.
func fill(s *kubetest.Server, pods, nads int) {
	env := strings.Repeat("{name: SOME_VARIABLE_OF_THE_CONTAINER, value: and its value of some length}, ", 40)
	var b strings.Builder
	for i := range pods {
		fmt.Fprintf(&b, "---\nkind: Pod\nmetadata: {name: pod-%d, uid: u-%d, annotations: {%s: 'net-%d', other: %s}}\n"+
			"spec: {nodeName: n1, containers: [{name: c, image: i, env: [%s]}]}\n", i, i, networksKey, i, strings.Repeat("x", 500), env)
	}
	for i := range nads {
		fmt.Fprintf(&b, "---\nkind: NetworkAttachmentDefinition\nmetadata: {name: net-%d}\nspec: {config: '%s'}\n", i,
			`{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth0","mode":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.10.0.0/16",`+
				`"rangeStart":"10.10.1.20","rangeEnd":"10.10.3.50","gateway":"10.10.0.254"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`)
	}
	s.Apply(b.String())
}

// withoutRace is a program whose main is this package's TestMain: this one, or where the race
// detector multiplies its memory, the same built without it.
func withoutRace(t *testing.T) string {
	t.Helper()
	if !raceDetector {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return self
	}
	program := filepath.Join(t.TempDir(), "informers.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-buildvcs=false", "-trimpath", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build without the race detector: %v\n%s", err, out)
	}
	return program
}

// TestMemory holds what following costs, with what else such a process needs, well below
// what the agent may cost as a whole: 25 MiB with 100 pods and 100 NADs, 45 MiB with 250
// and 1,000 (RssAnon).
func TestMemory(t *testing.T) {
	self := withoutRace(t)
	for _, c := range []struct {
		pods, nads, limit int
		how               string
	}{{100, 100, 12, "streamed"}, {250, 1000, 16, "streamed"}, {250, 1000, 20, "listed"}} {
		t.Run(fmt.Sprintf("%d pods, %d NADs, %s", c.pods, c.nads, c.how), func(t *testing.T) {
			s := kubetest.New(t)
			if c.how == "listed" { // a server that streams no lists
				s.Inject(kubetest.Fault{Verb: "watch", Status: 422, Times: 2})
			}
			fill(s, c.pods, c.nads)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = []string{followEnv + "=" + s.Kubeconfig(nil)}
			cmd.Stderr = os.Stderr
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
			line, err := bufio.NewReader(out).ReadString('\n')
			if want := fmt.Sprintln(c.pods, c.nads); line != want || err != nil {
				t.Errorf("follows %q, want %q, %v", line, want, err)
			}
			kib := rssAnon(t, cmd.Process.Pid)
			t.Logf("RssAnon %d KiB", kib)
			if kib > c.limit<<10 {
				t.Errorf("RssAnon is %d KiB, limit %d MiB", kib, c.limit)
			}
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func rssAnon(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("no RssAnon")
	return 0
}
