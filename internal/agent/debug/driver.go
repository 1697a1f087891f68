// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// DriverView is what the network driver shows. Its methods are called from several goroutines.
type DriverView interface {
	// Devices gives the node's devices, by name; also prepared ones that are not there any more.
	Devices() []Device
	// Claims gives the claims that are prepared, by namespace and name.
	Claims() []Claim
}

// DevicesAnswer answers /v1/devices. LeftOut counts as in PodsAnswer.
type DevicesAnswer struct {
	Head
	Devices []Device `json:"devices"`
	LeftOut int      `json:"leftOut"`
}

// ClaimsAnswer answers /v1/claims. LeftOut counts as in PodsAnswer.
type ClaimsAnswer struct {
	Head
	Claims  []Claim `json:"claims"`
	LeftOut int     `json:"leftOut"`
}

// Device is a network device of the node.
type Device struct {
	Name    string `json:"name"`
	Manager string `json:"manager"`
	// Present says that its manager sees it now.
	Present bool `json:"present"`
	// Dev is the device as its manager sees it, else as it was prepared.
	Dev json.RawMessage `json:"dev"`
	// Uses are what it is prepared for.
	Uses []Use `json:"uses"`
}

// Use is a claim that a device is prepared for.
type Use struct {
	Pool      string `json:"pool"`
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	ClaimUID  string `json:"claimUID"`
	// Pod is its name; "" when the agent does not know a pod of that UID.
	Pod    string `json:"pod,omitempty"`
	PodUID string `json:"podUID,omitempty"`
}

// Claim is a claim that is prepared.
type Claim struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	UID       string        `json:"uid"`
	Pod       string        `json:"pod,omitempty"`
	PodUID    string        `json:"podUID,omitempty"`
	Devices   []ClaimDevice `json:"devices"`
	// Fault is why the pod would not get them now, "" when it would.
	Fault string `json:"fault,omitempty"`
}

// ClaimDevice is one device of a claim.
type ClaimDevice struct {
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Manager string `json:"manager"`
	// Interface is the name that the claim asks for; "" keeps the host's.
	Interface string `json:"interface,omitempty"`
	VLAN      int32  `json:"vlan,omitempty"`
}

// ServeDriver has the server answer about devices and claims. It is called before Run; without it
// the answer is that the network driver is off.
func (s *Server) ServeDriver(v DriverView) { s.driver = v }

const driverOff = "the network driver is off on this agent"

func (s *Server) devices(w http.ResponseWriter, _ *http.Request) {
	if s.driver == nil {
		s.refuse(w, http.StatusNotFound, driverOff)
		return
	}
	a := DevicesAnswer{Head: s.head(s.view.Node().Name), Devices: []Device{}}
	a.LeftOut = fill(s, &a.Devices, s.driver.Devices(), func(d *Device) bool {
		if d.Uses == nil {
			d.Uses = []Use{}
		}
		return true
	})
	s.answer(w, a)
}

func (s *Server) claims(w http.ResponseWriter, r *http.Request) {
	if s.driver == nil {
		s.refuse(w, http.StatusNotFound, driverOff)
		return
	}
	namespace := r.FormValue("namespace")
	a := ClaimsAnswer{Head: s.head(s.view.Node().Name), Claims: []Claim{}}
	a.LeftOut = fill(s, &a.Claims, s.driver.Claims(), func(c *Claim) bool { return namespace == "" || c.Namespace == namespace })
	s.answer(w, a)
}

// fill appends what is wanted of all to list, as far as an answer has room, and says how many it had
// none for.
func fill[T any](s *Server, list *[]T, all []T, wanted func(*T) bool) (leftOut int) {
	room := s.limit - margin
	for _, v := range all {
		if !wanted(&v) {
			continue
		}
		if room -= size(v); room < 0 {
			leftOut++
			continue
		}
		*list = append(*list, v)
	}
	return leftOut
}

// Devices asks for the network devices of the node.
func (c *Client) Devices(ctx context.Context) (*DevicesAnswer, error) {
	var a DevicesAnswer
	return &a, c.get(ctx, "/v1/devices", nil, &a, &a.Head)
}

// Claims asks for the prepared claims of a namespace ("" = all).
func (c *Client) Claims(ctx context.Context, namespace string) (*ClaimsAnswer, error) {
	var a ClaimsAnswer
	return &a, c.get(ctx, "/v1/claims", url.Values{"namespace": {namespace}}, &a, &a.Head)
}
