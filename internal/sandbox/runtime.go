// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// Paths inside the sandbox.
const (
	stateDir    = "/var/lib/weft"
	clusterFile = "/run/weft-cni/10-pods.conflist"
	cacheDir    = "/var/lib/cni"
)

// annotationsCapability carries a pod's annotations to plugins that declare it; containerd
// and CRI-O know it.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// runtime makes the calls of a container runtime.
type runtime struct {
	cni      *libcni.CNIConfig
	loopback *libcni.NetworkConfigList
	network  *libcni.NetworkConfigList
	// cluster is the pod network that weft-cni delegates to.
	cluster netconf.Network
}

// newRuntime reads or makes the pod network, and publishes the conf that the agent would.
func newRuntime(dir string, binDirs []string, stderr io.Writer) (*runtime, error) {
	file, cluster, err := podNetwork(dir)
	if err != nil {
		return nil, err
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "weft",
		"plugins": []any{map[string]any{
			"type": "weft-cni", "manifests": dir, "confDir": dir, "binDir": binDirs[0],
			"clusterNetwork": file, "stateDir": stateDir,
			"capabilities": map[string]bool{annotationsCapability: true},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode conf: %w", err)
	}
	network, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, fmt.Errorf("read conf: %w", err)
	}
	loopback, err := libcni.NetworkConfFromBytes([]byte(
		`{"cniVersion":"1.0.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
	if err != nil {
		return nil, fmt.Errorf("read conf: %w", err)
	}
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}, PluginDecoder: version.PluginDecoder{}}
	return &runtime{
		cni: libcni.NewCNIConfigWithCacheDir(binDirs, cacheDir, exec), loopback: loopback, network: network, cluster: cluster,
	}, nil
}

// podNetwork is the first *.conf or *.conflist of dir, else a bridge with a subnet of its own.
func podNetwork(dir string) (file string, n netconf.Network, err error) {
	var files []string
	for _, pattern := range []string{"*.conf", "*.conflist"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", n, fmt.Errorf("find pod network: %w", err)
		}
		files = append(files, found...)
	}
	if len(files) > 0 {
		file = slices.Min(files)
	} else if file, err = clusterFile, writePodNetwork(clusterFile); err != nil {
		return "", n, fmt.Errorf("write pod network: %w", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", n, fmt.Errorf("read pod network: %w", err)
	}
	if n, err = netconf.ParseNetwork(data, file); err != nil {
		return "", n, fmt.Errorf("read pod network %s: %w", file, err)
	}
	return file, n, nil
}

func writePodNetwork(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "`+clusterBridge+`", "isGateway": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]],
      "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    }
  }]
}`), 0o644)
}

// sandboxed is one pod as the runtime knows it.
type sandboxed struct {
	id    string // container ID
	netns string // path
	pod   manifests.Pod
}

// newSandboxed gives a pod a container ID that is the same in every run.
func newSandboxed(pod manifests.Pod) sandboxed {
	sum := sha256.Sum256([]byte(pod.Namespace + "/" + pod.Name))
	s := sandboxed{id: hex.EncodeToString(sum[:]), pod: pod}
	name := pod.Namespace + "." + pod.Name
	if !regexp.MustCompile(`^[a-z0-9][-.a-z0-9]{0,200}$`).MatchString(name) {
		name = s.id
	}
	s.netns = filepath.Join(netnsDir, name)
	return s
}

// call is what a runtime tells about a pod for one of its interfaces.
func (s sandboxed) call(ifName string) *libcni.RuntimeConf {
	annotations := s.pod.Annotations
	if annotations == nil {
		annotations = map[string]string{}
	}
	uid := s.pod.UID
	if uid == "" { // an API server would have given one
		uid = fmt.Sprintf("%s-%s-%s-%s-%s", s.id[:8], s.id[8:12], s.id[12:16], s.id[16:20], s.id[20:32])
	}
	return &libcni.RuntimeConf{
		ContainerID: s.id, NetNS: s.netns, IfName: ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", s.pod.Namespace},
			{"K8S_POD_NAME", s.pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", s.id},
			{"K8S_POD_UID", uid},
		},
		CapabilityArgs: map[string]any{annotationsCapability: annotations},
	}
}

// add attaches a pod: its loopback first, then everything else in one call.
func (r *runtime) add(ctx context.Context, s sandboxed) error {
	if _, err := r.cni.AddNetworkList(ctx, r.loopback, s.call("lo")); err != nil {
		return fmt.Errorf("add loopback: %w", err)
	}
	_, err := r.cni.AddNetworkList(ctx, r.network, s.call("eth0"))
	return explain(err)
}

func (r *runtime) check(ctx context.Context, s sandboxed) error {
	if err := r.cni.CheckNetworkList(ctx, r.network, s.call("eth0")); err != nil {
		return fmt.Errorf("check: %w", explain(err))
	}
	return nil
}

// del detaches a pod. Like a runtime it is called for pods whose ADD failed, too.
func (r *runtime) del(ctx context.Context, s sandboxed) error {
	return errors.Join(
		explain(r.cni.DelNetworkList(ctx, r.network, s.call("eth0"))),
		r.cni.DelNetworkList(ctx, r.loopback, s.call("lo")),
	)
}

// gc tells weft-cni which pods there are.
func (r *runtime) gc(ctx context.Context, pods []sandboxed) error {
	valid := []types.GCAttachment{}
	for _, s := range pods {
		valid = append(valid, types.GCAttachment{ContainerID: s.id, IfName: "eth0"})
	}
	return explain(r.cni.GCNetworkList(ctx, r.network, &libcni.GCArgs{ValidAttachments: valid}))
}

func (r *runtime) status(ctx context.Context) error {
	return explain(r.cni.GetStatusNetworkList(ctx, r.network))
}

// explain shows a plugin's error with its code, which users look up.
func explain(err error) error {
	if e, ok := errors.AsType[*types.Error](err); ok && e.Code != 0 {
		return fmt.Errorf("%w (CNI error code %d)", err, e.Code)
	}
	return err
}
