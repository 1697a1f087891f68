// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
)

// pauseImage is what containerd runs to hold a pod's namespaces.
const pauseImage = "localhost/lab/pause:1"

// files are the configuration of a node's processes, by path.
func (n *Node) files() (map[string][]byte, error) {
	tls, err := n.clientTLS()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := kubeconfig(n.cp.insideURL(), tls)
	if err != nil {
		return nil, err
	}
	serving, err := n.cp.authority.issue(subject{name: n.Name, hosts: []string{n.Name, n.Address, "127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	kubelet, err := n.kubeletConfig()
	if err != nil {
		return nil, err
	}
	network, err := n.primaryNetwork()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		nodeEtc + "/ca.crt":             n.cp.authority.pem,
		nodeEtc + "/kubelet.kubeconfig": kubeconfig,
		nodeEtc + "/kubelet.crt":        serving.cert,
		nodeEtc + "/kubelet.key":        serving.key,
		nodeEtc + "/kubelet.yaml":       kubelet,
		nodeEtc + "/containerd.toml":    []byte(containerdConfig()),
		PrimaryConf:                     network,
		// A script, so that "kubectl" works on a node as well.
		"/root/.bashrc": []byte("export KUBECONFIG=" + nodeEtc + "/kubelet.kubeconfig\n"),
	}, nil
}

// containerdConfig has NRI on. restrict_oom_score_adj: without CAP_SYS_RESOURCE no process may
// be made less likely to be killed, and runc would fail.
func containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = %q
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "/run/nri/nri.sock"
`, runtimeSocket, pauseImage)
}

// kubeletConfig evicts nobody, whatever the machine has left: tests share it with others.
func (n *Node) kubeletConfig() ([]byte, error) {
	type object = map[string]any
	return json.Marshal(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false}, "webhook": object{"enabled": false},
			"x509": object{"clientCAFile": nodeEtc + "/ca.crt"},
		},
		"authorization":            object{"mode": "AlwaysAllow"},
		"tlsCertFile":              nodeEtc + "/kubelet.crt",
		"tlsPrivateKeyFile":        nodeEtc + "/kubelet.key",
		"containerRuntimeEndpoint": "unix://" + runtimeSocket,
		"cgroupDriver":             "cgroupfs", "cgroupRoot": "/" + n.cgroup, "failCgroupV1": false,
		"enforceNodeAllocatable": []string{}, "evictionHard": object{}, "failSwapOn": false,
		"localStorageCapacityIsolation": false, "imageGCHighThresholdPercent": 100,
		"resolvConf": "", "clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local",
		"staticPodPath": "/etc/kubernetes/manifests", "maxPods": 400,
		"nodeStatusUpdateFrequency": "5s", "syncFrequency": "5s",
	})
}

// PrimaryConf is the path of the primary network's conf on every node.
const PrimaryConf = "/etc/cni/net.d/10-lab.conflist"

// primaryNetwork is the network that every pod has: a bridge, whose subnet the lab routes.
func (n *Node) primaryNetwork() ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0", "name": "lab", "plugins": []object{{
			"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipMasq": false,
			"ipam": object{
				"type": "host-local", "ranges": [][]object{{{"subnet": n.Subnet}}},
				"routes": []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
}
