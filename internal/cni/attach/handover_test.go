// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// claimed is an agent's source with one pod, which asks for no network and claimed a device.
type claimed struct {
	r   *rig
	err error
	got *[]string // what the delegates had been called for when the hand-over was asked for
}

func (c claimed) Pod(_ context.Context, namespace, name string) (*plan.Pod, error) {
	return &plan.Pod{Namespace: namespace, Name: name, UID: "uid-1"}, nil
}

func (c claimed) NAD(context.Context, plan.NADRef) (plan.NAD, error) { return plan.NAD{}, nil }

func (c claimed) Devices(context.Context, *plan.Pod) (map[string][]string, error) {
	return map[string][]string{}, nil
}

func (c claimed) Warnings() []fault.Warning { return nil }

func (c claimed) Prepared(string) ([]string, error) { return []string{"sriov0"}, nil }

func (c claimed) Handover(_ context.Context, req wire.HandoverRequest) error {
	*c.got = append(c.r.calls(), req.PodUID, req.Sandbox.ContainerID)
	*c.got = append(*c.got, req.IfNames...)
	return c.err
}

// unclaimed is the same without the device.
type unclaimed struct{ claimed }

func (unclaimed) Prepared(string) []string { return nil }

// serveAgent answers as an agent does, one connection after the other.
func serveAgent(l net.Listener, src planner.Source) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = wire.Serve(conn, conn, func(req wire.Request) wire.Response {
			return planner.Handle(context.Background(), req, func(*netconf.Conf) (planner.Source, error) { return src, nil }, nil)
		})
		conn.Close()
	}
}

// TestHandover: claimed devices are asked for after the delegates; without them the ADD fails, and
// nothing of it is left.
func TestHandover(t *testing.T) {
	r := newRig(t)
	socket := filepath.Join(r.dir, "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var got []string
	src := &claimed{r: r, got: &got}
	go serveAgent(listener, src)
	delete(r.conf, "manifests")
	r.conf["agentSocket"] = socket
	r.ok("ADD")
	if want := []string{"pa ADD eth0", "uid-1", "cid1", "eth0"}; !slices.Equal(got, want) {
		t.Errorf("the hand-over saw %v, not %v", got, want)
	}
	r.ok("DEL")
	r.calls()

	src.err = fault.New(fault.Config, "device d", "", "podIfName \"eth0\" is taken")
	r.fails(7, "podIfName", "ADD")
	r.wantCalls("pa DEL eth0")
	r.wantClean()
}
