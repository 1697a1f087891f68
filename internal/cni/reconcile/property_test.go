// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/cni/observe"
)

// model is what the property test knows beside the rig: why a write may happen, and what
// others wrote.
type model struct {
	*rig
	rt     *rapid.T
	stop   func()
	n      int // sandboxes so far
	causes int // what may cost a write each
	lives  map[string][]*observe.Sandbox
	others map[string][]string // entries of others by pod
	grace  int                 // writes that landed although the client was told otherwise
	blind  map[string]bool     // pods of which entries may be left: who remembered them ended, or the pod seemed to
}

// TestProperty: whatever order records and pods appear and vanish in, whatever other
// writers do and however writes fail: at rest every living pod has its own entries and
// others', and no more was written than there were reasons for.
func TestProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var broke any // rapid ends a check by a panic, which must not end the bubble's goroutine
		synctest.Test(t, func(t *testing.T) {
			m := &model{rig: newRig(t), rt: rt, lives: map[string][]*observe.Sandbox{}, others: map[string][]string{}, blind: map[string]bool{}}
			m.stop = m.run()
			defer func() { m.stop() }()
			defer func() { broke = recover() }()
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				m.step()
			}
			m.rest()
		})
		if broke != nil {
			panic(broke)
		}
	})
}

func (m *model) step() {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(m.rt, "pod")
	lives := m.lives[name]
	last := len(lives) - 1
	switch rapid.IntRange(0, 16).Draw(m.rt, "action") {
	case 0, 1: // the runtime begins a sandbox
		m.n++
		m.causes++ // when it is over
		m.pass(time.Millisecond)
		s := sandbox(fmt.Sprint("c", m.n), name, "uid-"+name, fmt.Sprintf("10.0.0.%d/24", m.n),
			rapid.SampledFrom([][]string{nil, {"default/netb"}, {"default/netc", "default/netb"}}).Draw(m.rt, "networks")...)
		m.lives[name] = append(lives, s)
		m.put(s)
	case 2, 3: // its ADD reports
		if last >= 0 && lives[last].Answered() {
			m.reported(lives[last])
		}
	case 4, 5: // and is over
		if last >= 0 && lives[last].Answered() {
			lives[last] = finished(lives[last])
			m.put(lives[last])
		}
	case 6: // it is begun to be undone
		if last >= 0 {
			lives[last] = undone(lives[last])
			m.put(lives[last])
		}
	case 7: // any of them goes; then an earlier one may count
		if last >= 0 {
			i := rapid.IntRange(0, last).Draw(m.rt, "which")
			m.drop(lives[i])
			m.lives[name] = slices.Delete(lives, i, i+1)
			m.causes++
		}
	case 8: // the pod appears
		m.causes++
		m.set(name, func(p *pod) { p.uid = "uid-" + name })
	case 9: // it ends, or not
		m.causes++
		m.blind[name] = true
		if _, ok := m.known(name); ok {
			m.set(name, func(p *pod) { p.terminal = !p.terminal })
		}
	case 10: // it goes, with what was written to it
		m.remove(name)
		m.others[name], m.blind[name] = nil, true
	case 11: // another writer adds an entry, as it should
		m.otherAdds(name)
	case 12: // another writer drops all that is not its own
		if _, ok := m.known(name); ok {
			m.causes++
			m.set(name, func(p *pod) { p.annotation = "[" + strings.Join(m.others[name], ",") + "]" })
		}
	case 13: // writes fail, landing or not, or take long
		m.fail()
	case 14:
		m.lag(rapid.Bool().Draw(m.rt, "lags"))
	case 15:
		m.pass(time.Duration(rapid.IntRange(0, 100_000).Draw(m.rt, "ms")) * time.Millisecond)
	case 16: // the agent is replaced; what it remembered is lost, and its cache is new
		m.stop()
		m.lag(false)
		m.blind["a"], m.blind["b"] = true, true
		m.anew()
		m.stop = m.run()
	}
	if rapid.Bool().Draw(m.rt, "settles") {
		synctest.Wait()
	}
}

// reported has an ADD report, and waits as the hands do.
func (m *model) reported(s *observe.Sandbox) {
	if res := m.Report(m.t.Context(), reportOf(s)); !res.Done && !s.Undoing {
		m.rt.Fatalf("answer %+v", res.Error)
	}
}

