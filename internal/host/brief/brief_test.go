// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief

import (
	"runtime"
	"testing"
)

func TestProcess(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	Process()
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d processors", n)
	}
}
