// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
)

const mib = 1 << 20

// TestMemory: anonymous memory of the real agent, with pods of the size that they have in
// clusters, and while a hundred pods are planned at once.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an agent with a thousand networks")
	}
	for _, c := range []struct{ pods, nads, limit int }{{100, 100, 25 * mib}, {250, 1000, 45 * mib}} {
		t.Run(fmt.Sprintf("%d pods %d networks", c.pods, c.nads), func(t *testing.T) {
			r := newRig(t)
			var all strings.Builder
			for i := range c.nads {
				fmt.Fprintf(&all, "---\n%s\n", r.nad(fmt.Sprintf("net%d", i), r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0")))
			}
			for i := range c.pods {
				fmt.Fprintf(&all, "---\n%s\n", r.bigPod(fmt.Sprintf("pod%d", i), fmt.Sprintf("net%d", i)))
			}
			r.server.Apply(all.String())
			p := r.startReady()
			rest := p.settled(t)
			t.Logf("RssAnon %.1f MiB", float64(rest)/mib)
			if rest > c.limit {
				t.Errorf("RssAnon is %.1f MiB, the limit is %d", float64(rest)/mib, c.limit/mib)
			}
			most := r.burst(100)
			t.Logf("RssAnon in a burst: %.1f MiB more", float64(most-rest)/mib)
			if most-rest > 10*mib {
				t.Errorf("a burst of 100 plans takes %.1f MiB, the limit is 10", float64(most-rest)/mib)
			}
		})
	}
}

// bigPod is a pod of about 6 KiB.
func (r *rig) bigPod(name, networks string) string {
	env := []any{}
	for i := range 80 {
		env = append(env, map[string]any{"name": fmt.Sprintf("VARIABLE_%d", i), "value": strings.Repeat("x", 30)})
	}
	return r.json(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": name, "uid": "uid-" + name, "labels": map[string]any{"app": name},
			"annotations": map[string]any{networksKey: networks, "last": strings.Repeat("y", 1500)},
		},
		"spec": map[string]any{"nodeName": "n1", "containers": []any{map[string]any{"name": "c", "image": "i", "env": env}}},
	})
}

// settled is the agent's memory once it no longer falls.
func (p *process) settled(t *testing.T) int {
	t.Helper()
	least, since := p.rss(t), time.Now()
	for time.Since(since) < 2*time.Second {
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // watches another process
		if now := p.rss(t); now < least {
			least, since = now, time.Now()
		}
	}
	return least
}

// burst has n pods planned at once, and gives the agent's most memory meanwhile.
func (r *rig) burst(n int) int {
	r.t.Helper()
	conf := []byte(r.stdin(nil))
	ctx, cancel := context.WithTimeout(r.t.Context(), bound)
	defer cancel()
	var asked sync.WaitGroup
	for i := range n {
		asked.Go(func() {
			p, err := r.planOf(ctx, conf, fmt.Sprintf("pod%d", i))
			if err != nil || len(p.Attachments) != 2 {
				r.t.Error(err)
			}
		})
	}
	over := make(chan struct{})
	go func() { asked.Wait(); close(over) }()
	most := 0
	for {
		most = max(most, r.agent.rss(r.t))
		select {
		case <-over:
			return max(most, r.agent.rss(r.t))
		case <-time.After(time.Millisecond):
		}
	}
}

