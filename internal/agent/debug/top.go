// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"net/http"
	"time"
)

// TopView is what the agent shows of what happens. Top is called from several goroutines.
type TopView interface {
	Top() Top
}

// TopAnswer answers /v1/top.
type TopAnswer struct {
	Head
	State Node `json:"state"`
	Top   Top  `json:"top"`
}

// Top is what happens on a node, and what of it went wrong.
type Top struct {
	Lanes Lanes `json:"lanes"`
	// Records are counted by state, Attachments by phase: those that there are.
	Records     []Count `json:"records"`
	Attachments []Count `json:"attachments"`
	// Moving are attachments that are not done, the longest so first, then those that were
	// done last; LeftOut counts the others.
	Moving  []Moving `json:"moving"`
	LeftOut int      `json:"leftOut"`
	// Calls are those of weft-cni (ADD, DEL), of its plugins ("ADD macvlan"), of the planner
	// and of the network driver.
	Calls []Calls `json:"calls"`
	// Orphans and Plugs are the orders given in the background, by what came of them.
	Orphans []Count   `json:"orphans"`
	Plugs   []Count   `json:"plugs"`
	Resting []Resting `json:"resting"`
	// Driver says that the network driver is on; without it there are no devices.
	Driver  bool          `json:"driver"`
	Devices []DeviceCount `json:"devices"`
	// VMs is nil where virtual machines are not reported.
	VMs *VMCount `json:"vms,omitempty"`
	// Faults are the last ones, the newest first.
	Faults []LastFault `json:"faults"`
}

// Lanes are how many plugins run.
type Lanes struct {
	Limit int `json:"limit"`
	Kept  int `json:"kept"` // of these, for DEL alone
	InUse int `json:"inUse"`
	// Waiting are calls that have none; of a DEL, WaitingUrgent.
	Waiting       int `json:"waiting"`
	WaitingUrgent int `json:"waitingUrgent"`
	// Fault is why they cannot be seen, "" when they can.
	Fault string `json:"fault,omitempty"`
}

// Count is a number of things of a name.
type Count struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Moving is an attachment of a pod.
type Moving struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Interface string    `json:"interface"`
	Network   string    `json:"network"`
	Phase     Phase     `json:"phase"`
	Since     time.Time `json:"since,omitzero"`
	// Plugin is that which runs.
	Plugin string `json:"plugin,omitempty"`
	Device string `json:"device,omitempty"`
	Dead   bool   `json:"dead,omitempty"`
}

// Calls are the calls of one name.
type Calls struct {
	Name string `json:"name"`
	// Total and TotalFailed are since the agent started: two answers make a rate.
	Total       uint64 `json:"total"`
	TotalFailed uint64 `json:"totalFailed"`
	// The rest is of the last Seconds, which are 60, or less when there were very many.
	Seconds float64 `json:"seconds"`
	Count   int     `json:"count"`
	Failed  int     `json:"failed"`
	P50     float64 `json:"p50"` // in seconds, 0 without calls
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// Resting is a record that could not be undone and is tried again.
type Resting struct {
	Record string    `json:"record"`
	Pod    string    `json:"pod,omitempty"` // namespace/name
	Tries  int       `json:"tries"`
	Next   time.Time `json:"next"`
	Why    string    `json:"why"`
}

// DeviceCount is a number of devices that have these in common.
type DeviceCount struct {
	Manager string `json:"manager"`
	Pool    string `json:"pool,omitempty"` // of prepared ones
	State   string `json:"state"`          // free or prepared
	Count   int    `json:"count"`
}

// VMCount is a number of virtual machines.
type VMCount struct {
	Known int `json:"known"`
	// Differing have another status than they should.
	Differing int `json:"differing"`
}

// LastFault is something that went wrong, last at At.
type LastFault struct {
	At    time.Time `json:"at"`
	First time.Time `json:"first"`
	Count int       `json:"count"`
	// Part tells of it.
	Part string `json:"part,omitempty"`
	Pod  string `json:"pod,omitempty"` // namespace/name
	Text string `json:"text"`
}

// MaxMoving bounds Top.Moving.
const MaxMoving = 100

// ServeTop has the server answer about what happens. It is called before Run.
func (s *Server) ServeTop(v TopView) { s.happens = v }

func (s *Server) top(w http.ResponseWriter, _ *http.Request) {
	if s.happens == nil {
		s.refuse(w, http.StatusNotFound, "this agent does not keep what happened lately")
		return
	}
	n := s.node()
	a := TopAnswer{Head: s.head(n.Name), State: n, Top: s.happens.Top()}
	t := &a.Top
	if len(t.Moving) > MaxMoving {
		t.LeftOut += len(t.Moving) - MaxMoving
		t.Moving = t.Moving[:MaxMoving]
	}
	t.Records, t.Attachments, t.Orphans, t.Plugs = list(t.Records), list(t.Attachments), list(t.Orphans), list(t.Plugs)
	t.Moving, t.Calls, t.Resting, t.Devices, t.Faults = list(t.Moving), list(t.Calls), list(t.Resting), list(t.Devices), list(t.Faults)
	s.answer(w, a)
}

// Top asks for what happens on the node.
func (c *Client) Top(ctx context.Context) (*TopAnswer, error) {
	var a TopAnswer
	return &a, c.get(ctx, "/v1/top", nil, &a, &a.Head)
}
