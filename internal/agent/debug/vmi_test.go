// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/vm/machine"
	"github.com/weftnet/weft/vmistatus"
)

// machines are what an agent reports of virtual machines.
type machines []machine.Machine

func (m machines) VMIs() []machine.Machine { return m }

func (m machines) Record(_ context.Context, namespace, name string) (json.RawMessage, error) {
	for _, one := range m {
		if one.Namespace == namespace && one.Name == name {
			return json.RawMessage(`{"vmi":{"metadata":{"name":"` + name + `"}}}`), nil
		}
	}
	return nil, errors.New("it is not on this node")
}

func aMachine(namespace, name string) machine.Machine {
	return machine.Machine{
		Namespace: namespace, Name: name, State: "running", Agent: "connected", Read: now,
		Interfaces: []machine.Interface{{
			Interface: vmistatus.Interface{Name: "default", IP: "10.0.0.5", IPs: []string{"10.0.0.5"}},
			Values:    []vmistatus.Value{{Field: "ipAddresses", Value: "10.0.0.5", Source: "pod-cache", Rule: "pod-alone"}},
			Rejected:  []vmistatus.Value{},
		}},
		Warnings: []vmistatus.Warning{{Code: "stale-agent", Text: "old"}}, Differs: []string{"default: the status lacks it"},
	}
}

// Machines arrive as the agent has them, those that were asked for; what is recorded arrives as it is.
func TestVMIs(t *testing.T) {
	all := machines{aMachine("default", "web"), aMachine("default", "db"), aMachine("other", "web")}
	client, _, _ := serve(t, &view{node: Node{Name: "n1"}}, func(s *Server) { s.ServeVMIs(all) })
	head := Head{Version: 1, Node: "n1", Now: now}
	for _, c := range []struct {
		namespace, name string
		want            []machine.Machine
	}{
		{"", "", all},
		{"default", "", all[:2]},
		{"", "web", []machine.Machine{all[0], all[2]}},
		{"other", "web", all[2:]},
		{"other", "db", []machine.Machine{}},
	} {
		got, err := client.VMIs(t.Context(), c.namespace, c.name)
		check(t, fmt.Sprintf("machines %q of namespace %q", c.name, c.namespace), got, err, &VMIsAnswer{Head: head, VMIs: c.want})
	}
	bundle, err := client.RecordVMI(t.Context(), "other", "web")
	check(t, "record", string(bundle), err, `{"vmi":{"metadata":{"name":"web"}}}`)
	if _, err := client.RecordVMI(t.Context(), "other", "db"); err == nil || !strings.Contains(err.Error(), "answer 404") || !strings.Contains(err.Error(), "it is not on this node") {
		t.Errorf("record of another node's machine: %v", err)
	}
}

// An agent that reports no machines says so: "there are none" would be another thing.
func TestVMIsOff(t *testing.T) {
	client, _, _ := serve(t, &view{}, nil)
	_, list := client.VMIs(t.Context(), "", "")
	_, record := client.RecordVMI(t.Context(), "default", "web")
	for what, err := range map[string]error{"list": list, "record": record} {
		if err == nil || !strings.Contains(err.Error(), vmisOff) {
			t.Errorf("%s: %v, want that it is off", what, err)
		}
	}
}

// What does not fit into an answer is counted, and the rest arrives.
func TestManyVMIs(t *testing.T) {
	var all machines
	for i := range 50 {
		all = append(all, aMachine("default", fmt.Sprint("vm", i)))
	}
	client, _, _ := serve(t, &view{}, func(s *Server) {
		s.ServeVMIs(all)
		s.limit = margin + 10*size(all[10])
	})
	got, err := client.VMIs(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.VMIs); n < 9 || n > 10 || got.LeftOut != len(all)-n || got.VMIs[0].Name != "vm0" {
		t.Errorf("%d machines and %d left out, of %d", n, got.LeftOut, len(all))
	}
}
