// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rescan_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/weftnet/weft/internal/dra/rescan"
)

// TestProblems: each problem is told once, another text is another one, and its end is told once.
func TestProblems(t *testing.T) {
	var p rescan.Problems
	var told []string
	tell := func(about string, err error) {
		if err != nil {
			about += ": " + err.Error()
		}
		told = append(told, about)
	}
	for _, now := range []map[string]error{{"pf": errors.New("one")}, {"pf": errors.New("one")}, {"pf": errors.New("two")}, nil, nil} {
		p.Tell(now, tell)
	}
	if want := []string{"pf: one", "pf: two", "pf"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
