// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/vm/libvirttest"
	"github.com/weftnet/weft/internal/vm/machine"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

type oneMachine struct{ m machine.Machine }

func (o oneMachine) VMIs(context.Context, string, string) (*debug.VMIsAnswer, error) {
	return &debug.VMIsAnswer{VMIs: []machine.Machine{o.m}, LeftOut: 2}, nil
}

// What is wrong with a machine is told below the wide table and by explain, and makes it not OK.
func TestVMIRemarks(t *testing.T) {
	m := machine.Machine{
		Namespace: "ns", Name: "web", State: "running", Agent: "silent",
		Interfaces: []machine.Interface{{
			Interface: vmistatus.Interface{Name: "default", IP: "10.0.0.5", IPs: []string{"10.0.0.5"}, InterfaceName: "eth0"},
			Values:    []vmistatus.Value{{Field: "ipAddresses", Value: "10.0.0.5", Source: "guest-agent", Rule: "guest-alone"}},
		}},
		Differs: []string{"default: the status lacks it"},
	}
	list, err := AgentVMIs(t.Context(), oneMachine{m}, "ns", "web")
	if err != nil {
		t.Fatal(err)
	}
	var narrow, wide, told strings.Builder
	e, err := list.Explain("ns/web")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{list.Table(false)(&narrow), list.Table(true)(&wide), e.WriteTable(&told)} {
		if err != nil {
			t.Error(err)
		}
	}
	const remark = "ns/web: status differs: default: the status lacks it"
	if strings.Contains(narrow.String(), remark) || !strings.Contains(wide.String(), remark) || !strings.Contains(told.String(), remark) {
		t.Errorf("narrow:\n%s\nwide:\n%s\nexplained:\n%s", &narrow, &wide, &told)
	}
	if e.OK || !strings.Contains(told.String(), "guest-alone") || len(list.Unseen) != 1 {
		t.Errorf("OK %v, unseen %q, explained:\n%s", e.OK, list.Unseen, &told)
	}
}

// tableOf is a way of printing, for table.
type tableOf func(io.Writer) error

func (f tableOf) WriteTable(w io.Writer) error { return f(w) }

// What an API server knows is the status as it is written, and no more; an object that cannot be
// read is shown as that.
func TestVMIsOfServer(t *testing.T) {
	api := objects{"VirtualMachineInstance": {
		`{"metadata":{"namespace":"web","name":"a","uid":"u1"},"status":{"interfaces":[
			{"name":"default","mac":"02:00:00:00:00:01","ipAddress":"10.0.0.5","ipAddresses":["10.0.0.5","fd00::5"],"interfaceName":"eth0","infoSource":"domain, guest-agent","queueCount":2,"linkState":"up"},
			{"name":"red","podInterfaceName":"podb1f51a511f1","infoSource":"multus-status"}]}}`,
		`{"metadata":{"namespace":"web","name":"new"}}`,
		`{"metadata":{"namespace":"web","name":"torn"},"status":{"interfaces":"none"}}`,
		`{"metadata":{"namespace":"other","name":"a"}}`,
	}}
	list, err := VMIs(t.Context(), api, "web", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Unseen) != 1 || !strings.Contains(list.Unseen[0], "domains, guest agents") {
		t.Errorf("not seen: %q", list.Unseen)
	}
	for what, c := range map[string]struct{ got, want string }{
		"narrow": {table(t, tableOf(list.Table(false))), `NAMESPACE NAME STATE AGENT INTERFACE MAC ADDRESSES IN THE GUEST SOURCES
web a unknown unknown default 02:00:00:00:00:01 10.0.0.5,fd00::5 eth0 domain,guest-agent
web a unknown unknown red - - - multus-status
web new unknown unknown - - - - -
web torn unknown unknown - - - - -`},
		"wide": {table(t, tableOf(list.Table(true))), `NAMESPACE NAME STATE AGENT INTERFACE MAC ADDRESSES IN THE GUEST SOURCES IN THE POD QUEUES LINK READ GUEST READ
web a unknown unknown default 02:00:00:00:00:01 10.0.0.5,fd00::5 eth0 domain,guest-agent - 2 up - -
web a unknown unknown red - - - multus-status podb1f51a511f1 - - - -
web new unknown unknown - - - - - - - - - -
web torn unknown unknown - - - - - - - - - -
web/torn: libvirt: the object cannot be read: json: cannot unmarshal string into Go struct field VirtualMachineInstanceStatus.status.interfaces of type []v1.VirtualMachineInstanceNetworkInterface`},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	for name, ok := range map[string]bool{"a": true, "new": true, "torn": false} {
		one, err := VMIs(t.Context(), api, "web", name)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := one.Explain("web/" + name); err != nil || e.VMI.Name != name || e.OK != ok {
			t.Errorf("%s: %+v, %v, want OK %t", name, e, err, ok)
		}
	}
	none, err := VMIs(t.Context(), api, "web", "gone")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Explain("web/gone"); err == nil || !strings.Contains(err.Error(), "virtual machine web/gone is not known there") {
		t.Errorf("a machine that there is not: %v", err)
	}
}

// The machines of a libvirt without Kubernetes: one that does not answer is shown as that, and hides
// none of the others, which are asked over another connection.
func TestVMIsOfLibvirt(t *testing.T) {
	defer goleak.VerifyNone(t)
	f := libvirttest.New("one", "stuck", "two")
	defer f.Drop()
	f.Set(func() { f.Stuck = "stuck" })
	var dialled int
	dial := func(context.Context) (net.Conn, error) {
		dialled++
		return f.Dial(), nil
	}
	const limit = 300 * time.Millisecond // all others answer at once
	list, err := LibvirtVMIs(t.Context(), dial, "qemu:///system", limit)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(`NAMESPACE NAME STATE AGENT INTERFACE MAC ADDRESSES IN THE GUEST SOURCES
- one running connected default 02:00:00:00:00:01 10.0.0.5 eth0 domain,guest-agent
- stuck unknown unknown - - - - -
- two running connected default 02:00:00:00:00:01 10.0.0.5 eth0 domain,guest-agent`, table(t, tableOf(list.Table(false)))); d != "" {
		t.Error("table (-want +got):\n", d)
	}
	if fault := list.VMIs[1].Fault; !strings.Contains(fault, errSilent.Error()) {
		t.Errorf("fault %q", fault)
	}
	if dialled != 2 {
		t.Errorf("%d connections, want another after the one that was stuck", dialled)
	}
	if list.VMIs[0].UID != "00000000-0000-0000-0000-000000000000" || len(list.Unseen) != 0 || len(list.VMIs[0].Differs) != 0 {
		t.Errorf("%+v", list)
	}
}

// A libvirt that is not there, or says nothing, is an error that says so.
func TestNoLibvirt(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := filepath.Join(t.TempDir(), "none")
	local, err := source.ParseLocal("qemu+unix:///system?socket="+path, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = LibvirtVMIs(t.Context(), local.Dial, local.Name, time.Minute)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "connect to libvirt") || !strings.Contains(err.Error(), path) {
		t.Errorf("no socket: %v", err)
	}
	f := libvirttest.New("one")
	defer f.Drop()
	f.Set(func() { f.Silent = true })
	_, err = LibvirtVMIs(t.Context(), func(context.Context) (net.Conn, error) { return f.Dial(), nil }, "qemu:///system", 50*time.Millisecond)
	if !errors.Is(err, errSilent) {
		t.Errorf("silent: %v", err)
	}
}
