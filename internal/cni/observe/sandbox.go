// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// Sandbox is the view of one record. Of the record's own view it lacks what is large and
// what only undoing needs: Body.Plan has no attachments and no warnings, plugins have no
// bytes, of a runtimeConfig the path of the device-info file is left.
type Sandbox struct {
	*record.Sandbox
	PodNamespace, PodName, PodUID string
	// Begun is the time of the intent, Changed that of the last line.
	Begun, Changed time.Time
	// Dead: the record is of an earlier boot. Its sandbox is gone, it waits to be undone.
	Dead bool
	// Undoing: undoing was begun, by DEL or after a failed ADD, and nothing after it.
	Undoing bool
	// Torn: the last line was not written to its end. It counts as not written.
	Torn bool
	// Steps say for each attachment what happened to it last.
	Steps []Step
}

// Step is what happened to an attachment last.
type Step struct {
	Op     journal.Op // "" = nothing yet
	Since  time.Time
	Plugin string // type of the plugin that runs, with journal.Started
}

// Answered says whether every attachment was made and has its result, which is so before
// the whole ADD is over.
func (s *Sandbox) Answered() bool {
	for i := range s.Attachments {
		if a := &s.Attachments[i]; !a.Done || len(a.Result) == 0 {
			return false
		}
	}
	return !s.Undoing && len(s.Attachments) > 0
}

// pluginType is the type of a plugin of an attachment, "" when there is no such.
func (s *Sandbox) pluginType(item, plugin int) string {
	if item < 0 || item >= len(s.Attachments) {
		return ""
	}
	if all := s.Attachments[item].Conf.Plugins; plugin >= 0 && plugin < len(all) {
		return all[plugin].Type
	}
	return ""
}

// lastPlugin is the number of an attachment's last plugin.
func (s *Sandbox) lastPlugin(item int) int {
	if item < 0 || item >= len(s.Attachments) {
		return 0
	}
	return len(s.Attachments[item].Conf.Plugins) - 1
}

// view makes the view of a state that has an intent.
func view(st journal.State, boot string) (*Sandbox, error) {
	decoded, err := record.Decode(st, boot)
	if err != nil {
		return nil, err
	}
	first := st.Intents[0]
	p := &decoded.Body.Plan
	s := &Sandbox{
		Sandbox: decoded, PodNamespace: p.PodNamespace, PodName: p.PodName, PodUID: cmp.Or(p.PodUID, first.PodUID),
		Begun: first.Time, Changed: first.Time, Dead: decoded.Boot != boot,
		Steps: make([]Step, len(decoded.Attachments)),
	}
	if len(st.Phases) > 0 {
		s.Changed = st.Phases[len(st.Phases)-1].Time
	}
	s.trim()
	for _, phase := range st.Phases {
		s.follow(phase)
	}
	return s, nil
}

func (s *Sandbox) follow(p journal.Phase) {
	switch {
	case p.Item == journal.WholeCall:
		s.Undoing = p.Phase == journal.Undoing
	case p.Item < 0 || p.Item >= len(s.Steps):
	case p.Phase == journal.Started:
		s.Steps[p.Item].Plugin = s.pluginType(p.Item, p.Plugin)
	case p.Phase == journal.Displacing: // a part of what goes on, or of what another item does
	default:
		s.Steps[p.Item] = Step{Op: p.Phase, Since: p.Time}
	}
}

// trim lets go of what is large. Strings are copied where they may be parts of larger ones.
func (s *Sandbox) trim() {
	b := &s.Body
	b.Plan = plan.Plan{PodNamespace: b.Plan.PodNamespace, PodName: b.Plan.PodName, PodUID: b.Plan.PodUID}
	b.Sandbox.Args, b.Sandbox.Path, b.Taken = "", "", nil
	for i := range s.Attachments {
		a := &s.Attachments[i]
		a.Args = ""
		info, ok := a.RuntimeConfig[devices.InfoCapability]
		a.RuntimeConfig = nil
		if ok {
			a.RuntimeConfig = map[string]json.RawMessage{devices.InfoCapability: info}
		}
		for j := range a.Conf.Plugins {
			p := &a.Conf.Plugins[j]
			p.Conf, p.Capabilities = nil, nil
		}
	}
}

// torn says whether a record's file ends in the middle of a line.
func torn(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

func compareKeys(a, b journal.Key) int { return strings.Compare(string(a), string(b)) }
