// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/agent/debug"
)

var updateTop = flag.Bool("update", false, "write the pictures of top")

// topOf is a node on which much happens.
func topOf() *TopState {
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	return &TopState{debug.TopAnswer{
		Head: debug.Head{Version: 1, Node: "worker-1", Now: at},
		State: debug.Node{
			Name: "worker-1", Ready: true, Started: ago(5 * time.Hour), Versions: debug.Versions{Agent: "v0.2.0"},
			Conditions: []debug.Condition{{Name: "cachesSynced", OK: true}}, Counts: debug.Counts{PendingStatus: 1, Quarantined: 2},
		},
		Top: debug.Top{
			Lanes:       debug.Lanes{Limit: 8, Kept: 2, InUse: 3, Waiting: 4, WaitingUrgent: 1},
			Records:     []debug.Count{{Name: "finished", Count: 11}, {Name: "half_done", Count: 1}, {Name: "quarantined", Count: 2}},
			Attachments: []debug.Count{{Name: "attempting", Count: 1}, {Name: "done", Count: 22}},
			Moving: []debug.Moving{
				{Namespace: "web", Pod: "gone", Interface: "net1", Network: "web/a", Phase: debug.PhaseUndoing, Since: ago(3 * time.Hour), Dead: true},
				{Namespace: "web", Pod: "front-0", Interface: "net1", Network: "web/storage", Phase: debug.PhaseAttempting, Since: ago(2 * time.Second), Plugin: "macvlan"},
				{Namespace: "web", Pod: "front-1", Interface: "net1", Network: "web/storage", Phase: debug.PhaseDone, Since: ago(4 * time.Second), Device: "0000:03:00.1"},
				{Namespace: "web", Pod: "front-1", Interface: "eth0", Network: "pods", Phase: debug.PhaseDone, Since: ago(5 * time.Second)},
			},
			LeftOut: 19,
			Calls: []debug.Calls{
				{Name: "ADD", Total: 120, TotalFailed: 3, Seconds: 60, Count: 40, Failed: 1, P50: 0.0213, P99: 1.5, Max: 1.5},
				{Name: "ADD macvlan", Total: 100, TotalFailed: 1, Seconds: 12.4, Count: 2048, P50: 0.004, P99: 0.0049},
				{Name: "DEL", Total: 7},
			},
			Orphans: []debug.Count{{Name: "done", Count: 2}, {Name: "failed", Count: 5}},
			Resting: []debug.Resting{{Record: "c2-eth0", Pod: "web/gone", Tries: 5, Next: at.Add(90 * time.Second), Why: "failed: macvlan: device is busy"}},
			Driver:  true,
			Devices: []debug.DeviceCount{{Manager: "dummy", State: "free", Count: 2}, {Manager: "sr-iov", Pool: "fast", State: "prepared", Count: 1}},
			VMs:     &debug.VMCount{Known: 3, Differing: 1},
			Faults: []debug.LastFault{
				{At: ago(2 * time.Second), First: ago(time.Minute), Count: 3, Part: "plan", Pod: "web/front-2", Text: "network web/missing: there is no such network"},
				{At: ago(time.Minute), First: ago(time.Minute), Count: 1, Part: "upkeep", Text: "orphan is not undone, looked at again: failed"},
			},
		},
	}}
}

// before is the same node ten seconds earlier.
func before(started time.Time) *TopState {
	s := topOf()
	s.Now, s.State.Started = at.Add(-10*time.Second), started
	s.Top.Calls = []debug.Calls{{Name: "ADD", Total: 95}, {Name: "ADD macvlan", Total: 200}}
	return s
}

