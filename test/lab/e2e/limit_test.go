// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// countedPlugins are those that the pods of TestDelegateLimit need; each is replaced by a script
// that marks its begin and its end around the real one.
const (
	countedPlugins = "bridge macvlan"
	realPlugins    = "/opt/cni/real"
	marks          = "/var/lib/cni/marks"
)

// A hundred pods at once with delegateLimit 4: all run, and there are never more than four
// plugins at once, of ADD and DEL together, nor more than three of ADD, since one place is kept
// for DEL. The plugins themselves are counted, outside of Weft: by marks that they append to one
// file, whose order is that of the events.
func TestDelegateLimit(t *testing.T) {
	const total, limitOfAll, limitOfADD = 100, 4, 3
	r := newRig(t)
	r.bridgeNAD("bridge", "many0", "10.89.0.0/24")
	r.configure(fmt.Sprintf("cni:\n  delegateLimit: %d\n", limitOfAll))
	r.wait("the limit to be published", func() error { return r.published(fmt.Sprintf(`"delegateLimit": %d`, limitOfAll), true) })
	r.countPlugins()

	var names []string
	for n := range total {
		name := fmt.Sprintf("pod-%d", n)
		r.create(name, "bridge")
		names = append(names, name)
	}
	r.step("%d pods are made", total)
	r.becomeReady(total)
	r.step("all of them run")
	for _, pod := range r.pods() {
		r.hasNetworks(pod, 1)
	}
	adds := r.mostAtOnce()
	if adds["all"] > limitOfAll || adds["ADD"] > limitOfADD {
		t.Errorf("most plugins at once: %v, want at most %d, and %d of ADD", adds, limitOfAll, limitOfADD)
	}
	if adds["ADD"] < limitOfADD {
		t.Errorf("most plugins at once: %v: the limit was never reached, so this says nothing", adds)
	}
	for _, name := range names {
		r.delete(name)
	}
	r.gone(names...)
	r.step("all of them are gone")
	if all := r.mostAtOnce(); all["all"] > limitOfAll {
		t.Errorf("most plugins at once, with DEL: %v, want at most %d", all, limitOfAll)
	}
}

// becomeReady waits for so many pods. However long that takes all in all, the next one must be
// Ready within the limit of a wait.
func (r *rig) becomeReady(total int) {
	r.t.Helper()
	for ready := 0; ready < total; {
		r.wait(fmt.Sprintf("more than %d of %d pods to run", ready, total), func() error {
			now, last := 0, ""
			for name, pod := range r.pods() {
				if podReady(pod) {
					now++
				} else {
					last = name
				}
			}
			if now > ready || now == total {
				ready = now
				return nil
			}
			return fmt.Errorf("the last event of %s: %s", last, r.lastEvent(last))
		})
	}
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// countPlugins puts the scripts in place until the test's end.
func (r *rig) countPlugins() {
	r.t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
echo "begin $CNI_COMMAND $CNI_CONTAINERID" >> %[1]s
%[2]s/${0##*/}
status=$?
echo "end $CNI_COMMAND $CNI_CONTAINERID" >> %[1]s
exit $status
`, marks, realPlugins)
	r.shell("mkdir -p " + realPlugins + " && cd /opt/cni/bin && cp " + countedPlugins + " " + realPlugins + " && : > " + marks)
	r.t.Cleanup(func() {
		undo := "cd " + realPlugins + " && for p in *; do mv $p /opt/cni/bin/; done; rm -rf " + realPlugins + " " + marks
		if _, err := r.node.Exec(r.ctx(), "sh", "-c", undo); err != nil {
			r.t.Error(err)
		}
	})
	for p := range strings.FieldsSeq(countedPlugins) {
		r.write("/opt/cni/bin/"+p, script)
		r.shell("chmod 755 /opt/cni/bin/" + p)
	}
}

// mostAtOnce is how many plugins ran at once at most, by command and "all".
func (r *rig) mostAtOnce() map[string]int {
	r.t.Helper()
	now, most := map[string]int{}, map[string]int{}
	calls := 0
	for line := range strings.Lines(r.file(marks)) {
		mark, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		command, _, _ = strings.Cut(command, " ")
		switch mark {
		case "begin":
			calls++
			for _, kind := range []string{command, "all"} {
				now[kind]++
				most[kind] = max(most[kind], now[kind])
			}
		case "end":
			now[command]--
			now["all"]--
		default:
			r.t.Fatalf("unknown mark %q", line)
		}
	}
	r.step("%d calls of plugins, at once at most %v, now %v", calls, most, now)
	return most
}
