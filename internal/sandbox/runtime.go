// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

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
	// networks are those that weft-cni may delegate to besides NADs.
	networks []netconf.Network
	faults   []error // of the directory's configurations
}

// newRuntime reads or makes the pod network, and publishes Weft's configuration: the
// directory's own, else the one that the agent would.
func newRuntime(dir string, binDirs []string, stderr io.Writer) (*runtime, error) {
	files, err := findFiles(dir)
	if err != nil {
		return nil, err
	}
	if files.pods == "" {
		conf := confFile{clusterFile, podNetwork()}
		if err := writeConf(conf); err != nil {
			return nil, fmt.Errorf("write pod network: %w", err)
		}
		files.all = append(files.all, conf)
	}
	network, err := files.runtimeConf(binDirs[0])
	if err != nil {
		return nil, err
	}
	loopback, err := libcni.NetworkConfFromBytes([]byte(
		`{"cniVersion":"1.0.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
	if err != nil {
		return nil, fmt.Errorf("read conf: %w", err)
	}
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}, PluginDecoder: version.PluginDecoder{}}
	return &runtime{
		cni: libcni.NewCNIConfigWithCacheDir(binDirs, cacheDir, exec), loopback: loopback, network: network,
		networks: files.networks(network), faults: files.faults,
	}, nil
}

func writeConf(f confFile) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(f.path, f.data, 0o644)
}

// podNetwork is a bridge with subnets of its own.
func podNetwork() []byte {
	return []byte(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "` + clusterBridge + `", "isGateway": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]],
      "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    }
  }]
}`)
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
