// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/vm/bundle"
	"github.com/weftnet/weft/internal/vm/libvirttest"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// A recorded machine gives, replayed, what is reported of it: also where the launcher's network-status
// stands in for files that nobody writes.
func TestRecordReplays(t *testing.T) {
	g := newRig(t, 1)
	for name, publish := range map[string]bool{"observe": false, "publish": true} {
		t.Run(name, func(t *testing.T) {
			r, stop := g.start(t, publish, func(r *Reporter) {
				pods := r.cfg.Pods
				r.cfg.Pods = func(uid string) (Pod, bool) {
					p, ok := pods(uid)
					p.NetworkStatus = `[{"name":"kindnet","interface":"eth0","ips":["10.244.0.9"],"default":true}]`
					return p, ok
				}
			})
			defer stop()
			g.readSince(t, r, time.Time{})
			want := map[bool]string{false: "10.0.0.5", true: "10.244.0.9"}[publish]
			if replayed := recorded(t, r); replayed[0].IP != want {
				t.Errorf("%s, want %s", replayed[0].IP, want)
			}
		})
	}
}

// recorded is what the record of the only machine is replayed as, which is what is reported of it.
func recorded(t *testing.T, r *Reporter) []vmistatus.Interface {
	t.Helper()
	text, err := r.Record(t.Context(), "ns", machineName(0))
	if err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var reported []vmistatus.Interface
	for _, i := range r.VMIs()[0].Interfaces {
		reported = append(reported, i.Interface)
	}
	replayed := b.Replay(false).Interfaces
	if d := cmp.Diff(reported, replayed); d != "" || len(replayed) == 0 {
		t.Fatalf("(-reported +replayed):\n%s", d)
	}
	return replayed
}

// What cannot be read is left out of a record, or is what was last known; a paused machine's guest is what
// is shown of it.
func TestRecordOfWhatCannotBeRead(t *testing.T) {
	g := newRig(t, 1)
	f := libvirttest.New("ns_" + machineName(0))
	defer f.Drop()
	var fails atomic.Bool
	r, stop := g.start(t, false, func(r *Reporter) {
		pods := r.cfg.Pods
		r.cfg.Pods = func(uid string) (Pod, bool) {
			p, ok := pods(uid)
			p.NetworkStatus = "[]"
			return p, ok
		}
		r.dial = func(string) func(context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				if fails.Load() {
					return nil, source.ErrNoLauncher
				}
				return f.Dial(), nil
			}
		}
	})
	defer stop()
	g.readSince(t, r, time.Time{})
	record := func() *bundle.Bundle {
		text, err := r.Record(t.Context(), "ns", machineName(0))
		if err != nil {
			t.Fatal(err)
		}
		b, err := bundle.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f.Set(func() {
		f.State = 3
		f.Guest = func() ([]byte, uint32) { return libvirttest.Failure(55, "domain is not running"), 1 }
	})
	f.Happens()
	until(t, "it is seen to be paused", func() bool { return r.VMIs()[0].State == "paused" })
	if all := record().Replay(false).Interfaces; len(all) != 1 || all[0].IP != "10.0.0.5" {
		t.Errorf("paused: %+v", all)
	}
	fails.Store(true)
	if b := record(); b.DomainXML != nil || b.VMI == nil || b.Pod == nil {
		t.Errorf("%+v, want all but the domain", b)
	}
}

// What an agent that has begun to look, at a machine that is paused or whose guest cannot be asked, knows
// from the status alone is replayed as it is reported; so is what it knows of Multus where the pod does not say.
func TestRecordOfWhatIsRemembered(t *testing.T) {
	for name, change := range map[string]func(*libvirttest.Fake){
		"paused": func(f *libvirttest.Fake) { f.State = 3 },
		"the agent fails": func(f *libvirttest.Fake) {
			f.Guest = func() ([]byte, uint32) { return libvirttest.Failure(86, "QEMU guest agent is not connected"), 1 }
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, 1)
			g.api.Apply(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {namespace: ns, name: vm0, uid: uid-vm0, labels: {kubevirt.io/nodeName: here}}
spec:
  domain: {devices: {interfaces: [{name: default, bridge: {}}, {name: red, bridge: {}}]}}
  networks: [{name: default, pod: {}}, {name: red, multus: {networkName: red}}]
status:
  phase: Running
  activePods: {vm0: here}
  interfaces:
  - {name: default, mac: "02:00:00:00:00:01", ipAddress: 10.7.7.7, ipAddresses: [10.7.7.7], interfaceName: ens3, infoSource: "domain, guest-agent", queueCount: 1, linkState: up}
  - {name: red, infoSource: multus-status, podInterfaceName: podb1f51a511f1}
  - {mac: "02:42:00:00:00:01", interfaceName: br0, ipAddress: 172.17.0.1, ipAddresses: [172.17.0.1], infoSource: guest-agent}
`)
			f := libvirttest.New("ns_" + machineName(0))
			change(f)
			defer f.Drop()
			r, stop := g.start(t, false, func(r *Reporter) {
				r.dial = func(string) func(context.Context) (net.Conn, error) {
					return func(context.Context) (net.Conn, error) { return f.Dial(), nil }
				}
			})
			defer stop()
			until(t, "libvirt is asked", func() bool {
				all := r.VMIs()
				return len(all) == 1 && all[0].Agent == "silent"
			})
			if replayed := recorded(t, r); len(replayed) != 3 || replayed[0].IP != "10.7.7.7" {
				t.Errorf("replayed %+v", replayed)
			}
		})
	}
}
