// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weftnet/weft/internal/cni/netstatus"
)

// Report is what a run found. Its JSON form is stable: fields are added, never renamed or
// removed; lists are never null.
type Report struct {
	Pods   []Pod   `json:"pods"`
	Probes []Probe `json:"probes"`
	// Faults are what is wrong but belongs to no single pod.
	Faults []string `json:"faults"`
	// TakenDown: every pod was deleted and it was checked that nothing is left. False with --keep.
	TakenDown bool `json:"takenDown"`
	// Left is what deleting left behind.
	Left []string `json:"left"`
	// Holder is the process that keeps the pods, with --keep.
	Holder *Holder `json:"holder,omitempty"`
}

// newReport is an empty report, whose lists are not null in JSON.
func newReport() *Report {
	return &Report{Pods: []Pod{}, Probes: []Probe{}, Faults: []string{}, Left: []string{}}
}

// Pod is one pod, in the order of the manifests.
type Pod struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	ContainerID string `json:"containerID"`
	Netns       string `json:"netns"` // path inside the sandbox
	// Error is what is wrong, "" when nothing is. A pod that could not be attached has no interfaces.
	Error         string            `json:"error,omitempty"`
	Interfaces    []Interface       `json:"interfaces"`
	DefaultRoutes []DefaultRoute    `json:"defaultRoutes"` // IPv4 first
	NetworkStatus []netstatus.Entry `json:"networkStatus"`

	attached bool
}

func (p Pod) id() string { return p.Namespace + "/" + p.Name }

// Interface is one interface of a pod, as the kernel shows it.
type Interface struct {
	Name string `json:"name"`
	// Network is namespace/name of the NAD, or the name of the pod network.
	Network   string         `json:"network"`
	Default   bool           `json:"default,omitempty"`
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`
	Addresses []netip.Prefix `json:"addresses"` // without link-local ones
	// PluginMilliseconds is how long the plugins of its network ran; interfaces of one
	// network that one call made share it.
	PluginMilliseconds float64 `json:"pluginMilliseconds"`

	linkLocal netip.Addr
	index     int
}

// DefaultRoute is one way out of a pod, in its main table.
type DefaultRoute struct {
	Family    string     `json:"family"` // IPv4 or IPv6
	Interface string     `json:"interface"`
	Gateway   netip.Addr `json:"gateway,omitzero"` // absent: everything is on the link
}

// Probe is one packet with a nonce, sent through one interface and awaited at another.
type Probe struct {
	Network string   `json:"network"`
	From    Endpoint `json:"from"`
	To      Endpoint `json:"to"`
	// Milliseconds is how long the packet took, 0 when it did not arrive.
	Milliseconds float64 `json:"milliseconds"`
	Error        string  `json:"error,omitempty"` // "" = arrived
}

// Endpoint is one end of a probe.
type Endpoint struct {
	Pod       string     `json:"pod"` // namespace/name
	Interface string     `json:"interface"`
	Address   netip.Addr `json:"address"`

	index int // of the interface
}

func (e Endpoint) String() string { return fmt.Sprintf("%s %s (%s)", e.Pod, e.Interface, e.Address) }

// OK tells whether no fault was found.
func (r *Report) OK() bool {
	for _, p := range r.Pods {
		if p.Error != "" {
			return false
		}
	}
	for _, p := range r.Probes {
		if p.Error != "" {
			return false
		}
	}
	return len(r.Faults) == 0 && len(r.Left) == 0
}

// WriteTable writes the report for people: a row for every interface, a line for every probe
// and every fault, and what became of it all.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POD\tINTERFACE\tNETWORK\tMAC\tADDRESSES\tPLUGINS")
	for _, p := range r.Pods {
		for _, i := range p.Interfaces {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.id(), i.Name, i.Network, i.MAC, joinAddrs(i.Addresses), milliseconds(i.PluginMilliseconds))
		}
		if p.Error != "" && len(p.Interfaces) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t-\n", p.id())
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	var b strings.Builder
	r.writeLines(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func (r *Report) writeLines(b *strings.Builder) {
	r.writeRoutes(b)
	for i, p := range r.Probes {
		if i == 0 {
			b.WriteByte('\n')
		}
		result := "arrived in " + milliseconds(p.Milliseconds)
		if p.Error != "" {
			result = "FAILED: " + p.Error
		}
		fmt.Fprintf(b, "%s: %s -> %s %s\n", p.Network, p.From, p.To, result)
	}
	for _, p := range r.Pods {
		if p.Error != "" {
			fmt.Fprintf(b, "\npod %s FAILED: %s\n", p.id(), p.Error)
		}
	}
	if r.Holder != nil {
		r.writeFaults(b)
		b.WriteString("\n" + r.Kept())
		return
	}
	b.WriteByte('\n')
	r.writeEnd(b)
}

// Kept says how to enter the pods that are left running, and how to take them down; "" when none are.
func (r *Report) Kept() string {
	if r.Holder == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Kept running by process %d. Enter a pod with:\n", r.Holder.PID)
	for _, p := range r.Pods {
		if len(p.Interfaces) > 0 {
			fmt.Fprintf(&b, "  %s    # %s\n", r.Holder.Enter(p.Netns), p.id())
		}
	}
	fmt.Fprintf(&b, "Take it down with:\n  %s\n", r.Holder.down)
	return b.String()
}

// writeRoutes tells of default routes that do not lead through the pod network.
func (r *Report) writeRoutes(b *strings.Builder) {
	gap := "\n"
	for _, p := range r.Pods {
		for _, route := range p.DefaultRoutes {
			if slices.ContainsFunc(p.Interfaces, func(i Interface) bool { return i.Default && i.Name == route.Interface }) {
				continue
			}
			via := ""
			if route.Gateway.IsValid() {
				via = " via " + route.Gateway.String()
			}
			fmt.Fprintf(b, "%s%s: %s default route on %s%s\n", gap, p.id(), route.Family, route.Interface, via)
			gap = ""
		}
	}
}

// WriteEnd writes what became of a sandbox that was kept.
func (r *Report) WriteEnd(w io.Writer) error {
	var b strings.Builder
	r.writeEnd(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) writeFaults(b *strings.Builder) {
	for _, f := range r.Faults {
		fmt.Fprintf(b, "FAULT: %s\n", f)
	}
}

func (r *Report) writeEnd(b *strings.Builder) {
	r.writeFaults(b)
	switch {
	case len(r.Left) > 0:
		fmt.Fprintf(b, "Taken down, but LEFT BEHIND:\n  %s\n", strings.Join(r.Left, "\n  "))
	case r.TakenDown:
		b.WriteString("Taken down: no interface, address, record, namespace or process is left.\n")
	}
}

func joinAddrs(addrs []netip.Prefix) string {
	if len(addrs) == 0 {
		return "-"
	}
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}

func milliseconds(ms float64) string { return fmt.Sprintf("%.1fms", ms) }

func toMilliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
