// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/kube/rest"
)

// driverAgent is an agent with the network driver; *debug.Client is one.
type driverAgent interface {
	Devices(ctx context.Context) (*debug.DevicesAnswer, error)
	Claims(ctx context.Context, namespace string) (*debug.ClaimsAnswer, error)
}

// NodeDevices is what get devices shows on a node.
type NodeDevices struct {
	debug.DevicesAnswer
	Unseen []string `json:"unseen"`
}

// NodeClaims is what get claims shows on a node.
type NodeClaims struct {
	debug.ClaimsAnswer
	Unseen []string `json:"unseen"`
}

// AgentDevices asks an agent for the network devices of its node.
func AgentDevices(ctx context.Context, a driverAgent) (*NodeDevices, error) {
	answer, err := a.Devices(ctx)
	if err != nil {
		return nil, err
	}
	return &NodeDevices{*answer, leftOut(answer.LeftOut, "device")}, nil
}

// AgentClaims asks an agent for the prepared claims of a namespace, "" = all.
func AgentClaims(ctx context.Context, a driverAgent, namespace string) (*NodeClaims, error) {
	answer, err := a.Claims(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &NodeClaims{*answer, leftOut(answer.LeftOut, "claim")}, nil
}

// WriteTable prints the devices, a line for each use.
func (l *NodeDevices) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAME", "MANAGER", "PRESENT", "POOL", "CLAIM", "POD"}}
	for _, d := range l.Devices {
		if len(d.Uses) == 0 {
			rows = append(rows, []string{d.Name, d.Manager, yes(d.Present), "-", "-", "-"})
		}
		for _, u := range d.Uses {
			rows = append(rows, []string{d.Name, d.Manager, yes(d.Present), u.Pool, u.Namespace + "/" + u.Claim, podOf(u.Namespace, u.Pod, u.PodUID)})
		}
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

func podOf(namespace, name, uid string) string {
	switch {
	case name != "":
		return namespace + "/" + name
	case uid != "":
		return "UID " + uid + ", which the agent does not know"
	}
	return "-"
}

// WriteTable prints the claims, a line a device.
func (l *NodeClaims) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "POD", "POOL", "DEVICE", "INTERFACE", "VLAN", "PROBLEM"}}
	for _, c := range l.Claims {
		for _, d := range c.Devices {
			vlan := "-"
			if d.VLAN != 0 {
				vlan = strconv.Itoa(int(d.VLAN))
			}
			rows = append(rows, []string{
				c.Namespace, c.Name, podOf(c.Namespace, c.Pod, c.PodUID), d.Pool, d.Device, cmp.Or(d.Interface, "-"), vlan, oneLine(c.Fault),
			})
		}
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

// DeviceList is what get devices shows of an API server.
type DeviceList struct {
	Devices []OfferedDevice `json:"devices"`
	Unseen  []string        `json:"unseen"`
}

// OfferedDevice is a device in a ResourceSlice of the network driver.
type OfferedDevice struct {
	Node    string `json:"node"`
	Pool    string `json:"pool"` // as the configuration names it
	Name    string `json:"name"`
	Manager string `json:"manager"`
	Driver  string `json:"driver"`
	// Claim is who it is allocated to: namespace/name; "" when nobody.
	Claim string `json:"claim,omitempty"`
}

// ClaimList is what get claims shows of an API server.
type ClaimList struct {
	Claims []AllocatedClaim `json:"claims"`
	Unseen []string         `json:"unseen"`
}

// AllocatedClaim is a claim with a device of the network driver.
type AllocatedClaim struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Pods      []string          `json:"pods"` // that it is reserved for
	Devices   []AllocatedDevice `json:"devices"`
}

// AllocatedDevice is one device of a claim.
type AllocatedDevice struct {
	Node      string `json:"node"`
	Pool      string `json:"pool"`
	Device    string `json:"device"`
	Ready     bool   `json:"ready"` // as the claim's status says
	Interface string `json:"interface,omitempty"`
}

// key names a device as the allocator does.
func key(driver, pool, name string) string { return driver + "\x00" + pool + "\x00" + name }