func TestTopPictures(t *testing.T) {
	hostile := topOf()
	hostile.Top.Faults = []debug.LastFault{{At: at, Count: 1, Part: "plan", Pod: "web/x\x1b]0;owned\a", Text: "\x1b[2J\x1b[1;1Hroot# ünïcode \u202e\r\n" + string([]byte{0xff})}}
	hostile.Top.Moving, hostile.Top.Calls, hostile.Top.Resting = nil, nil, nil
	broken := topOf()
	broken.State.Ready, broken.State.Conditions = false, []debug.Condition{{Name: "primaryConf", Why: "no configuration in /etc/cni/net.d"}}
	broken.Top = debug.Top{Lanes: debug.Lanes{Fault: "look at lanes: permission denied"}}
	away := fmt.Errorf("ask agent at /run/weft/debug.sock: %w", debug.ErrAway)
	for name, f := range map[string]TopFrame{
		"whole":     {Now: topOf(), Before: before(topOf().State.Started)},
		"80x24":     {Now: topOf(), Before: before(topOf().State.Started), Width: 80, Height: 24},
		"40x9":      {Now: topOf(), Width: 40, Height: 9},
		"restarted": {Now: topOf(), Before: before(at.Add(-time.Hour * 9)), Width: 120, Height: 40},
		"colour":    {Now: topOf(), Width: 60, Height: 20, Colour: true},
		"hostile":   {Now: hostile, Width: 200, Height: 40, Colour: true},
		"broken":    {Now: broken, Width: 80, Height: 24},
		"away":      {Now: topOf(), Away: away, Width: 80, Height: 8},
		"nobody":    {Away: away, Width: 80, Height: 24},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, line := range f.Lines() { // a code is shown as "^["
				got += strings.ReplaceAll(line, "\x1b", "^[") + "\n"
			}
			path := filepath.Join("testdata", "top", name+".txt")
			if *updateTop {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever the agent says and however small the terminal is, nothing is wider, higher or other
// than what a terminal shows as it stands.
func TestTopKeepsToItsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := topOf()
		text := rapid.String()
		for i := range s.Top.Faults {
			s.Top.Faults[i].Text, s.Top.Faults[i].Pod, s.Top.Faults[i].Part = text.Draw(t, "text"), text.Draw(t, "pod"), text.Draw(t, "part")
		}
		for i := range s.Top.Moving {
			s.Top.Moving[i].Network, s.Top.Moving[i].Interface = text.Draw(t, "network"), text.Draw(t, "interface")
		}
		for range rapid.IntRange(0, 30).Draw(t, "resting") {
			s.Top.Resting = append(s.Top.Resting, debug.Resting{Record: text.Draw(t, "record"), Why: text.Draw(t, "why")})
		}
		s.State.Name, s.Top.Lanes.InUse = text.Draw(t, "node"), rapid.IntRange(-3, 3000).Draw(t, "lanes")
		f := TopFrame{Now: s, Width: rapid.IntRange(1, 200).Draw(t, "width"), Height: rapid.IntRange(1, 60).Draw(t, "height")}
		if rapid.Bool().Draw(t, "away") {
			f.Away = errors.New(text.Draw(t, "error"))
		}
		lines := f.Lines()
		if len(lines) > f.Height {
			t.Fatalf("%d lines on %d", len(lines), f.Height)
		}
		for _, line := range lines {
			if len(line) > f.Width || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("%q does not fit on %d", line, f.Width)
			}
		}
	})
}

// answers are what an agent says, one after the other.
type answers []any

func (a *answers) Top(context.Context) (*debug.TopAnswer, error) {
	next := (*a)[0]
	*a = (*a)[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return &next.(*TopState).TopAnswer, nil
}

// An agent that goes away and comes back is seen to; its rates are of the last two answers.
func TestTopper(t *testing.T) {
	draw := Topper(&answers{debug.ErrAway, before(topOf().State.Started), debug.ErrAway, topOf(), fmt.Errorf("no: %w", fs.ErrPermission)}, time.Second, false)
	for i, want := range []struct {
		away bool
		rate string
	}{{true, ""}, {false, " - "}, {true, " - "}, {false, " 2.5 "}} {
		lines, err := draw(t.Context(), 120, 40)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		if got := strings.Contains(text, "agent away, asked again: no agent listens there"); got != want.away {
			t.Errorf("%d: away %t, want %t:\n%s", i, got, want.away, text)
		}
		if row := grep(lines, "ADD  "); want.rate != "" && !strings.Contains(row, want.rate) {
			t.Errorf("%d: rate in %q, want %q", i, row, want.rate)
		}
	}
	if _, err := draw(t.Context(), 80, 24); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("refused: %v", err)
	}
}

// grep gives the first line that begins with text.
func grep(lines []string, text string) string {
	for _, line := range lines {
		if strings.HasPrefix(line, text) {
			return line
		}
	}
	return ""
}
