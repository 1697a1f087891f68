// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// burstSize is how many pods are added at once.
	burstSize = 100
	// burstWidth is how many of their calls are under way at a time, as many as a
	// runtime starts on a busy node.
	burstWidth = 16
	// settleTime is how long the agent's memory must not have fallen to count as settled.
	settleTime = 2 * time.Second
)

// agentMemory is RssAnon of an agent that knows so many pods and networks, in bytes.
type agentMemory struct {
	pods, networks int
	settled        int64
	burst          int64 // the most while burstSize pods were added, less settled
}

// loads are the sizes that the memory of an agent is measured at, with their limits.
func loads() []struct {
	pods, networks int
	limit          int64
} {
	return []struct {
		pods, networks int
		limit          int64
	}{{100, 100, 25 << 20}, {250, 1000, 45 << 20}}
}

// measureMemory starts an agent of its own in dir.
func (b *bench) measureMemory(ctx context.Context, dir string, pods, networks int) (m agentMemory, err error) {
	m = agentMemory{pods: pods, networks: networks}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return m, err
	}
	a, err := startAgent(ctx, dir, b.bin, population(pods, networks))
	if err != nil {
		return m, err
	}
	defer a.stop()
	n, err := a.debug.Node(ctx)
	if err != nil {
		return m, err
	}
	if c := n.State.Counts; c.Pods < pods || c.Networks < networks { // the bench's own are there as well
		return m, fmt.Errorf("weft-agent knows %d pods of %d and %d networks of %d", c.Pods, pods, c.Networks, networks)
	}
	if m.settled, err = a.settle(ctx); err != nil {
		return m, err
	}
	most, err := b.burst(ctx, a)
	m.burst = max(most-m.settled, 0)
	return m, err
}

// population is a cluster's: pods of about 6 KiB, networks of about 350 bytes.
func population(pods, networks int) string {
	env := strings.Repeat("{name: SOME_VARIABLE_OF_THE_CONTAINER, value: and its value of some length}, ", 60)
	var b strings.Builder
	for i := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: pod-%d\n  uid: uid-%d\n  annotations: {k8s.v1.cni.cncf.io/networks: net-%d, last: %s}\n"+
			"spec: {nodeName: %s, containers: [{name: c, image: i, env: [%s]}]}\n", i, i, i%networks, strings.Repeat("x", 1500), nodeName, env)
	}
	for i := range networks {
		fmt.Fprintf(&b, "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: net-%d}\nspec: {config: '%s'}\n", i,
			fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net-%d","type":"noop","master":"eth0","mode":"bridge","ipam":{"type":"static","addresses":[`+
				`{"address":"10.10.0.7/16","gateway":"10.10.0.254"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.10.0.53"]}}}`, i))
	}
	return b.String()
}

// settle is the agent's memory once it no longer falls.
func (a *agent) settle(ctx context.Context) (int64, error) {
	least, err := a.rssAnon()
	for since := time.Now(); err == nil && time.Since(since) < settleTime; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		now, err := a.rssAnon()
		if err != nil {
			return 0, err
		}
		if now < least {
			least, since = now, time.Now()
		}
	}
	return least, err
}

// burst adds pods through weft-cni, and gives the agent's most memory meanwhile.
func (b *bench) burst(ctx context.Context, a *agent) (int64, error) {
	var calls sync.WaitGroup
	errs := make([]error, burstSize)
	free := make(chan struct{}, burstWidth)
	over := make(chan struct{})
	go func() {
		for i := range burstSize {
			free <- struct{}{}
			calls.Go(func() {
				defer func() { <-free }()
				errs[i] = b.addPod(ctx, a, i)
			})
		}
		calls.Wait()
		close(over)
	}()
	most := int64(0)
	for {
		now, err := a.rssAnon()
		most = max(most, now)
		select {
		case <-over:
			return most, errors.Join(append(errs, err)...)
		case <-time.After(time.Millisecond):
		}
	}
}

// addPod is one ADD of the population's pod number i.
func (b *bench) addPod(ctx context.Context, a *agent, i int) error {
	cmd := b.command(ctx, b.weft, "ADD", "eth0", bytes.Replace(a.conf, []byte(`"second"`), fmt.Appendf(nil, `"net-%d"`, i), 1))
	cmd.Env = append(cmd.Env, // the last of a name counts
		fmt.Sprintf("CNI_CONTAINERID=burst-%d", i),
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-%d;K8S_POD_UID=uid-%d", i, i))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("add pod %d: %w\n%s", i, err, out)
	}
	return nil
}

// memories measures every load, each with an agent of its own below dir.
func (b *bench) memories(ctx context.Context, dir string) (all []agentMemory, err error) {
	for _, load := range loads() {
		m, err := b.measureMemory(ctx, filepath.Join(dir, fmt.Sprintf("agent-%d", load.pods)), load.pods, load.networks)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}
