// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/kubelet"
	"github.com/weftnet/weft/internal/dra/publish"
)

// Reasons of the conditions.
const (
	ReasonValid         = "Valid"
	ReasonInvalid       = "Invalid"
	ReasonReady         = "Ready"
	ReasonRecovering    = "Recovering"    // what was prepared before is not known yet
	ReasonNotRegistered = "NotRegistered" // the kubelet does not know the driver
	ReasonDevices       = "Devices"       // some devices, pools or PFs are not as configured
)

// maxMessage is what the API allows a condition's message.
const maxMessage = 32 << 10

// view is what conditions are computed from.
type view struct {
	generation   int64
	invalid      error
	recovering   error
	registration kubelet.Status
	problems     map[string]error
	offered      []publish.Problem
}

// conditions says how a configuration stands. Times are left to who writes them.
func conditions(v view) []metav1.Condition {
	accepted := metav1.Condition{
		Type: v2alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: ReasonValid,
		ObservedGeneration: v.generation, Message: "the configuration is in force",
	}
	if v.invalid != nil {
		accepted.Status, accepted.Reason = metav1.ConditionFalse, ReasonInvalid
		accepted.Message = "the last good configuration stays in force: " + v.invalid.Error()
	}
	ready := metav1.Condition{
		Type: v2alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonReady,
		ObservedGeneration: v.generation, Message: "devices are offered",
	}
	not := func(reason, message string) {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	}
	switch problems := v.list(); {
	case v.recovering != nil:
		not(ReasonRecovering, v.recovering.Error())
	case !v.registration.Registered:
		if v.registration.Err != nil {
			not(ReasonNotRegistered, fmt.Sprintf("after %d attempts: %v", v.registration.Attempts, v.registration.Err))
			break
		}
		not(ReasonNotRegistered, "the kubelet does not know the driver yet")
		ready.Status = metav1.ConditionUnknown // every start begins so: it is nothing to worry about
	case len(problems) > 0:
		not(ReasonDevices, strings.Join(problems, "; "))
	}
	all := []metav1.Condition{accepted, ready}
	for i := range all {
		all[i].Message = bound(all[i].Message)
	}
	return all
}

// list says what is not as configured, sorted.
func (v view) list() (all []string) {
	for _, subject := range slices.Sorted(maps.Keys(v.problems)) {
		text := v.problems[subject].Error()
		if subject != "" {
			text = subject + ": " + text
		}
		all = append(all, text)
	}
	for _, p := range v.offered {
		if p.Kind.Fault() {
			all = append(all, p.String())
		}
	}
	return all
}

func bound(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	const more = " … (more in the agent's log)"
	return strings.ToValidUTF8(text[:maxMessage-len(more)], "") + more
}

// writeStatus keeps the configuration's status as it should be.
func (d *Driver) writeStatus(ctx context.Context) {
	var last []metav1.Condition
	var of *v2alpha1.CiliumNetworkDriverNodeConfig
	var pause time.Duration
	for {
		var retry <-chan time.Time
		if config, v := d.view(); config != nil {
			now := conditions(v)
			if of == nil || of.UID != config.UID || !equality.Semantic.DeepEqual(last, now) {
				if err := d.cfg.SetStatus(ctx, config, now); err == nil {
					pause, last, of = 0, now, config
				} else {
					pause = min(max(2*pause, firstPause), lastPause)
					retry = time.After(pause)
					d.cfg.Log.WarnContext(ctx, "status of the configuration is not written", "config", config.Name, "error", err, "next", pause)
				}
			}
		}
		changed := d.status
		if retry != nil {
			changed = nil // the API refused: it is asked again by time, not by how much changes
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

func (d *Driver) view() (*v2alpha1.CiliumNetworkDriverNodeConfig, view) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := view{
		invalid: d.invalid, recovering: d.recovering, registration: d.registrations[d.frontName],
		problems: maps.Clone(d.problems), offered: d.offered,
	}
	if d.news != nil {
		v.generation = d.news.Generation
	}
	return d.news, v
}
