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

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/kube/rest"
)

// lister reads objects of an API server; *rest.Client is one.
type lister interface {
	List(ctx context.Context, resource rest.Resource, namespace string) ([]rest.Object, error)
}

// NetworkList is what get networks shows, in the order of the server.
type NetworkList struct {
	Networks []Network `json:"networks"`
	Unseen   []string  `json:"unseen"`
}

// Network is a NetworkAttachmentDefinition.
type Network struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Types     []string `json:"types"` // of the plugins in their order; empty when that is not seen
	Resource  string   `json:"resource,omitempty"`
	Pods      int      `json:"pods"` // of those listed, that name it
	// Problem is why no pod can be attached to it, as far as that is seen.
	Problem string `json:"problem,omitempty"`

	ipam []string // types of its IPAM plugins
}

// PodList is what get pods shows, in the order of the server.
type PodList struct {
	Pods []Pod `json:"pods"`
	// Others counts the pods that neither ask for networks nor have a status.
	Others int      `json:"others"`
	Unseen []string `json:"unseen"`
}

// Pod is what a pod asks for and what it has.
type Pod struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Networks  []Asked           `json:"networks"`
	Status    []netstatus.Entry `json:"status"` // the network-status annotation
	// Complete says that the status has all that is asked for; Problem says what it lacks,
	// or what is wrong with an annotation.
	Complete bool   `json:"complete"`
	Problem  string `json:"problem,omitempty"`
}

// Asked is one network that a pod asks for.
type Asked struct {
	Network   string `json:"network"`             // namespace/name
	Interface string `json:"interface,omitempty"` // "" = automatic
	Default   bool   `json:"default,omitempty"`   // in place of the default network
}

// Networks lists the NetworkAttachmentDefinitions of a namespace, "" = of all.
func Networks(ctx context.Context, api lister, namespace string) (*NetworkList, error) {
	nads, err := api.List(ctx, rest.NADs(), namespace)
	if err != nil {
		return nil, err
	}
	pods, err := api.List(ctx, rest.Pods(), namespace)
	if err != nil {
		return nil, err
	}
	used := map[string]int{}
	for _, pod := range pods {
		asked, _ := asks(pod.Meta) // what is wrong with it is for get pods to say
		names := map[string]bool{}
		for _, a := range asked {
			names[a.Network] = true
		}
		for name := range names {
			used[name]++
		}
	}
	list := &NetworkList{Networks: []Network{}, Unseen: []string{}}
	if namespace != "" {
		list.Unseen = append(list.Unseen, "pods of other namespaces that use these networks (-A lists them)")
	}
	empty := false
	for _, nad := range nads {
		n := network(nad)
		n.Pods = used[n.Namespace+"/"+n.Name]
		empty = empty || len(n.Types) == 0 && n.Problem == ""
		list.Networks = append(list.Networks, n)
	}
	if empty {
		list.Unseen = append(list.Unseen, "the configurations of networks without spec.config: they are in confDir of each node")
	}
	return list, nil
}

