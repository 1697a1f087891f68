// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/agent"
	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/host/logs"
	"github.com/weftnet/weft/internal/host/logs/logstest"
)

// TestInside: the agent in this process, so that the race detector sees it, asked from all
// sides while pods come and go; afterwards nothing of it runs.
func TestInside(t *testing.T) {
	const pods = 8
	r := newRig(t)
	path := filepath.Join(r.dir, "agent.yaml")
	r.write(path, r.json(r.config))
	cfg, err := config.Load(path, config.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	log := &logstest.Buffer{}
	a, err := agent.New(cfg, "v0", logs.New(log, slog.LevelDebug, "json"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	r.await("the agent is ready", func() bool { return r.node().Ready })

	var work, look sync.WaitGroup
	over := make(chan struct{})
	for range 2 {
		look.Go(func() {
			c := r.debug()
			for {
				_, err1 := c.Node(t.Context())
				_, err2 := c.Pods(t.Context(), "", "")
				_, err3 := c.Networks(t.Context(), "")
				if err1 != nil || err2 != nil || err3 != nil {
					t.Error(err1, err2, err3)
					return
				}
				select {
				case <-over:
					c.Close()
					return
				default:
				}
			}
		})
	}
	for i := range pods {
		pod := fmt.Sprintf("pod%d", i)
		r.server.Apply(r.pod(pod, "neta"))
		work.Go(func() {
			for _, verb := range []string{"ADD", "DEL"} {
				if err := r.call(verb, pod, asks("neta")).Run(); err != nil {
					t.Errorf("%s of %s: %v", verb, pod, err)
				}
			}
		})
	}
	work.Wait()
	close(over)
	look.Wait()
	r.wantClean()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	if t.Failed() || strings.Contains(log.String(), "panic") {
		t.Errorf("log:\n%s", log)
	}
}
