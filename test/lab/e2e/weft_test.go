// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"strings"
	"testing"

	"github.com/weftnet/weft/test/lab"
)

// bridge is a network on each node, data one that joins the nodes.
const networks = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: bridge}
spec:
  config: '{"cniVersion":"1.0.0","type":"bridge","bridge":"lab1","ipam":{"type":"host-local","subnet":"10.55.0.0/24"}}'
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: data}
spec:
  config: '{"cniVersion":"1.0.0","type":"macvlan","master":"data","mode":"bridge","ipam":{"type":"host-local","subnet":"10.56.0.0/24"}}'
`

// A pod has what its annotation asks for, and its status says so.
func TestPodWithNetworks(t *testing.T) {
	lab.InstallWeft(t)
	cp, namespace := lab.Cluster(t), lab.Namespace(t)
	lab.Apply(t, networks, "--namespace="+namespace)
	annotations := map[string]string{"k8s.v1.cni.cncf.io/networks": "bridge, data"}
	for _, name := range []string{"one", "two"} {
		lab.Apply(t, lab.PodManifest(namespace, name, annotations, "nodeName: "+cp.Nodes()[0].Name))
	}
	for _, name := range []string{"one", "two"} {
		lab.WaitRunning(t, namespace, name)
	}
	status, err := cp.Kubectl(t.Context(), "", "get", "pod", "--namespace="+namespace, "one",
		`--output=jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{namespace + "/bridge", namespace + "/data", "net1", "net2", "10.55.0.", "10.56.0."} {
		if !strings.Contains(status, want) {
			t.Errorf("network-status lacks %s: %s", want, status)
		}
	}
	for _, link := range []string{"net1", "net2"} {
		out, err := cp.Kubectl(t.Context(), "", "exec", "--namespace="+namespace, "two", "--", "ip", "-o", "-4", "address", "show", "dev", link)
		if err != nil {
			t.Fatal(err)
		}
		address, _, _ := strings.Cut(strings.Fields(out)[3], "/")
		if _, err := cp.Kubectl(t.Context(), "", "exec", "--namespace="+namespace, "one", "--", "ping", "-c1", "-W5", "-I", link, address); err != nil {
			t.Errorf("no way by %s: %v", link, err)
		}
	}
}
