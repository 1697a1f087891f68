// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// busyKubelet is a pod-resources socket that turns the first calls away.
type busyKubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	mu    sync.Mutex
	busy  int
	asked []string
}

// Get gives every pod the same two devices.
func (k *busyKubelet) Get(_ context.Context, req *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, req.GetPodNamespace()+"/"+req.GetPodName())
	if k.busy--; k.busy >= 0 {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	devices := []*podresourcesv1.ContainerDevices{{ResourceName: "ex.com/vf", DeviceIds: []string{"0000:03:02.1", "0000:03:02.0"}}}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: &podresourcesv1.PodResources{
		Namespace: req.GetPodNamespace(), Name: req.GetPodName(), Containers: []*podresourcesv1.ContainerResources{{Name: "c", Devices: devices}},
	}}, nil
}

// TestDevicesOfTheKubelet (B33): a kubelet that answers ResourceExhausted twice, then data, costs a
// pod nothing; each network is given its device; a pod whose networks draw from nothing costs
// the kubelet nothing.
func TestDevicesOfTheKubelet(t *testing.T) {
	r := newRig(t)
	k := &busyKubelet{busy: 2}
	socket := filepath.Join(r.dir, "kubelet", "pod-resources", "kubelet.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, k)
	var done sync.WaitGroup
	done.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Stop(); done.Wait() })

	vf := r.json(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": "vf", "annotations": map[string]any{"k8s.v1.cni.cncf.io/resourceName": "ex.com/vf"}},
		"spec":     map[string]any{"config": r.json(r.delegate("pc", "10.3.0.7/24", "cniVersion", "1.0.0"))},
	})
	r.server.Apply(vf + "\n---\n" + r.pod("plain", "neta") + "\n---\n" + r.pod("web", "vf,vf") + "\n---\n" + r.pod("many", "vf,vf,vf"))
	r.startReady()
	r.add("plain", "neta")
	if len(k.asked) != 0 {
		t.Errorf("asked for a pod without devices: %q", k.asked)
	}
	r.add("web", "vf,vf")
	if d := cmp.Diff([]string{"default/web", "default/web", "default/web"}, k.asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
	for link, device := range map[string]string{"net1": "0000:03:02.0", "net2": "0000:03:02.1"} {
		found := false
		for line := range strings.Lines(r.read(r.log)) {
			found = found || strings.Contains(line, `"ifName":"`+link+`"`) && strings.Contains(line, `\"deviceID\":\"`+device+`\"`)
		}
		if !found {
			t.Errorf("%s is not given %s:\n%s", link, device, r.read(r.log))
		}
	}
	if code, out := r.cni("ADD", "many", asks("vf,vf,vf")); code == 0 || !strings.Contains(out, "has 2 for 3 networks") {
		t.Errorf("too few devices: %d %s", code, out)
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `weft_device_lookup_duration_seconds_count{method="get",outcome="exhausted"} 2`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	output, err := r.debug().Explain(t.Context(), "default", "web")
	if err != nil || !strings.Contains(r.json(output), "pod-resources socket (Get)") {
		t.Errorf("explain does not say who was asked: %v %s", err, r.json(output))
	}
	for _, pod := range []string{"web", "plain", "many"} {
		r.del(pod)
	}
	r.wantClean()
}
