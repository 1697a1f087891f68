// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/orphans"
	"github.com/weftnet/weft/internal/host/journal"
)

// look is what one record looks like, so long after the first look.
type look struct {
	after time.Duration
	all   []orphans.Sandbox
}

func TestJudge(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := func(pod orphans.Knowledge) []orphans.Sandbox {
		return []orphans.Sandbox{{Key: "a-eth0", Begun: begin, PodUID: "u", Finished: true, Pod: pod}}
	}
	dead := []orphans.Sandbox{{Key: "a-eth0", Begun: begin, PodUID: "u", Finished: true, Dead: true, Pod: orphans.Known}}
	two := func(finished, dead bool) []orphans.Sandbox {
		return append(one(orphans.Known), orphans.Sandbox{
			Key: "b-eth0", Begun: begin.Add(time.Second), PodUID: "u", Finished: finished, Dead: dead, Pod: orphans.Known,
		})
	}
	anew := one(orphans.Unknown)
	anew[0].Begun = begin.Add(time.Minute)
	tests := map[string]struct {
		looks []look
		want  []journal.Key
	}{
		"a pod that is known":               {[]look{{0, one(orphans.Known)}, {time.Hour, one(orphans.Known)}}, nil},
		"nobody can tell":                   {[]look{{0, one(orphans.Unsure)}, {time.Hour, one(orphans.Unsure)}}, nil},
		"unknown at first":                  {[]look{{0, one(orphans.Unknown)}}, nil},
		"unknown for too short":             {[]look{{0, one(orphans.Unknown)}, {orphans.Grace - 1, one(orphans.Unknown)}}, nil},
		"unknown for long enough":           {[]look{{0, one(orphans.Unknown)}, {orphans.Grace, one(orphans.Unknown)}}, []journal.Key{"a-eth0"}},
		"unknown, and known in between":     {[]look{{0, one(orphans.Unknown)}, {time.Minute, one(orphans.Known)}, {orphans.Grace, one(orphans.Unknown)}}, nil},
		"unknown, and a blind moment":       {[]look{{0, one(orphans.Unknown)}, {time.Minute, one(orphans.Unsure)}, {orphans.Grace, one(orphans.Unknown)}}, nil},
		"unknown, and gone in between":      {[]look{{0, one(orphans.Unknown)}, {time.Minute, nil}, {orphans.Grace, one(orphans.Unknown)}}, nil},
		"another sandbox under its key":     {[]look{{0, one(orphans.Unknown)}, {orphans.Grace, anew}}, nil},
		"the clock was put back":            {[]look{{time.Hour, one(orphans.Unknown)}, {0, one(orphans.Unknown)}, {time.Minute, one(orphans.Unknown)}}, nil},
		"of another boot":                   {[]look{{0, dead}}, []journal.Key{"a-eth0"}},
		"the pod has a later sandbox":       {[]look{{0, two(true, false)}, {orphans.Grace, two(true, false)}}, []journal.Key{"a-eth0"}},
		"the later one is not made yet":     {[]look{{0, two(false, false)}, {orphans.Grace, two(false, false)}}, nil},
		"the later one is of another boot":  {[]look{{0, two(true, true)}, {orphans.Grace, two(true, true)}}, []journal.Key{"b-eth0"}},
		"the later one came only just now":  {[]look{{0, one(orphans.Known)}, {orphans.Grace, two(true, false)}}, nil},
		"unknown from the second look only": {[]look{{0, one(orphans.Known)}, {time.Minute, one(orphans.Unknown)}, {orphans.Grace, one(orphans.Unknown)}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var j orphans.Judge
			var got []journal.Key
			for _, l := range tt.looks {
				got = nil
				for _, s := range j.Look(begin.Add(l.after), l.all) {
					got = append(got, s.Key)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
