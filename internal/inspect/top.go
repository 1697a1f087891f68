// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
)

// happens is an agent that says what happens; *debug.Client is one.
type happens interface {
	Top(ctx context.Context) (*debug.TopAnswer, error)
}

// AgentTop asks an agent for what happens on its node.
func AgentTop(ctx context.Context, a happens) (*TopState, error) {
	answer, err := a.Top(ctx)
	if err != nil {
		return nil, err
	}
	return &TopState{*answer}, nil
}

// TopState is what top shows: the agent's answer.
type TopState struct {
	debug.TopAnswer
}

// TopFrame is one picture of top.
type TopFrame struct {
	Now *TopState // nil: nobody ever answered
	// Before is the answer before this one, for rates; nil: there are none.
	Before *TopState
	// Away is why nobody answers now; Now is old then.
	Away error
	// Width and Height bound the picture; 0 = it is as large as it has to be.
	Width, Height int
	Colour        bool
}

// WriteTable prints the state, all of it.
func (s *TopState) WriteTable(w io.Writer) error {
	p := page{w: w}
	for _, line := range (TopFrame{Now: s}).Lines() {
		p.line("%s", line)
	}
	return p.err
}

// The ways in which a line is shown.
const (
	plain = ""
	head  = "\x1b[1m"
	bad   = "\x1b[31m"
	calm  = "\x1b[2m"
	reset = "\x1b[0m"
)

// topLine is a line of a picture.
type topLine struct{ text, look string }

// section is a part of a picture that may be shown in part. The first line is its heading.
type section struct {
	lines []topLine
	more  int // that it has beyond these
}

// Lines draws the picture: it cuts what is too long or too much, and says how much, and whatever
// the texts hold that pods wrote, a line is printable ASCII between the codes of its colour.
func (f TopFrame) Lines() []string {
	var all []topLine
	if f.Away != nil {
		all = append(all, topLine{"agent away, asked again: " + f.Away.Error(), bad})
	}
	if f.Now != nil {
		all = append(all, f.summary()...)
		sections := []section{f.faults(), f.moving(), f.calls(), f.resting()}
		rooms := share(f.Height-len(all), f.Height == 0, sections)
		for i, s := range sections {
			all = append(all, s.cut(rooms[i])...)
		}
	}
	if f.Height > 0 && len(all) > f.Height {
		all = all[:f.Height]
	}
	out := make([]string, len(all))
	for i, l := range all {
		text := asciiOnly(l.text)
		if f.Width > 0 && len(text) > f.Width {
			text = text[:f.Width]
		}
		if f.Colour && l.look != plain && text != "" {
			text = l.look + text + reset
		}
		out[i] = text
	}
	return out
}

// share gives each section its lines, an empty one before it among them. What there is is dealt
// out in turns, so that a long one takes no room from a short one.
func share(room int, endless bool, sections []section) []int {
	rooms := make([]int, len(sections))
	for turn := true; turn; {
		turn = false
		for i, s := range sections {
			want := len(s.lines) + 1
			if len(s.lines) == 0 || rooms[i] == want {
				continue
			}
			step := 1
			if rooms[i] == 0 {
				step = min(3, want) // the empty line, the heading and a line
			}
			if endless || room >= step {
				rooms[i], room, turn = rooms[i]+step, room-step, true
			}
		}
	}
	return rooms
}

// cut gives so many lines of a section, the last of which says what is left out.
func (s section) cut(room int) []topLine {
	if room < 2 {
		return nil
	}
	lines, more := s.lines, s.more
	if left := len(lines) - (room - 1); left > 0 {
		lines, more = lines[:room-1], more+left
	}
	out := append([]topLine{{}}, lines...)
	if more > 0 {
		out[1].text += fmt.Sprintf("  (%d more)", more)
	}
	return out
}

