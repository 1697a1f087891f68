// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/vm/machine"
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
