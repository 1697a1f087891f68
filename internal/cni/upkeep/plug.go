// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/selection"
)

// plugged is what is kept of a pod's sandbox between two looks.
type plugged struct {
	rest
	asked string // the annotation of the last look that came to an end
}

// Wake says that pods or records changed. It is quick.
func (k *Keeper) Wake() { k.wake.Raise() }

// Plugs says how many orders to change running pods there were, by what came of them.
func (k *Keeper) Plugs() map[string]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.plugs)
}

// RunPlug has running pods follow their annotations until ctx ends.
func (k *Keeper) RunPlug(ctx context.Context) error { return k.every(ctx, k.wake, k.follow) }

// follow gives an order for every pod whose annotation asks for other networks than its
// newest sandbox has, unless it rests.
func (k *Keeper) follow(ctx context.Context) {
	there := map[name]bool{}
	for _, s := range newest(k.opts.Records.Sandboxes()) {
		n := name{s.Key, s.Begun}
		there[n] = true
		if ctx.Err() != nil || !s.Finished || s.Undoing || s.Body.Host == "" {
			continue
		}
		if asked, ok := k.opts.Asked(refOf(s)); ok { // otherwise it is not known yet, or ends
			if p := k.due(n, s, asked); p != nil {
				k.plug(ctx, s, p)
			}
		}
	}
	maps.DeleteFunc(k.pods, func(n name, _ *plugged) bool { return !there[n] && ctx.Err() == nil })
}

// due gives what is known of a pod for which an order is to be given now.
func (k *Keeper) due(n name, s *observe.Sandbox, asked string) *plugged {
	p := k.pods[n]
	switch {
	case p == nil:
		p = &plugged{asked: asked}
		k.pods[n] = p
	case p.asked != asked:
		p.rest = rest{}
		p.asked = asked
		return p
	case p.tries > 0:
		if time.Now().Before(p.until) {
			return nil
		}
		return p
	}
	if follows(s, asked) {
		return nil
	}
	return p
}

// newest gives the newest sandbox of each pod, of those of this boot.
func newest(all []*observe.Sandbox) []*observe.Sandbox {
	by := map[string]*observe.Sandbox{}
	for _, s := range all {
		if s.Dead || s.PodUID == "" || s.PodName == "" {
			continue
		}
		if was := by[s.PodUID]; was == nil || observe.Older(was, s) < 0 {
			by[s.PodUID] = s
		}
	}
	var out []*observe.Sandbox
	for _, uid := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[uid])
	}
	return out
}

func refOf(s *observe.Sandbox) planner.PodRef {
	return planner.PodRef{Namespace: s.PodNamespace, Name: s.PodName, UID: s.PodUID}
}

// follows says whether a sandbox has the very networks that an annotation asks for, by what
// tells one from another, and nothing half made. An annotation that is invalid is never
// followed: the order for it tells the pod's owner why.
func follows(s *observe.Sandbox, asked string) bool {
	elements, _, err := selection.Lenient(asked)
	if err != nil {
		return false
	}
	var want, have []string
	for _, e := range elements {
		namespace := e.Namespace
		if namespace == "" {
			namespace = s.PodNamespace
		}
		want = append(want, namespace+"/"+e.Name+"@"+e.Interface)
	}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		switch {
		case a.Pending() && !a.Done:
			return false
		case a.Selected && a.Done && !a.Undone:
			have = append(have, a.Network+"@"+a.Asked)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	return slices.Equal(want, have)
}

// plug gives the order for one pod, and tells its owner what did not come of it.
func (k *Keeper) plug(ctx context.Context, s *observe.Sandbox, p *plugged) {
	answer, err := k.opts.Hands.Do(ctx, s.Body.Host, apply.Order{Task: apply.Plug, Key: s.Key, Begun: s.Begun})
	if ctx.Err() != nil {
		return // the next agent does it
	}
	outcome, said := string(answer.Outcome), answer.Reason
	switch {
	case err != nil:
		outcome, said = "failed", err.Error()
	case len(answer.Failed) > 0:
		outcome, said = "failed", strings.Join(answer.Failed, "; ")
	}
	k.mu.Lock()
	k.plugs[outcome]++
	k.mu.Unlock()
	pod := s.PodNamespace + "/" + s.PodName
	if len(answer.Attached)+len(answer.Detached) > 0 {
		k.log.Info("running pod is changed", "pod", pod, "attached", answer.Attached, "detached", answer.Detached)
	}
	if len(answer.Changed) > 0 {
		k.opts.Tell(refOf(s), planner.Event{Reason: planner.ReasonQuestioned, Message: bounded(strings.Join(answer.Changed, "; "))})
	}
	if outcome == string(apply.Done) || outcome == string(apply.Gone) {
		p.rest = rest{}
		return
	}
	p.until = time.Now().Add(min(firstRest<<min(p.tries, 16), lastRest))
	p.tries++
	if len(answer.Failed) > 0 || err != nil {
		k.opts.Tell(refOf(s), planner.Event{Reason: planner.ReasonFailed, Message: bounded(said)})
	}
	if p.said != outcome+said {
		p.said = outcome + said
		k.log.Warn("running pod does not follow its annotation, tried again", "pod", pod, "outcome", outcome, "reason", said)
	}
}

// maxMessage bounds an event's message, in bytes.
const maxMessage = 1 << 10

func bounded(text string) string { return fault.Bound(text, maxMessage) }
