// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
)

// handing is a source whose pods have claimed devices.
type handing struct {
	source
	names map[string][]string // by pod UID
	err   error
	asked *[]wire.HandoverRequest
}

func (h handing) Prepared(podUID string) ([]string, error) {
	if podUID == "u1" && h.names == nil {
		return nil, h.err
	}
	return h.names[podUID], nil
}

func (h handing) Handover(_ context.Context, req wire.HandoverRequest) error {
	*h.asked = append(*h.asked, req)
	return h.err
}

func (h handing) open(*netconf.Conf) (Source, error) { return h, nil }

// TestAnswerReserves: the names of claimed devices are the pod's, and a hand-over is asked for only
// for a pod that has some.
func TestAnswerReserves(t *testing.T) {
	neta := map[plan.NADRef]plan.NAD{{Namespace: "default", Name: "neta"}: {Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`}}
	for name, c := range map[string]struct {
		names    []string
		handover bool
		text     string // of the error
	}{
		"none":      {},
		"another":   {names: []string{"sriov0"}, handover: true},
		"the NAD's": {names: []string{"net1"}, text: "net1"},
	} {
		req := request(webArgs)
		h := handing{source: source{pods: networks("u1", "neta@net1"), nads: neta}, names: map[string][]string{"u1": c.names}}
		res := Handle(t.Context(), wire.Request{Verb: wire.VerbPlan, Plan: &req}, h.open, nil)
		switch {
		case c.text != "":
			if res.Error == nil || res.Error.Code != 7 || !strings.Contains(res.Error.Msg, c.text) {
				t.Errorf("%s: error %+v", name, res.Error)
			}
		case res.Error != nil || res.Plan == nil || res.Handover != c.handover:
			t.Errorf("%s: answer %+v, error %+v", name, res, res.Error)
		}
	}
}

// TestAnswerNotKnownYet: that a pod has devices may not be known; it comes again then.
func TestAnswerNotKnownYet(t *testing.T) {
	req := request(webArgs)
	h := handing{source: source{pods: networks("u1", "")}, err: errors.New("not read yet")}
	res := Handle(t.Context(), wire.Request{Verb: wire.VerbPlan, Plan: &req}, h.open, nil)
	if res.Error == nil || res.Error.Code != 11 || !strings.Contains(res.Error.Msg, "not read yet") || res.Plan != nil {
		t.Errorf("answer %+v, error %+v", res, res.Error)
	}
}

func TestHandleHandover(t *testing.T) {
	body := wire.HandoverRequest{Conf: request(webArgs).Conf, PodUID: "u1"}
	req := wire.Request{Verb: wire.VerbHandover, Handover: &body}
	h := handing{asked: new([]wire.HandoverRequest)}
	if res := Handle(t.Context(), req, h.open, nil); !res.Done || len(*h.asked) != 1 || (*h.asked)[0].PodUID != "u1" {
		t.Errorf("answer %+v, asked %+v", res, *h.asked)
	}
	h.err = fault.New(fault.Config, "device d", "", "podIfName is taken")
	if res := Handle(t.Context(), req, h.open, nil); res.Done || res.Error == nil || res.Error.Code != 7 {
		t.Errorf("answer %+v", res)
	}
	none := func(*netconf.Conf) (Source, error) { return source{}, nil }
	if res := Handle(t.Context(), req, none, nil); res.Done || res.Error == nil || res.Error.Code != 100 {
		t.Errorf("answer %+v", res)
	}
}
