// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plannertest is a planner for tests of the hands: it answers on a socket as a node's
// agent does, and what its one pod asks for can be changed while the pod runs.
//
// It owns the socket's listener and the connections, which end with the test. It plans with
// the planner's own code; it knows no cluster and nothing of how its plans are carried out.
//
// Implements: architecture 4.2 (the planner's side of the socket).
package plannertest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// networks is the annotation that a pod asks with.
const networks = "k8s.v1.cni.cncf.io/networks"

// Agent plans for the pod default/pod-a with the UID uid-1, whatever pod it is asked for.
type Agent struct {
	mu    sync.Mutex
	asked string
	nads  map[string]string
}

// Listen makes an Agent that answers on a socket until the test's end.
func Listen(t testing.TB, socket string) *Agent {
	t.Helper()
	a := &Agent{nads: map[string]string{}}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close() //nolint:errcheck // the peer has its answer, or is gone
				_ = wire.Serve(conn, conn, func(req wire.Request) wire.Response {
					return planner.Handle(context.WithoutCancel(t.Context()), req, func(*netconf.Conf) (planner.Source, error) { return a, nil }, nil)
				})
			})
		}
	})
	return a
}

// Ask changes what the pod asks for.
func (a *Agent) Ask(annotation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = annotation
}

// Network makes or changes a NetworkAttachmentDefinition of the pod's namespace.
func (a *Agent) Network(name, config string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nads[name] = config
}

// Pod implements planner.Source.
func (a *Agent) Pod(context.Context, string, string) (*plan.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &plan.Pod{Namespace: "default", Name: "pod-a", UID: "uid-1", Annotations: map[string]string{networks: a.asked}}, nil
}

// NAD implements planner.Source.
func (a *Agent) NAD(_ context.Context, ref plan.NADRef) (plan.NAD, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	config, ok := a.nads[ref.Name]
	return plan.NAD{Found: ok, Config: config}, nil
}

// Devices implements planner.Source.
func (a *Agent) Devices(context.Context, *plan.Pod) (map[string][]string, error) {
	return map[string][]string{}, nil
}

// Warnings implements planner.Source.
func (a *Agent) Warnings() []fault.Warning { return nil }
