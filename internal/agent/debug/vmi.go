// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/weftnet/weft/internal/vm/machine"
)

// VMIView is what the agent shows of virtual machines. Its methods are called from several
// goroutines.
type VMIView interface {
	// VMIs gives those of the node, by namespace and name.
	VMIs() []machine.Machine
	// Record reads one anew, for a replay bundle: its JSON. The error says when it is
	// not on the node.
	Record(ctx context.Context, namespace, name string) (json.RawMessage, error)
}

// VMIsAnswer answers /v1/vmis. LeftOut counts as in PodsAnswer.
type VMIsAnswer struct {
	Head
	VMIs    []machine.Machine `json:"vmis"`
	LeftOut int               `json:"leftOut"`
}

// RecordAnswer answers /v1/vmis/record.
type RecordAnswer struct {
	Head
	Bundle json.RawMessage `json:"bundle"`
}

// ServeVMIs has the server answer about virtual machines. It is called before Run; without it the
// answer is that the agent does not report them.
func (s *Server) ServeVMIs(v VMIView) { s.machines = v }

const vmisOff = "vmi.mode is disabled on this agent: it knows no virtual machines"

func (s *Server) vmis(w http.ResponseWriter, r *http.Request) {
	if s.machines == nil {
		s.refuse(w, http.StatusNotFound, vmisOff)
		return
	}
	namespace, name := r.FormValue("namespace"), r.FormValue("name")
	a := VMIsAnswer{Head: s.head(s.view.Node().Name), VMIs: []machine.Machine{}}
	room := s.limit - margin
	for _, m := range s.machines.VMIs() {
		if namespace != "" && m.Namespace != namespace || name != "" && m.Name != name {
			continue
		}
		if room -= size(m); room < 0 {
			a.LeftOut++
			continue
		}
		a.VMIs = append(a.VMIs, m)
	}
	s.answer(w, a)
}

func (s *Server) record(w http.ResponseWriter, r *http.Request) {
	if s.machines == nil {
		s.refuse(w, http.StatusNotFound, vmisOff)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	bundle, err := s.machines.Record(ctx, r.FormValue("namespace"), r.FormValue("name"))
	if err != nil {
		s.refuse(w, http.StatusNotFound, err.Error())
		return
	}
	s.answer(w, RecordAnswer{Head: s.head(s.view.Node().Name), Bundle: bundle})
}

// VMIs asks for the virtual machines of a namespace ("" = all) and of a name ("" = any).
func (c *Client) VMIs(ctx context.Context, namespace, name string) (*VMIsAnswer, error) {
	var a VMIsAnswer
	return &a, c.get(ctx, "/v1/vmis", url.Values{"namespace": {namespace}, "name": {name}}, &a, &a.Head)
}

// RecordVMI asks for a replay bundle of a virtual machine.
func (c *Client) RecordVMI(ctx context.Context, namespace, name string) (json.RawMessage, error) {
	var a RecordAnswer
	err := c.get(ctx, "/v1/vmis/record", url.Values{"namespace": {namespace}, "name": {name}}, &a, &a.Head)
	return a.Bundle, err
}