func network(nad rest.Object) Network {
	n := Network{
		Namespace: nad.Meta.Namespace, Name: nad.Meta.Name, Types: []string{},
		Resource: strings.TrimSpace(nad.Meta.Annotations[plan.ResourceNameAnnotation]),
	}
	var body struct {
		Spec struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(nad.Raw, &body); err != nil {
		n.Problem = "spec.config is no string"
		return n
	}
	if strings.TrimSpace(body.Spec.Config) == "" {
		return n
	}
	conf, err := netconf.ParseNetwork([]byte(body.Spec.Config), "")
	if err != nil {
		n.Problem = "spec.config " + first(err)
	}
	for _, plugin := range conf.Plugins {
		if plugin.Type != "" { // a broken one
			n.Types = append(n.Types, plugin.Type)
		}
		if plugin.IPAM != "" {
			n.ipam = append(n.ipam, plugin.IPAM)
		}
	}
	return n
}

// first is the first of joined errors; a cell has room for one.
func first(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// asks reads what a pod's annotations ask for.
func asks(pod rest.Meta) ([]Asked, error) {
	all := []Asked{}
	read := func(annotation, namespace string) error {
		elements, _, err := selection.Parse(pod.Annotations[annotation])
		if err != nil {
			return fmt.Errorf("annotation %s%s", annotation, first(err))
		}
		for _, e := range elements {
			if e.Namespace == "" {
				e.Namespace = namespace
			}
			all = append(all, Asked{Network: e.Namespace + "/" + e.Name, Interface: e.Interface, Default: annotation == plan.DefaultNetworkAnnotation})
		}
		return nil
	}
	if err := read(plan.DefaultNetworkAnnotation, netconf.Defaults().MultusNamespace); err != nil {
		return all, err
	}
	return all, read(plan.NetworksAnnotation, pod.Namespace)
}

// Pods lists the pods of a namespace ("" = of all) that ask for networks or have a status.
func Pods(ctx context.Context, api lister, namespace string) (*PodList, error) {
	objects, err := api.List(ctx, rest.Pods(), namespace)
	if err != nil {
		return nil, err
	}
	list := &PodList{Pods: []Pod{}, Unseen: []string{"defaultNetworks of the nodes' configuration: a status may lack them and be complete here"}}
	for _, o := range objects {
		if !slices.ContainsFunc([]string{plan.NetworksAnnotation, plan.DefaultNetworkAnnotation, plan.StatusAnnotation}, func(a string) bool {
			return strings.TrimSpace(o.Meta.Annotations[a]) != ""
		}) {
			list.Others++
			continue
		}
		list.Pods = append(list.Pods, pod(o.Meta))
	}
	return list, nil
}

func pod(meta rest.Meta) Pod {
	p := Pod{Namespace: meta.Namespace, Name: meta.Name, Status: []netstatus.Entry{}}
	var err error
	if p.Networks, err = asks(meta); err != nil {
		p.Problem = err.Error()
	}
	status := meta.Annotations[plan.StatusAnnotation]
	if strings.TrimSpace(status) != "" {
		if json.Unmarshal([]byte(status), &p.Status) != nil || p.Status == nil {
			p.Status = []netstatus.Entry{}
			p.Problem = cmp.Or(p.Problem, "annotation "+plan.StatusAnnotation+" is no list of entries")
		}
	}
	p.Problem = cmp.Or(p.Problem, lacks(p.Networks, p.Status))
	p.Complete = p.Problem == ""
	return p
}

// lacks says what of asked a status does not have. Each entry answers one question, those
// for a certain interface first.
func lacks(asked []Asked, status []netstatus.Entry) string {
	if len(status) == 0 {
		return "no status yet"
	}
	var missing []string
	taken := make([]bool, len(status))
	take := func(a Asked, fits func(netstatus.Entry) bool) {
		for i, e := range status {
			if !taken[i] && e.Name == a.Network && fits(e) {
				taken[i] = true
				return
			}
		}
		missing = append(missing, strings.TrimSuffix(a.Network+"@"+a.Interface, "@"))
	}
	for _, a := range asked {
		if a.Interface != "" {
			take(a, func(e netstatus.Entry) bool { return e.Interface == a.Interface })
		}
	}
	for _, a := range asked {
		if a.Interface == "" {
			take(a, func(e netstatus.Entry) bool { return !a.Default || e.Default })
		}
	}
	if !slices.ContainsFunc(status, func(e netstatus.Entry) bool { return e.Default }) {
		missing = append(missing, "the default network")
	}
	if len(missing) == 0 {
		return ""
	}
	return "status lacks " + strings.Join(missing, ", ")
}

// WriteTable prints the list.
func (l *NetworkList) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "TYPES", "RESOURCE", "PODS", "PROBLEM"}}
	for _, n := range l.Networks {
		types := strings.Join(n.Types, ",")
		if types == "" {
			types = "-"
		}
		rows = append(rows, []string{n.Namespace, n.Name, types, cmp.Or(n.Resource, "-"), strconv.Itoa(n.Pods), n.Problem})
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

// WriteTable prints the list, a line a pod.
func (l *PodList) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "ASKS FOR", "STATUS", "COMPLETE", "PROBLEM"}}
	for _, pod := range l.Pods {
		var asked, status []string
		for _, a := range pod.Networks {
			asked = append(asked, strings.TrimSuffix(a.Network+"@"+a.Interface, "@"))
		}
		for _, e := range pod.Status {
			status = append(status, strings.TrimSuffix(cmp.Or(e.Interface, e.Name)+"="+strings.Join(e.IPs, "+"), "="))
		}
		complete := "no"
		if pod.Complete {
			complete = "yes"
		}
		rows = append(rows, []string{
			pod.Namespace, pod.Name, cmp.Or(strings.Join(asked, ","), "-"), cmp.Or(strings.Join(status, ","), "-"), complete, pod.Problem,
		})
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}
