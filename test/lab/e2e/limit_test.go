// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// countedPlugins are those that the pods of TestDelegateLimit need; each is replaced by a script
// around the real one.
const (
	countedPlugins = "bridge macvlan"
	realPlugins    = "/opt/cni/real"
	livePlugins    = "/var/lib/cni/live"
	marks          = "/var/lib/cni/marks"
)

// Many pods at once with delegateLimit 4: all run, and there are never more than four plugins at
// once, of ADD and DEL together, nor more than three of ADD, since one place is kept for DEL. The
// plugins count themselves, outside of Weft. A hundred pods take minutes, and say the same.
func TestDelegateLimit(t *testing.T) {
	const limitOfAll, limitOfADD = 4, 3
	total := 20
	if os.Getenv(fullVariable) != "" {
		total = 100
	}
	r := newRig(t)
	r.bridgeNAD("bridge", "many0", "10.89.0.0/24")
	r.configure(fmt.Sprintf("cni:\n  delegateLimit: %d\n", limitOfAll))
	r.wait("the limit to be published", func() error { return r.published(fmt.Sprintf(`"delegateLimit": %d`, limitOfAll), true) })
	r.countPlugins()

	var names []string
	for n := range total {
		name := fmt.Sprintf("pod-%d", n)
		r.create(name, "bridge", untilItEnds)
		names = append(names, name)
	}
	r.step("%d pods are made", total)
	r.becomeReady(total)
	r.step("all of them run")
	for _, pod := range r.pods() {
		r.hasNetworks(pod, 1)
	}
	all, adds := r.mostAtOnce()
	if all > limitOfAll || adds > limitOfADD {
		t.Errorf("%d plugins at once, %d of ADD, want at most %d and %d", all, adds, limitOfAll, limitOfADD)
	}
	if adds < limitOfADD {
		t.Errorf("%d plugins of ADD at once: the limit of %d was never reached, so this says nothing", adds, limitOfADD)
	}
	for _, name := range names {
		r.delete(name)
	}
	r.allGone()
	r.step("all of them are gone")
	if all, _ := r.mostAtOnce(); all > limitOfAll {
		t.Errorf("%d plugins at once, with DEL, want at most %d", all, limitOfAll)
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

// allGone waits for the end of every pod of the test, in the same manner.
func (r *rig) allGone() {
	r.t.Helper()
	for left := len(r.pods()); left > 0; {
		r.wait(fmt.Sprintf("fewer than %d pods to be there", left), func() error {
			now := r.pods()
			if len(now) < left {
				left = len(now)
				return nil
			}
			last := slices.Min(slices.Collect(maps.Keys(now)))
			return fmt.Errorf("the last event of %s: %s", last, r.lastEvent(last))
		})
	}
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// counting notes how many of the counted plugins live while one begins, itself included. The
// most that ever lived at once lived when one of them began. One that is killed removes no file,
// so who has a file is looked up.
const counting = `#!/bin/sh
me=` + livePlugins + `/$$.$CNI_COMMAND
: > $me
all=0 adds=0
for f in ` + livePlugins + `/*; do
	p=${f##*/}
	read -r _ _ state _ < /proc/${p%.*}/stat || continue
	[ "$state" = Z ] && continue
	all=$((all + 1))
	case $p in *.ADD) adds=$((adds + 1)) ;; esac
done 2> /dev/null
echo "$CNI_COMMAND $all $adds" >> ` + marks + `
` + realPlugins + `/${0##*/}
status=$?
rm -f $me
exit $status
`

// countPlugins puts the scripts in place until the test's end.
func (r *rig) countPlugins() {
	r.t.Helper()
	r.shell("mkdir -p " + realPlugins + " " + livePlugins + " && cd /opt/cni/bin && cp " + countedPlugins + " " + realPlugins + " && : > " + marks)
	r.t.Cleanup(func() {
		undo := "cd " + realPlugins + " && for p in *; do mv $p /opt/cni/bin/; done; rm -rf " + realPlugins + " " + livePlugins + " " + marks
		if _, err := r.node.Exec(r.ctx(), "sh", "-c", undo); err != nil {
			r.t.Error(err)
		}
	})
	for p := range strings.FieldsSeq(countedPlugins) {
		r.write("/opt/cni/bin/"+p, counting)
		r.shell("chmod 755 /opt/cni/bin/" + p)
	}
}

// mostAtOnce is how many plugins ran at once at most: all of them, and those of ADD.
func (r *rig) mostAtOnce() (all, adds int) {
	r.t.Helper()
	calls := map[string]int{}
	for line := range strings.Lines(r.file(marks)) {
		var command string
		var nowAll, nowADD int
		if _, err := fmt.Sscan(line, &command, &nowAll, &nowADD); err != nil {
			r.t.Fatalf("unknown mark %q: %v", line, err)
		}
		calls[command]++
		all, adds = max(all, nowAll), max(adds, nowADD)
	}
	r.step("calls of plugins: %v; at once at most %d, and %d of ADD", calls, all, adds)
	return all, adds
}