func (m *model) otherAdds(name string) {
	p, ok := m.known(name)
	if !ok {
		return
	}
	entry := fmt.Sprintf(`{"name":"x/hot%d","interface":"hot%d"}`, len(m.others[name]), len(m.others[name]))
	m.others[name] = append(m.others[name], entry)
	var all []json.RawMessage
	_ = json.Unmarshal([]byte(p.annotation), &all) // "" is none
	at := rapid.IntRange(0, len(all)).Draw(m.rt, "place")
	b, err := json.Marshal(slices.Insert(all, at, json.RawMessage(entry)))
	if err != nil {
		m.rt.Fatal(err)
	}
	// Its place among its own must stay the order in which it was written.
	m.others[name] = othersIn(m.rt, string(b))
	m.set(name, func(p *pod) { p.annotation = string(b) })
}

func (m *model) fail() {
	kind := rapid.IntRange(0, 4).Draw(m.rt, "failure")
	slow := time.Duration(rapid.SampledFrom([]int{0, 100, 3000, 20_000}).Draw(m.rt, "slow")) * time.Millisecond
	m.switchTo(func() {
		m.fault, m.lands, m.slow = nil, kind == 2, slow
		switch kind {
		case 1, 2:
			m.fault = func(string) error {
				if m.lands {
					m.grace++
				}
				return errAPI
			}
		case 3:
			m.fault = func(string) error { return ErrForbidden }
		case 4:
			m.fault = func(string) error { return tooMany{time.Second} }
		}
	})
}

// rest ends all that is in the way, and checks what there is then.
func (m *model) rest() {
	m.switchTo(func() { m.fault, m.lands, m.slow = nil, false, 0 })
	m.lag(false)
	m.pass(150 * time.Second) // longer than any rest; resync, which would mend the rest, comes every 5 minutes
	for name, p := range m.api {
		lives := m.lives[name]
		m.nothingStale(name, p.annotation)
		if p.terminal || len(lives) == 0 || !lives[len(lives)-1].Finished {
			continue
		}
		s := lives[len(lives)-1]
		status, err := m.status(s, nil)
		if err != nil {
			m.rt.Fatal(err)
		}
		if !status.In(p.annotation) {
			m.rt.Fatalf("network-status of %s is %s", name, p.annotation)
		}
		if d := cmp.Diff(m.others[name], othersIn(m.rt, p.annotation)); d != "" {
			m.rt.Fatalf("others' entries of %s: %s", name, d)
		}
	}
	writes := m.written()
	if limit := m.causes + m.grace; writes > limit {
		m.rt.Fatalf("%d writes for %d reasons", writes, limit)
	}
	m.pass(time.Hour)
	if again := m.written(); again != writes {
		m.rt.Fatalf("%d writes at rest", again-writes)
	}
	if n, _ := m.Lag(); n != 0 {
		m.rt.Fatalf("%d pods wait at rest", n)
	}
}

// nothingStale: every entry is of a sandbox that is there, or another's.
func (m *model) nothingStale(name, annotation string) {
	if m.blind[name] || annotation == "" {
		return
	}
	ours := map[any]bool{}
	for _, s := range m.lives[name] {
		for i := range s.Attachments {
			ours[s.Attachments[i].Network] = true
		}
	}
	for _, e := range parsed(m.t, annotation) {
		network := e.(map[string]any)["name"]
		if !ours[network] && !strings.HasPrefix(network.(string), "x/") {
			m.rt.Fatalf("network-status of %s has %v, sandboxes have %v", name, e, ours)
		}
	}
}

// othersIn lists the entries of others in an annotation.
func othersIn(rt *rapid.T, annotation string) []string {
	var all []map[string]any
	if annotation != "" {
		if err := json.Unmarshal([]byte(annotation), &all); err != nil {
			rt.Fatal(err)
		}
	}
	var out []string
	for _, e := range all {
		if name, _ := e["name"].(string); strings.HasPrefix(name, "x/") {
			out = append(out, fmt.Sprintf(`{"name":"%s","interface":"%s"}`, name, e["interface"]))
		}
	}
	return out
}
