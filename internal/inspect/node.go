// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// node plays the node for the plan of one pod: what the files hold is answered from them,
// what only a node has is answered from this machine where it looks like one, and
// otherwise by a stand-in that is remembered in unseen.
type node struct {
	w      *World
	pod    manifests.Pod
	file   string // that answered the cluster network's need; "" = a stand-in
	unseen []string
}

func (n *node) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(n.unseen, text) {
		n.unseen = append(n.unseen, text)
	}
}

// Pod is the pod that is planned. With the three methods below a node is a planner.Source.
func (n *node) Pod(context.Context, string, string) (*plan.Pod, error) { return &n.pod.Pod, nil }

// NAD is one of the files', or of the API server.
func (n *node) NAD(ctx context.Context, ref plan.NADRef) (plan.NAD, error) {
	return n.w.nad(ctx, ref)
}

// Devices makes up the devices that the pod's limits promise; with claims, as many as could
// be asked for.
func (n *node) Devices(context.Context, *plan.Pod) (map[string][]string, error) {
	devices := map[string][]string{}
	give := func(resource string, count int) {
		for i := range min(count, plan.MaxNetworks) {
			devices[resource] = append(devices[resource], fmt.Sprintf("<%s %03d>", resource, i+1))
		}
	}
	for resource, count := range n.pod.Limits {
		give(resource, count-len(devices[resource]))
	}
	if n.pod.Claims {
		for _, nad := range n.w.Set.NADs {
			if resource := strings.TrimSpace(nad.ResourceName); resource != "" && devices[resource] == nil {
				give(resource, plan.MaxNetworks)
			}
		}
		n.note("the devices of the pod's resource claims: it is taken that there are enough")
	}
	n.note("which devices the kubelet gives the pod: <resource number> stands for each")
	return devices, nil
}

// Warnings has none: problems of the files are told once, not with every pod.
func (n *node) Warnings() []fault.Warning { return nil }

// read answers a need for a file.
func (n *node) read(need plan.Need) plan.File {
	kind, name, _ := strings.Cut(string(need), "/")
	conf := *n.w.conf
	var f plan.File
	switch kind {
	case "confDir":
		f = n.inConfDir(&conf, need, name)
	case "path":
		f = n.atPath(&conf, need)
	default:
		if n.file == "" {
			n.note("the directory of the auxiliary chain %s beside the cluster network's file", name)
			return plan.File{Need: need}
		}
		return hostfiles.Read(&conf, need, n.file)
	}
	if f.Found && f.Path != standInPath {
		if _, given := n.w.subjects["file "+f.Path]; !given {
			n.w.subjects["file "+f.Path] = subject{file: f.Path, text: string(f.Data)}
		}
	}
	cluster := n.w.conf.ClusterNetwork
	if f.Found && f.Path != standInPath && (name == cluster || strings.HasPrefix(cluster, "/") && string(need) == "path/"+cluster) {
		n.file = f.Path
	}
	return f
}

// inConfDir looks among the given files, then in confDir.
func (n *node) inConfDir(conf *netconf.Conf, need plan.Need, name string) plan.File {
	if i := slices.IndexFunc(n.w.networks, func(c confFile) bool { return c.name == name }); i >= 0 {
		conf.ConfDir = filepath.Dir(n.w.networks[i].file)
		return hostfiles.Read(conf, need, "")
	}
	if n.w.live == nil && isDir(conf.ConfDir) {
		return hostfiles.Read(conf, need, "")
	}
	n.note("confDir %s: it is taken that it has the configuration %s", conf.ConfDir, name)
	return standInFile(need, name)
}

// atPath looks for a given file of the same name, then at the path itself.
func (n *node) atPath(conf *netconf.Conf, need plan.Need) plan.File {
	path := filepath.Clean(strings.TrimPrefix(string(need), "path/"))
	for _, c := range n.w.networks {
		given, err := filepath.Abs(c.file)
		if err == nil && filepath.Base(given) == filepath.Base(path) {
			conf.ClusterNetwork = given
			f := hostfiles.Read(conf, plan.Need("path/"+given), "")
			f.Need, f.Path = need, c.file // as it was given
			return f
		}
	}
	if _, err := os.Stat(path); n.w.live == nil && (err == nil || isDir(filepath.Dir(path))) {
		return hostfiles.Read(conf, need, "")
	}
	n.note("the file %s: it is taken that it holds a configuration", path)
	return standInFile(need, unseen)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

const standInPath = "(" + unseen + ")"

// standInFile is a configuration of which nothing is known: it takes every capability.
func standInFile(need plan.Need, name string) plan.File {
	data := fmt.Appendf(nil, `{"name":%s,"type":%q,"capabilities":{"portMappings":true,"bandwidth":true,"ips":true,"mac":true,"infinibandGUID":true,"deviceID":true}}`,
		netconf.String(name), unseen)
	return plan.File{Need: need, Found: true, Path: standInPath, Data: data}
}