// asciiOnly is s with everything else than printable ASCII quoted: escape sequences, line
// breaks, and characters whose width a terminal may see otherwise.
func asciiOnly(s string) string {
	quoted := strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
	if !quoted {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case ' ' <= r && r <= '~':
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// summary is what is always shown.
func (f TopFrame) summary() []topLine {
	n, t := &f.Now.State, &f.Now.Top
	ready := topLine{fmt.Sprintf("node %s  ready", n.Name), head}
	for _, c := range n.Conditions {
		if !c.OK {
			ready = topLine{fmt.Sprintf("node %s  not ready: %s: %s", n.Name, c.Name, cmp.Or(c.Why, "not yet")), bad}
			break
		}
	}
	if n.Ready != (ready.look == head) { // conditions of another version may be missing
		ready = topLine{fmt.Sprintf("node %s  not ready", n.Name), bad}
	}
	ready.text += fmt.Sprintf("  agent %s, up %s", cmp.Or(n.Versions.Agent, "unknown"), age(f.Now.Now, n.Started))
	if f.Width > 0 { // of one that is drawn again it is seen whether it stands still
		ready.text += f.Now.Now.UTC().Format(", at 15:04:05")
	}
	lines := []topLine{ready, f.lanes(), {"records      " + countsText(t.Records) + quarantine(t.Records), lookOf(n.Counts.Quarantined > 0)}}
	lines = append(lines,
		topLine{"attachments  " + countsText(t.Attachments) + fmt.Sprintf("; %s to be written", statuses(n.Counts.PendingStatus)), plain},
		topLine{fmt.Sprintf("background   orphans: %s; hot-plug: %s; %d waiting to be undone", countsText(t.Orphans), countsText(t.Plugs), len(t.Resting)), lookOf(len(t.Resting) > 0)},
	)
	if t.Driver {
		lines = append(lines, topLine{"devices      " + devicesText(t.Devices), plain})
	}
	if t.VMs != nil {
		lines = append(lines, topLine{fmt.Sprintf("machines     %d, %d with another status than they should have", t.VMs.Known, t.VMs.Differing), plain})
	}
	return lines
}

func lookOf(wrong bool) string {
	if wrong {
		return bad
	}
	return plain
}

func (f TopFrame) lanes() topLine {
	l := f.Now.Top.Lanes
	if l.Fault != "" {
		return topLine{"lanes        cannot be seen: " + l.Fault, bad}
	}
	bar := strings.Repeat("#", within(l.InUse)) + strings.Repeat(".", within(l.Limit-l.InUse))
	text := fmt.Sprintf("lanes        [%s] %d of %d in use, %d kept for DEL; waiting: %d, DEL %d", bar, l.InUse, l.Limit, l.Kept, l.Waiting, l.WaitingUrgent)
	return topLine{text, plain}
}

// within is a length of a bar.
func within(n int) int { return min(max(n, 0), 64) }

// quarantine names the command that says more.
func quarantine(records []debug.Count) string {
	for _, c := range records {
		if c.Name == "quarantined" || c.Name == "corrupt" {
			return "  (weft doctor says more)"
		}
	}
	return ""
}

func countsText(all []debug.Count) string {
	if len(all) == 0 {
		return "none"
	}
	parts := make([]string, len(all))
	for i, c := range all {
		parts[i] = fmt.Sprintf("%d %s", c.Count, strings.ReplaceAll(c.Name, "_", "-"))
	}
	return strings.Join(parts, ", ")
}

func devicesText(all []debug.DeviceCount) string {
	if len(all) == 0 {
		return "none"
	}
	parts := make([]string, len(all))
	for i, d := range all {
		parts[i] = fmt.Sprintf("%s %d %s", d.Manager, d.Count, d.State)
		if d.Pool != "" {
			parts[i] += " of " + d.Pool
		}
	}
	return strings.Join(parts, ", ")
}

func (f TopFrame) faults() section {
	all := f.Now.Top.Faults
	if len(all) == 0 {
		return section{}
	}
	rows := [][]string{{"LAST FAULTS", "TIMES", "PART", "POD", "WHAT"}}
	for _, e := range all {
		rows = append(rows, []string{agoOrNever(f.Now.Now, e.At), fmt.Sprint(e.Count), dash(e.Part), dash(e.Pod), e.Text})
	}
	return columns(rows, 0, func(int) string { return bad })
}

func (f TopFrame) moving() section {
	all := f.Now.Top.Moving
	if len(all) == 0 {
		return section{}
	}
	rows := [][]string{{"ATTACHMENTS", "SINCE", "POD", "INTERFACE", "NETWORK", "RUNS"}}
	for _, m := range all {
		phase := string(m.Phase)
		if m.Dead {
			phase += ", gone"
		}
		rows = append(rows, []string{
			phase, age(f.Now.Now, m.Since), dash(strings.TrimPrefix(m.Namespace+"/"+m.Pod, "/")), dash(m.Interface), dash(m.Network),
			dash(cmp.Or(m.Plugin, m.Device)),
		})
	}
	return columns(rows, f.Now.Top.LeftOut, func(i int) string {
		if all[i].Dead {
			return bad
		}
		return plain
	})
}

func (f TopFrame) calls() section {
	all := f.Now.Top.Calls
	if len(all) == 0 {
		return section{}
	}
	rows := [][]string{{"CALLS", "LAST MINUTE", "FAILED", "P50", "P99", "PER SECOND", "EVER", "FAILED"}}
	for _, c := range all {
		lately := fmt.Sprint(c.Count)
		if c.Seconds > 0 && c.Seconds < 60 { // more than are kept
			lately = fmt.Sprintf("%d in %.0fs", c.Count, c.Seconds)
		}
		rows = append(rows, []string{
			c.Name, lately, fmt.Sprint(c.Failed), seconds(c.Count, c.P50), seconds(c.Count, c.P99), f.rate(c), fmt.Sprint(c.Total), fmt.Sprint(c.TotalFailed),
		})
	}
	return columns(rows, 0, func(i int) string { return lookOf(all[i].Failed > 0) })
}

func seconds(count int, s float64) string {
	switch {
	case count == 0:
		return "-"
	case s < 1:
		return fmt.Sprintf("%.1fms", 1000*s)
	}
	return fmt.Sprintf("%.2fs", s)
}

// rate is how many calls there were a second since the answer before; "-" when that is not
// known: there was none, or it is another agent's.
func (f TopFrame) rate(c debug.Calls) string {
	if f.Before == nil || !f.Before.State.Started.Equal(f.Now.State.Started) {
		return "-"
	}
	took := f.Now.Now.Sub(f.Before.Now).Seconds()
	var before uint64
	for _, b := range f.Before.Top.Calls {
		if b.Name == c.Name {
			before = b.Total
		}
	}
	if took <= 0 || before > c.Total {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(c.Total-before)/took)
}

func (f TopFrame) resting() section {
	all := f.Now.Top.Resting
	if len(all) == 0 {
		return section{}
	}
	rows := [][]string{{"TO BE UNDONE", "POD", "TRIES", "NEXT IN", "WHY"}}
	for _, r := range all {
		rows = append(rows, []string{r.Record, dash(r.Pod), fmt.Sprint(r.Tries), age(r.Next, f.Now.Now), r.Why})
	}
	return columns(rows, 0, func(int) string { return bad })
}

// columns is a section of rows in columns, the first of which is the heading.
func columns(rows [][]string, more int, look func(row int) string) section {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i := range row {
			row[i] = asciiOnly(row[i])
			widths[i] = max(widths[i], len(row[i]))
		}
	}
	s := section{more: more}
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			fmt.Fprintf(&b, "%-*s  ", widths[j], cell)
		}
		l := topLine{text: strings.TrimRight(b.String(), " "), look: head}
		if i > 0 {
			l.look = look(i - 1)
		}
		s.lines = append(s.lines, l)
	}
	return s
}

// Topper gives what draws the state of an agent, for a terminal of a size: each time it asks
// anew. An agent that is away is told; one that refuses is an error.
func Topper(a happens, limit time.Duration, colour bool) func(ctx context.Context, width, height int) ([]string, error) {
	f := TopFrame{Colour: colour}
	return func(ctx context.Context, width, height int) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		s, err := AgentTop(ctx, a)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil, err
		case err == nil:
			f.Before, f.Now = f.Now, s
		}
		f.Away, f.Width, f.Height = err, width, height
		return f.Lines(), nil
	}
}
