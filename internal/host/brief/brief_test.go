// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief_test

import (
	"testing"

	"github.com/weftnet/weft/internal/host/brief"
)

// TestProcess: what is done for the stack alone changes nothing that can be seen.
func TestProcess(*testing.T) { brief.Process() }