// Devices lists the devices that slices of the network driver offer: those whose pool is one of a node,
// under the attribute that names the pool.
func Devices(ctx context.Context, api lister) (*DeviceList, error) {
	slicesOf, err := api.List(ctx, rest.ResourceSlices(), "")
	if err != nil {
		return nil, err
	}
	claims, err := api.List(ctx, rest.ResourceClaims(), "")
	if err != nil {
		return nil, err
	}
	taken := map[string]string{}
	for _, o := range claims {
		for _, r := range results(o) {
			taken[key(r.Driver, r.Pool, r.Device)] = o.Meta.Namespace + "/" + o.Meta.Name
		}
	}
	list := &DeviceList{Devices: []OfferedDevice{}, Unseen: []string{"devices that are not offered, and what they are prepared for: the node's agent knows"}}
	for _, o := range slicesOf {
		var s struct {
			Spec struct {
				NodeName string
				Driver   string
				Pool     struct{ Name string }
				Devices  []devices.Device
			}
		}
		if json.Unmarshal(o.Raw, &s) != nil {
			continue // the API server's own
		}
		for _, d := range s.Spec.Devices {
			pool, manager := attribute(d, "pool"), attribute(d, "deviceManager")
			if pool == "" || manager == "" {
				continue // another driver's
			}
			list.Devices = append(list.Devices, OfferedDevice{
				Node: s.Spec.NodeName, Pool: pool, Name: d.Name, Manager: manager, Driver: s.Spec.Driver,
				Claim: taken[key(s.Spec.Driver, s.Spec.Pool.Name, d.Name)],
			})
		}
	}
	slices.SortFunc(list.Devices, func(a, b OfferedDevice) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

func attribute(d devices.Device, name string) string {
	if v := d.Attributes[name].String; v != nil {
		return *v
	}
	return ""
}

// results are the devices that a claim has.
func results(o rest.Object) []devices.Result {
	var c devices.Claim
	if json.Unmarshal(o.Raw, &c) != nil || c.Status.Allocation == nil {
		return nil
	}
	return c.Status.Allocation.Devices.Results
}

// claimStatus is the part of a claim's status that says who has it, and what was prepared.
type claimStatus struct {
	Status struct {
		ReservedFor []struct{ Resource, Name string }
		Devices     []preparedDevice
	}
}

type preparedDevice struct {
	Driver, Pool, Device string
	Conditions           []struct{ Type, Status string }
	NetworkData          *struct{ InterfaceName string }
}

// Claims lists the claims of a namespace ("" = all) that have a device of a network driver's: of a pool
// that is <node>/<pool>, or one that its status shows to be prepared by a network driver.
func Claims(ctx context.Context, api lister, namespace string) (*ClaimList, error) {
	objects, err := api.List(ctx, rest.ResourceClaims(), namespace)
	if err != nil {
		return nil, err
	}
	list := &ClaimList{Claims: []AllocatedClaim{}, Unseen: []string{"whether the devices are in their pods: the node's agent knows"}}
	for _, o := range objects {
		var c claimStatus
		if json.Unmarshal(o.Raw, &c) != nil {
			continue // the API server's own
		}
		a := AllocatedClaim{Namespace: o.Meta.Namespace, Name: o.Meta.Name, Pods: []string{}, Devices: []AllocatedDevice{}}
		for _, r := range c.Status.ReservedFor {
			if r.Resource == "pods" {
				a.Pods = append(a.Pods, r.Name)
			}
		}
		for _, r := range results(o) {
			if d, ok := allocated(r, c.Status.Devices); ok {
				a.Devices = append(a.Devices, d)
			}
		}
		if len(a.Devices) > 0 {
			list.Claims = append(list.Claims, a)
		}
	}
	return list, nil
}

func allocated(r devices.Result, status []preparedDevice) (AllocatedDevice, bool) {
	node, pool, ok := strings.Cut(r.Pool, "/")
	d := AllocatedDevice{Node: node, Pool: pool, Device: r.Device}
	ours := ok && r.Driver == v2alpha1.DefaultDriverName
	for _, s := range status {
		if s.Driver != r.Driver || s.Pool != r.Pool || s.Device != r.Device {
			continue
		}
		for _, c := range s.Conditions {
			d.Ready = d.Ready || c.Type == "Ready" && c.Status == "True"
		}
		if s.NetworkData != nil {
			d.Interface, ours = s.NetworkData.InterfaceName, ours || ok
		}
	}
	return d, ours
}

// WriteTable prints the devices.
func (l *DeviceList) WriteTable(w io.Writer) error {
	rows := [][]string{{"NODE", "POOL", "NAME", "MANAGER", "CLAIM"}}
	for _, d := range l.Devices {
		rows = append(rows, []string{d.Node, d.Pool, d.Name, d.Manager, cmp.Or(d.Claim, "-")})
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

// WriteTable prints the claims, a line a device.
func (l *ClaimList) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "PODS", "NODE", "POOL", "DEVICE", "READY", "INTERFACE"}}
	for _, c := range l.Claims {
		for _, d := range c.Devices {
			rows = append(rows, []string{
				c.Namespace, c.Name, cmp.Or(strings.Join(c.Pods, ","), "-"), d.Node, d.Pool, d.Device, yes(d.Ready), cmp.Or(d.Interface, "-"),
			})
		}
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

// ConfigList is what get configs shows.
type ConfigList struct {
	Configs []NodeConfig `json:"configs"`
	Unseen  []string     `json:"unseen"`
}

// NodeConfig is the network driver's configuration of a node.
type NodeConfig struct {
	Node     string   `json:"node"`
	Pools    []string `json:"pools"`
	Managers []string `json:"managers"` // that are enabled
	// Accepted and Ready are the conditions' status; Unknown while no agent has said so.
	Accepted string `json:"accepted"`
	Ready    string `json:"ready"`
	// Cluster is the cluster configuration that it was made by, "" when it was written by hand.
	Cluster string `json:"cluster,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Configs lists the nodes' configurations of the network driver.
func Configs(ctx context.Context, api lister) (*ConfigList, error) {
	objects, err := api.List(ctx, rest.NodeConfigs(), "")
	if err != nil {
		return nil, err
	}
	list := &ConfigList{Configs: []NodeConfig{}, Unseen: []string{}}
	for _, o := range objects {
		var c v2alpha1.CiliumNetworkDriverNodeConfig
		if err := json.Unmarshal(o.Raw, &c); err != nil {
			list.Configs = append(list.Configs, NodeConfig{Node: o.Meta.Name, Pools: []string{}, Managers: []string{}, Problem: fmt.Sprintf("cannot be read: %v", err)})
			continue
		}
		n := nodeConfig(&c)
		n.Cluster = ownerOf(o)
		list.Configs = append(list.Configs, n)
	}
	return list, nil
}

func nodeConfig(c *v2alpha1.CiliumNetworkDriverNodeConfig) NodeConfig {
	n := NodeConfig{Node: c.Name, Pools: []string{}, Managers: []string{}, Accepted: "Unknown", Ready: "Unknown"}
	for _, p := range c.Spec.Pools {
		n.Pools = append(n.Pools, p.Name)
	}
	if m := c.Spec.DeviceManagerConfigs; m != nil {
		if m.SRIOV != nil && m.SRIOV.Enabled {
			n.Managers = append(n.Managers, "sr-iov")
		}
		if m.Dummy != nil && m.Dummy.Enabled {
			n.Managers = append(n.Managers, "dummy")
		}
	}
	for _, cond := range c.Status.Conditions {
		switch cond.Type {
		case v2alpha1.ConditionAccepted:
			n.Accepted = string(cond.Status)
		case v2alpha1.ConditionReady:
			n.Ready = string(cond.Status)
		default:
			continue
		}
		if cond.ObservedGeneration < c.Generation {
			n.Problem = cmp.Or(n.Problem, "the node's agent has not seen the last change yet")
		} else if cond.Status != "True" {
			n.Problem = cmp.Or(n.Problem, cond.Message)
		}
	}
	spec := c.Spec.DeepCopy()
	spec.SetDefaults()
	if err := spec.ValidateFor(c.Name); err != nil {
		n.Problem = cmp.Or(n.Problem, err.Error())
	}
	return n
}

// WriteTable prints the configurations.
func (l *ConfigList) WriteTable(w io.Writer) error {
	rows := [][]string{{"NODE", "MANAGERS", "POOLS", "ACCEPTED", "READY", "CLUSTER CONFIG", "PROBLEM"}}
	for _, c := range l.Configs {
		rows = append(rows, []string{
			c.Node, cmp.Or(strings.Join(c.Managers, ","), "-"), cmp.Or(strings.Join(c.Pools, ","), "-"), c.Accepted, c.Ready, cmp.Or(c.Cluster, "-"), oneLine(c.Problem),
		})
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}