// TestLargePlans: pods that ask for as much as they may, all at once, are planned one or two at
// a time, within the memory that the agent is given where it is installed; who asks for more is refused.
func TestLargePlans(t *testing.T) {
	r := newRig(t)
	r.server.Apply(r.nad("big", r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0", "pad", strings.Repeat("x", mib))))
	const pods = 12
	for i := range pods {
		r.server.Apply(r.pod(fmt.Sprint("pod", i), "big@n0,big@n1,big@n2"))
	}
	r.server.Apply(r.pod("more", strings.TrimSuffix(strings.Repeat("big,", 20), ",")))
	p := r.startReady("GOMEMLIMIT=100MiB")
	conf := []byte(r.stdin(nil))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var asked sync.WaitGroup
	for i := range pods {
		asked.Go(func() {
			if p, err := r.planOf(ctx, conf, fmt.Sprint("pod", i)); err != nil || len(p.Attachments) != 4 {
				t.Error(err)
			}
		})
	}
	_, err := r.planOf(ctx, conf, "more")
	const want = "pod default/more: annotation k8s.v1.cni.cncf.io/networks: asks for networks whose configurations are of "
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "at most 4194304 are allowed") {
		t.Errorf("answer %v", err)
	}
	asked.Wait()
	p.within(t, 110)
}

// TestLargeNADs: networks that no pod uses, however large they are, take the agent no memory, and
// are there when one does.
func TestLargeNADs(t *testing.T) {
	r := newRig(t)
	const networks = 100
	for i := range networks {
		r.server.Apply(r.nad(fmt.Sprint("big", i), r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0", "pad", strings.Repeat("x", mib))))
	}
	r.server.Apply(r.pod("web", "big7,big8"))
	p := r.startReady("GOMEMLIMIT=100MiB")
	p.within(t, 110)
	if n := r.node().Counts.Networks; n <= networks { // the rig has some as well
		t.Errorf("%d networks", n)
	}
	if p, err := r.planOf(t.Context(), []byte(r.stdin(nil)), "web"); err != nil || len(p.Attachments) != 3 || p.ConfBytes() < 2*mib {
		t.Error(err)
	}
	r.showsTypes(networks)
}

// TestManyNADs: networks that are each small enough to be kept are too large together, and take the
// agent no more memory than it has.
func TestManyNADs(t *testing.T) {
	r := newRig(t)
	const networks = 1500
	var all strings.Builder
	for i := range networks {
		all.WriteString("---\n" + r.nad(fmt.Sprint("big", i), r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0", "pad", strings.Repeat("x", 60<<10))) + "\n")
	}
	r.server.Apply(all.String())
	r.server.Apply(r.pod("web", "big7,big1499"))
	p := r.startReady("GOMEMLIMIT=100MiB")
	p.within(t, 110)
	if p, err := r.planOf(t.Context(), []byte(r.stdin(nil)), "web"); err != nil || len(p.Attachments) != 3 {
		t.Error(err)
	}
	r.showsTypes(networks)
}

// showsTypes wants more than so many networks, the big ones with their plugin.
func (r *rig) showsTypes(networks int) {
	r.t.Helper()
	all, err := r.debug().Networks(r.t.Context(), "")
	if err != nil || len(all.Networks) <= networks {
		r.t.Fatalf("%v, %d networks", err, len(all.Networks))
	}
	for _, n := range all.Networks {
		if strings.HasPrefix(n.Name, "big") && (n.Problem != "" || !slices.Equal(n.Types, []string{"pb"})) {
			r.t.Errorf("%+v", n)
		}
	}
}

// planOf asks for a pod's plan as weft-cni does.
func (r *rig) planOf(ctx context.Context, conf []byte, pod string) (*plan.Plan, error) {
	c, err := wire.Dial(ctx, filepath.Join(r.dir, "run", "agent.sock"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Plan(ctx, wire.PlanRequest{Conf: conf, Sandbox: plan.Sandbox{
		ContainerID: "cid-" + pod, IfName: "eth0", Netns: r.netns,
		Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=uid-" + pod,
	}}, func(plan.Need) plan.File { return plan.File{} })
}

// within wants that the agent never had more memory than so many MiB.
func (p *process) within(t *testing.T, limit int) {
	t.Helper()
	most := p.highWater(t)
	t.Logf("VmHWM %.1f MiB", float64(most)/mib)
	if most > limit*mib {
		t.Errorf("VmHWM is %.1f MiB, the limit is %d", float64(most)/mib, limit)
	}
}

// highWater is the most memory that the agent ever had.
func (p *process) highWater(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib << 10
}
