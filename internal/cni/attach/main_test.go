// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"os"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }
