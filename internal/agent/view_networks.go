// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/informers"
)

// Networks implements debug.View.
func (v view) Networks() []debug.Network {
	used := v.uses()
	var all []debug.Network
	for _, n := range v.cluster.NADs() {
		d := network(n)
		d.Pods = len(used[n.Namespace+"/"+n.Name])
		delete(used, n.Namespace+"/"+n.Name)
		all = append(all, d)
	}
	for name, pods := range used {
		if namespace, name, ok := strings.Cut(name, "/"); ok {
			all = append(all, debug.Network{Namespace: namespace, Name: name, Pods: len(pods), Gone: true})
		}
	}
	slices.SortFunc(all, func(a, b debug.Network) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// uses maps each network to the UIDs of the pods that have an attachment to it.
func (v view) uses() map[string]map[string]bool {
	used := map[string]map[string]bool{}
	for _, s := range v.observer.Sandboxes() {
		for i := range s.Attachments {
			a := &s.Attachments[i]
			if a.Undone {
				continue
			}
			if used[a.Network] == nil {
				used[a.Network] = map[string]bool{}
			}
			used[a.Network][s.PodUID] = true
		}
	}
	return used
}

func network(n *informers.NAD) debug.Network {
	d := debug.Network{
		Namespace: n.Namespace, Name: n.Name,
		Resource: strings.TrimSpace(n.Annotations[plan.ResourceNameAnnotation]), Problem: n.Broken,
	}
	var o networkOutline
	switch {
	case n.Broken != "":
		return d
	case n.Outline != "":
		_ = json.Unmarshal([]byte(n.Outline), &o) // this process wrote it
	case n.Config != "": // else it is in a file, or of more than an outline has room for
		o = outlineOf(n.Config)
	}
	d.Types, d.IPAM, d.Problem = o.Types, o.IPAM, o.Problem
	return d
}

// networkOutline is what is shown of a configuration, in the form in which it outlives one that is
// not kept.
type networkOutline struct {
	Types   []string `json:"t,omitempty"`
	IPAM    []string `json:"i,omitempty"`
	Problem string   `json:"p,omitempty"`
}

func outlineOf(config string) (o networkOutline) {
	conf, err := netconf.ParseNetwork([]byte(config), "")
	if err != nil && !errors.Is(err, netconf.ErrNoPlugins) {
		o.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	for _, p := range conf.Plugins {
		o.Types = append(o.Types, p.Type)
		if p.IPAM != "" {
			o.IPAM = append(o.IPAM, p.IPAM)
		}
	}
	return o
}

// maxProblem bounds the fault of a configuration that is not kept, in bytes.
const maxProblem = 512

// outline implements informers.Config.Outline.
func outline(config string) string {
	o := outlineOf(config)
	o.Problem = fault.Bound(o.Problem, maxProblem)
	b, err := json.Marshal(o)
	if err != nil {
		return "" // texts alone: cannot fail
	}
	return string(b)
}

func (a *Agent) confPath() string { return filepath.Join(a.cfg.CNI.ConfDir, a.cfg.CNI.ConfName) }

// conf is the published configuration as a runtime hands it to the plugin.
func (v view) conf() (*netconf.Conf, error) {
	b, err := os.ReadFile(v.confPath())
	if err != nil {
		return nil, v.noConf(fmt.Errorf("%w: %w", errNotPublished, err))
	}
	plugin, err := onlyPlugin(b)
	if err != nil {
		return nil, v.noConf(err)
	}
	plugin.Set("name", netconf.String(confpub.Name))
	plugin.Set("cniVersion", netconf.String(confpub.Version))
	conf, _, err := netconf.Parse(plugin.Bytes())
	return conf, err
}

// onlyPlugin is the one plugin of a published configuration.
func onlyPlugin(b []byte) (*netconf.Object, error) {
	list, err := netconf.ParseObject(b)
	if err != nil {
		return nil, err
	}
	raw, _ := list.Get("plugins")
	plugins, err := netconf.Elements(raw)
	if err != nil || len(plugins) != 1 {
		return nil, errNotPublished
	}
	return netconf.ParseObject(plugins[0])
}
