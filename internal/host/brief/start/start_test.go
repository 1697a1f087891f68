// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package start

import (
	"runtime"
	"testing"
)

// TestStart: it was done before the test.
func TestStart(t *testing.T) {
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d processors", n)
	}
}
