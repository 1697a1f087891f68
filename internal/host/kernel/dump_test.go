// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that was interrupted is asked for again and never used, within a bound; no other
// answer is. A kernel does not interrupt when it is told to, so this has no run on a real one.
func TestDump(t *testing.T) {
	other := errors.New("other")
	tests := []struct {
		name         string
		interruption int // answers that are interrupted, before the last one
		last         error
		want         error
		asked        int
	}{
		{"at once", 0, nil, nil, 1},
		{"the third time", 2, nil, nil, 3},
		{"the last time", maxDumps - 1, nil, nil, maxDumps},
		{"never", maxDumps, nil, netlink.ErrDumpInterrupted, maxDumps},
		{"another fault", 0, other, other, 1},
		{"another fault after an interruption", 1, other, other, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			asked := 0
			got, err := dump(func() ([]int, error) {
				if asked++; asked <= test.interruption {
					return []int{-asked}, netlink.ErrDumpInterrupted
				}
				return []int{7}, test.last
			})
			if !errors.Is(err, test.want) || asked != test.asked {
				t.Errorf("error %v after %d requests, want %v after %d", err, asked, test.want, test.asked)
			}
			if err == nil && !slices.Equal(got, []int{7}) {
				t.Errorf("got %v, of an answer that was interrupted", got)
			}
		})
	}
}
