// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/kube/rest"
	"github.com/weftnet/weft/internal/vm/machine"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// VMIList is what get vmis shows.
type VMIList struct {
	VMIs []machine.Machine `json:"vmis"`
	// Now is when it was so, for the age of other times.
	Now    time.Time `json:"now"`
	Unseen []string  `json:"unseen"`
}

// vmiAgent is an agent that reports machines; *debug.Client is one.
type vmiAgent interface {
	VMIs(ctx context.Context, namespace, name string) (*debug.VMIsAnswer, error)
}

// AgentVMIs asks an agent for the machines of a namespace and of a name, "" = all.
func AgentVMIs(ctx context.Context, a vmiAgent, namespace, name string) (*VMIList, error) {
	answer, err := a.VMIs(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &VMIList{answer.VMIs, answer.Now, leftOut(answer.LeftOut, "machine")}, nil
}

// VMIs lists the machines of a namespace ("" = all) as the API server's status has them.
func VMIs(ctx context.Context, api lister, namespace, name string) (*VMIList, error) {
	objects, err := api.List(ctx, rest.VMIs(), namespace)
	if err != nil {
		return nil, err
	}
	list := &VMIList{VMIs: []machine.Machine{}, Now: time.Now(), Unseen: []string{
		"domains, guest agents and what the status should be: the agent of each machine's node knows (weft get vmis there)",
	}}
	for _, o := range objects {
		if name != "" && o.Meta.Name != name {
			continue
		}
		m := machine.Machine{
			Namespace: o.Meta.Namespace, Name: o.Meta.Name, UID: o.Meta.UID, State: "unknown", Agent: "unknown",
			Interfaces: []machine.Interface{}, Warnings: []vmistatus.Warning{}, Differs: []string{},
		}
		var vmi v1.VirtualMachineInstance
		if err := json.Unmarshal(o.Raw, &vmi); err != nil {
			m.Fault = fmt.Sprintf("the object cannot be read: %v", err)
		}
		for _, i := range vmi.Status.Interfaces {
			m.Interfaces = append(m.Interfaces, machine.Interface{Interface: i, Values: []vmistatus.Value{}, Rejected: []vmistatus.Value{}})
		}
		list.VMIs = append(list.VMIs, m)
	}
	return list, nil
}

// LibvirtVMIs lists the running machines of a libvirt, which need no Kubernetes. Limit is for one
// machine: one that does not answer hides none of the others.
func LibvirtVMIs(ctx context.Context, dial func(context.Context) (net.Conn, error), uri string, limit time.Duration) (*VMIList, error) {
	l := libvirt{dial: dial, uri: uri, limit: limit}
	defer l.close()
	var domains []source.Domain
	err := l.ask(ctx, func(ctx context.Context, c *source.Conn) (err error) {
		domains, err = c.Domains(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	list := &VMIList{VMIs: []machine.Machine{}, Now: time.Now(), Unseen: []string{}}
	for _, d := range domains {
		var s source.Snapshot
		err := l.ask(ctx, func(ctx context.Context, c *source.Conn) (err error) {
			s, err = c.Read(ctx, d, source.Snapshot{}, time.Now())
			return err
		})
		if ctx.Err() != nil {
			return nil, err
		}
		s.Err = err
		m, _ := machine.Compute(machine.Machine{Name: d.Name, UID: fmt.Sprintf("%x-%x-%x-%x-%x", d.UUID[:4], d.UUID[4:6], d.UUID[6:8], d.UUID[8:10], d.UUID[10:])},
			vmistatus.Input{}, s)
		m.Differs = []string{} // there is no status
		list.VMIs = append(list.VMIs, m)
	}
	return list, nil
}

// libvirt is connected to anew after a machine did not answer.
type libvirt struct {
	dial  func(context.Context) (net.Conn, error)
	uri   string
	limit time.Duration
	conn  *source.Conn
}

var errSilent = errors.New("libvirt does not answer in time") //nolint:gochecknoglobals // a sentinel

func (l *libvirt) ask(ctx context.Context, what func(context.Context, *source.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.limit, errSilent)
	defer cancel()
	if l.conn != nil {
		select {
		case <-l.conn.Done():
			l.conn = nil
		default:
		}
	}
	if l.conn == nil {
		conn, err := l.dial(ctx)
		if err != nil {
			return fmt.Errorf("connect to libvirt: %w", err)
		}
		if l.conn, err = source.Dial(ctx, conn, l.uri, nil); err != nil {
			l.conn = nil
			return err
		}
	}
	return what(ctx, l.conn)
}

func (l *libvirt) close() {
	if l.conn != nil {
		_ = l.conn.Close() // it always succeeds
	}
}

// Table gives the way of printing it: a line an interface; wide ones have more columns, and what
// is wrong below them.
func (l *VMIList) Table(wide bool) func(io.Writer) error {
	return func(w io.Writer) error {
		head := []string{"NAMESPACE", "NAME", "STATE", "AGENT", "INTERFACE", "MAC", "ADDRESSES", "IN THE GUEST", "SOURCES"}
		if wide {
			head = append(head, "IN THE POD", "QUEUES", "LINK", "READ", "GUEST READ")
		}
		rows := [][]string{head}
		for i := range l.VMIs {
			rows = append(rows, l.rows(&l.VMIs[i], wide)...)
		}
		p := page{w: w}
		p.table(rows)
		for i := range l.VMIs {
			if m := &l.VMIs[i]; wide {
				p.remarks(m)
			}
		}
		return p.err
	}
}

func (l *VMIList) rows(m *machine.Machine, wide bool) [][]string {
	begin := []string{cmp.Or(m.Namespace, "-"), m.Name, m.State, m.Agent}
	all := make([][]string, 0, max(1, len(m.Interfaces)))
	for i := range m.Interfaces {
		e := &m.Interfaces[i]
		row := append(slices.Clip(begin),
			dash(oneLine(e.Name)), dash(oneLine(e.MAC)), dash(strings.Join(e.IPs, ",")), dash(oneLine(e.InterfaceName)), dash(strings.ReplaceAll(e.InfoSource, ", ", ",")))
		if wide {
			queues := "-"
			if e.QueueCount != 0 {
				queues = fmt.Sprint(e.QueueCount)
			}
			row = append(row, dash(e.PodInterfaceName), queues, dash(e.LinkState), age(l.Now, m.Read), age(l.Now, m.GuestRead))
		}
		all = append(all, row)
	}
	if len(all) == 0 {
		row := append(slices.Clip(begin), "-", "-", "-", "-", "-")
		if wide {
			row = append(row, "-", "-", "-", age(l.Now, m.Read), age(l.Now, m.GuestRead))
		}
		all = append(all, row)
	}
	return all
}

func dash(s string) string { return cmp.Or(s, "-") }

func (p *page) remarks(m *machine.Machine) {
	name := strings.TrimPrefix(m.Namespace+"/"+m.Name, "/")
	if m.Fault != "" {
		p.line("%s: libvirt: %s", name, oneLine(m.Fault))
	}
	for _, w := range m.Warnings {
		p.line("%s: %s", name, oneLine(w.String()))
	}
	for _, d := range m.Differs {
		p.line("%s: status differs: %s", name, oneLine(d))
	}
}

// VMIExplanation is what explain vmi shows.
type VMIExplanation struct {
	VMI machine.Machine `json:"vmi"`
	Now time.Time       `json:"now"`
	// OK says that nothing of it needs a person.
	OK     bool     `json:"ok"`
	Unseen []string `json:"unseen"`
}

// Explain takes the one machine of a list.
func (l *VMIList) Explain(name string) (*VMIExplanation, error) {
	if len(l.VMIs) != 1 {
		return nil, fmt.Errorf("virtual machine %s is not known there", name)
	}
	m := l.VMIs[0]
	return &VMIExplanation{VMI: m, Now: l.Now, OK: m.Fault == "" && len(m.Warnings) == 0 && len(m.Differs) == 0, Unseen: l.Unseen}, nil
}

// WriteTable prints the explanation: every value, its source and the rule that chose it.
func (e *VMIExplanation) WriteTable(w io.Writer) error {
	m, p := &e.VMI, page{w: w}
	p.line("machine %s  %s, agent %s", strings.TrimPrefix(m.Namespace+"/"+m.Name, "/"), m.State, m.Agent)
	p.table([][]string{
		{"  libvirt answered", agoOrNever(e.Now, m.Read)},
		{"  agent answered", agoOrNever(e.Now, m.GuestRead)},
		{"  status written", agoOrNever(e.Now, m.Written)},
	})
	for i := range m.Interfaces {
		iface := &m.Interfaces[i]
		p.line("  %d  %s", i, cmp.Or(oneLine(iface.Name), "the guest's "+oneLine(iface.InterfaceName)))
		var rows [][]string
		for _, v := range iface.Values {
			rows = append(rows, []string{"     " + v.Field, dash(oneLine(v.Value)), v.Source, v.Rule})
		}
		for _, v := range iface.Rejected {
			rows = append(rows, []string{"     not " + v.Field, dash(oneLine(v.Value)), v.Source, v.Rule})
		}
		p.table(rows)
	}
	p.remarks(m)
	if len(e.Unseen) > 0 {
		p.line("Not seen from here:")
	}
	for _, text := range e.Unseen {
		p.line("  %s", text)
	}
	return p.err
}
