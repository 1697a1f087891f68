// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief_test

import (
	"runtime/debug"
	"testing"

	"github.com/weftnet/weft/internal/host/brief"
)

// TestProcess: the collector works as by default, whatever the environment says. (In programs:
// TestEnvironmentDoesNotSlowPrograms.)
func TestProcess(t *testing.T) {
	t.Setenv("GOGC", "7")
	defer debug.SetGCPercent(debug.SetGCPercent(7))
	brief.Process()
	if percent := debug.SetGCPercent(100); percent != 100 {
		t.Errorf("the collector works at %d percent", percent)
	}
}
