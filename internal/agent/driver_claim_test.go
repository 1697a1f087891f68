// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

// inMemory is a machine of a test.
type inMemory struct{ *kerneltest.Machine }

func (inMemory) Close() error { return nil }

const pf kernel.PCIAddr = "0000:03:00.0"

const (
	podNetns   = "/run/netns/pod"
	driverName = "networkdriver.cilium.io"
)

const claimObjects = `
kind: Pod
metadata: {name: web, uid: u1}
spec: {nodeName: n1, resourceClaims: [{name: net, resourceClaimName: net}]}
---
kind: Pod
metadata: {name: second, uid: u2}
spec: {nodeName: n1, resourceClaims: [{name: net, resourceClaimName: net}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: net, uid: c1}
spec: {}
status:
  reservedFor: [{resource: pods, name: web, uid: u1}]
  allocation:
    devices:
      results: [{request: net, driver: networkdriver.cilium.io, pool: n1/fast, device: %s}]
      config: [{source: FromClaim, requests: [net], opaque: {driver: networkdriver.cilium.io, parameters: {podIfName: net9, vlan: 7}}}]
---
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverNodeConfig
metadata: {name: n1}
spec:
  deviceManagerConfigs: {sriov: {enabled: true, ifaces: [{ifName: ens1f0, vfCount: 2}]}}
  pools: [{name: fast, filter: {deviceManagers: [sr-iov]}}]
`

// TestClaim: a claim's whole way through an agent: VFs are made as the configuration says, the kubelet
// has one prepared, the planner reserves its name and hands it over, a second pod of the claim is told
// so, and the kubelet takes it back.
func TestClaim(t *testing.T) {
	own, err := kernel.OpenNetns("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := own.SetUp("lo", true); err != nil { // the API server is there
		t.Fatal(err)
	}
	dir, kubelet, server := t.TempDir(), kubelettest.Start(t), kubetest.New(t)
	host := kerneltest.NewMachine()
	host.AddPF(pf, "ens1f0", 4)
	host.AddNamespace(podNetns)
	device := strings.NewReplacer(":", "-", ".", "-").Replace(string(kerneltest.VFAddr(pf, 0)))
	server.Apply(fmt.Sprintf(claimObjects, device))
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	// A node that had a configuration once does not wait for the server's version, which this one lacks.
	if err := os.WriteFile(filepath.Join(state, "networkdriver.json"), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse("agent.yaml", fmt.Appendf(nil, `
nodeName: n1
kubeconfig: %[2]s
stateDir: %[1]s/state
socketDir: %[1]s/run
metricsAddress: ""
cni: {confDir: %[1]s, binDir: %[1]s, kubeletDir: %[1]s}
networkDriver: {enabled: true, kubeletDir: %[3]s, nriSocket: %[1]s/nri.sock, sysfs: %[1]s}
`, dir, server.Kubeconfig(nil), kubelet.Dir()), config.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(cfg, "v0", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.OnMachine(inMemory{host})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	kubelet.WaitFor(driverName)
	eventually(t, "two VFs", func() bool { return len(driverView{a.driver}.Devices()) == 2 })
	before := host.Snapshot()
	prepareClaim(t, kubelet)
	handOver(t, a, host, server)

	if _, err := kubelet.Unprepare(t.Context(), driverName, &drapb.Claim{Namespace: "default", Name: "net", Uid: "c1"}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, host.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
	if left := (driverView{a.driver}).Claims(); len(left) != 0 {
		t.Errorf("claims that are left: %+v", left)
	}
}

func prepareClaim(t *testing.T, kubelet *kubelettest.Kubelet) {
	t.Helper()
	answers, err := kubelet.Prepare(t.Context(), driverName, &drapb.Claim{Namespace: "default", Name: "net", Uid: "c1"})
	if err != nil || answers["c1"].GetError() != "" {
		t.Fatalf("prepare: %v %v", answers["c1"], err)
	}
}

// handOver has the planner see to the devices of the pod, and refuse the second one.
func handOver(t *testing.T, a *Agent, machine *kerneltest.Machine, server *kubetest.Server) {
	t.Helper()
	<-a.cluster.Synced()
	src, err := a.plannerSource(t.Context(), wire.Request{Verb: wire.VerbPlan})
	if err != nil {
		t.Fatal(err)
	}
	s := src.(source)
	if names, err := s.Prepared("u1"); err != nil || !cmp.Equal(names, []string{"net9"}) {
		t.Errorf("prepared: %q %v", names, err)
	}
	if _, err := s.Prepared("u2"); err == nil || !strings.Contains(err.Error(), "claim default/net is prepared for the pod of UID u1") {
		t.Errorf("the second pod: %v", err)
	}
	// A pod that the cache does not know yet is waited for: others' claims are no reason to fail its ADD.
	late := time.AfterFunc(seenWithin/4, func() {
		server.Apply(`
kind: Pod
metadata: {name: third, uid: u3}
spec: {nodeName: n1}
`)
	})
	defer late.Stop()
	if names, err := s.Prepared("u3"); err != nil || len(names) > 0 {
		t.Errorf("a pod that is seen late: %q %v", names, err)
	}
	drawn, name := a.own("u1")
	want := map[string][]string{driverName + "/fast": {string(kerneltest.VFAddr(pf, 0))}}
	if d := cmp.Diff(want, drawn); d != "" || name != driverName {
		t.Errorf("devices of %s for networks (-want +got):\n%s", name, d)
	}
	req := wire.HandoverRequest{Sandbox: plan.Sandbox{ContainerID: "cid", Netns: podNetns}, PodNamespace: "default", PodName: "web", PodUID: "u1", IfNames: []string{"eth0"}}
	if err := s.Handover(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if link, err := machine.Link(kernel.Namespace{Path: podNetns}, "net9"); err != nil || !link.Up {
		t.Errorf("in the pod: %+v %v", link, err)
	}
	claims := (driverView{a.driver}).Claims()
	if len(claims) != 1 || claims[0].Pod != "web" || len(claims[0].Devices) != 1 || claims[0].Devices[0].VLAN != 7 {
		t.Errorf("claims: %+v", claims)
	}
	if used, what := a.driver.inUse(kerneltest.VFAddr(pf, 0)); !used || what != "claim default/net" {
		t.Errorf("in use: %t %q", used, what)
	}
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
