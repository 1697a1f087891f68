// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/cni/wire"
)

// Status is the network-status of one ADD: entries of its own, and how to tell them from
// those that other writers of the annotation made. It does not change.
type Status struct {
	own                  []netstatus.Entry
	networks, interfaces map[string]bool
	gone                 map[Name]bool
	silent               bool // there is no sandbox: an annotation without such entries is right, whatever else it is
}

// Name is by what an entry of an earlier sandbox is known again.
type Name struct{ Network, Interface string }

// NamesOf names the entries that attachments have, and those that they had if their results
// cannot be read.
func NamesOf(made []wire.ReportAttachment) []Name {
	var names []Name
	for _, a := range made {
		names = append(names, Name{a.Network, a.IfName})
		own, err := entries([]wire.ReportAttachment{a})
		if err != nil {
			continue
		}
		for _, e := range own {
			names = append(names, Name{e.Name, e.Interface})
		}
	}
	return names
}

// StatusOf makes the status of the attachments that were made, in plan order. Of former ones,
// which were detached, there are no entries, and old ones are not taken for other writers'.
// The error is a *fault.Fault that names the network whose result cannot be read.
func StatusOf(made []wire.ReportAttachment, former ...wire.ReportAttachment) (*Status, error) {
	own, err := entries(made)
	if err != nil {
		return nil, err
	}
	s := statusOf(made, own)
	for _, a := range former {
		s.networks[a.Network], s.interfaces[a.IfName] = true, true
	}
	return s, nil
}

// Withdrawn is the status of a pod that has no sandbox: it has no entries, and what is left
// of earlier ones goes out.
func Withdrawn(gone []Name) *Status {
	s := statusOf(nil, nil).Without(gone)
	s.silent = true
	return s
}

// Without is the same of a pod whose earlier sandboxes had these entries, which are not
// another writer's. Unlike a network or interface that this ADD has, such an entry goes by both its
// names: either of them may be another writer's by now.
func (s *Status) Without(gone []Name) *Status {
	next := *s
	next.gone = make(map[Name]bool, len(gone))
	for _, name := range gone {
		next.gone[name] = true
	}
	return &next
}

func statusOf(made []wire.ReportAttachment, own []netstatus.Entry) *Status {
	s := &Status{own: own, networks: map[string]bool{}, interfaces: map[string]bool{}}
	for _, a := range made {
		s.networks[a.Network], s.interfaces[a.IfName] = true, true
	}
	for _, e := range own {
		s.interfaces[e.Interface] = true
	}
	delete(s.interfaces, "") // an entry without interface is nobody's by that
	return s
}

// Merge makes the network-status annotation: the entries of this ADD, in plan
// order, and after them those of old that are somebody else's, byte for byte but for
// spacing. Of this ADD is what bears the name of one of its networks or of one of its
// interfaces: an earlier sandbox of the same pod had those. An old value that is no
// list of entries is replaced. One that says all that already is given as it is.
func (s *Status) Merge(old string) string {
	if s.In(old) {
		return old
	}
	_, others, _ := s.split(old)
	if len(others) == 0 {
		return netstatus.Encode(s.own)
	}
	all := make([]any, 0, len(s.own)+len(others))
	for _, e := range s.own {
		all = append(all, e)
	}
	for _, raw := range others {
		all = append(all, raw)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ") // as netstatus.Encode
	_ = enc.Encode(all)       // valid JSON and plain values to memory: cannot fail
	return string(bytes.TrimSpace(b.Bytes()))
}

// In says whether an annotation says what Merge would make of it: all entries of this ADD
// in their order, none that they replace, and nothing that is no entry. Spacing, the
// order of keys, and where the entries of others stand do not matter.
func (s *Status) In(annotation string) bool {
	replaced, _, whole := s.split(annotation)
	if s.silent {
		return len(replaced) == 0
	}
	if !whole || len(replaced) != len(s.own) {
		return false
	}
	for i, e := range s.own {
		b, err := json.Marshal(e)
		if err != nil || !reflect.DeepEqual(decoded(b), decoded(replaced[i])) {
			return false
		}
	}
	return true
}

// split divides the entries of an annotation into those that this ADD's replace, and those
// of others. whole: it is a list, and every element is one of them.
func (s *Status) split(annotation string) (replaced, others []json.RawMessage, whole bool) {
	var all []json.RawMessage
	if json.Unmarshal([]byte(annotation), &all) != nil || all == nil {
		return nil, nil, false
	}
	whole = true
	for _, raw := range all {
		var e struct {
			Name      string `json:"name"`
			Interface string `json:"interface"`
		}
		switch {
		case json.Unmarshal(raw, &e) != nil || e.Name == "":
			whole = false
		case s.networks[e.Name] || s.interfaces[e.Interface] || s.gone[Name{e.Name, e.Interface}]:
			replaced = append(replaced, raw)
		default:
			others = append(others, raw)
		}
	}
	return replaced, others, whole
}

// decoded is a JSON value for comparison: numbers as they are written.
func decoded(b []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	_ = d.Decode(&v) // it was valid when it was taken out of its list
	return v
}

// entries makes the network-status of the attachments that were made.
func entries(made []wire.ReportAttachment) ([]netstatus.Entry, error) {
	var p plan.Plan
	rs := make([]*results.Result, len(made))
	infos := make([]json.RawMessage, len(made))
	for i, a := range made {
		p.Attachments = append(p.Attachments, plan.Attachment{Network: a.Network, IfName: a.IfName, Default: a.Default})
		infos[i] = a.DeviceInfo
		if len(a.Result) == 0 {
			continue
		}
		var err error
		if rs[i], err = results.Parse(a.Result, a.CNIVersion); err != nil {
			return nil, &fault.Fault{Code: fault.Result, Object: "network " + a.Network, Text: err.Error(), Err: err}
		}
	}
	return netstatus.Build(p, rs, infos), nil
}
