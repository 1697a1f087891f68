// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The half of a test that is behind a reboot runs whenever the one before it does.
func TestRounds(t *testing.T) {
	both := []suite{{pkg: "new"}, {pkg: "twice", old: true, reboot: "TestReboot"}}
	for name, c := range map[string]struct {
		chosen          []suite
		kernel, pattern string
		want            []string
	}{
		"both kernels":             {both, "both", ".", []string{"6.12: new twice", "6.1: twice"}},
		"one kernel":               {both, "6.12", ".", []string{"6.12: new twice", "6.12-again: twice ^TestReboot$"}},
		"the older one":            {both, "6.1", ".", []string{"6.1: twice", "6.1-again: twice ^TestReboot$"}},
		"that test alone":          {both[1:], "6.12", "Reboot", []string{"6.12: twice", "6.12-again: twice ^TestReboot$"}},
		"other tests":              {both[1:], "6.12", "TestKinds", []string{"6.12: twice"}},
		"nothing about reboots":    {both[:1], "both", ".", []string{"6.12: new"}},
		"a kernel that nobody has": {both, "5.4", ".", nil},
	} {
		var got []string
		for _, r := range rounds(c.chosen, c.kernel, c.pattern) {
			line := r.name + ":"
			for _, s := range r.suites {
				line += " " + s.pkg
			}
			if r.pattern != c.pattern {
				line += " " + r.pattern
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
