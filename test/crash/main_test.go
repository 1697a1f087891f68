// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"os"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// TestMain gives the suite namespaces of its own: the host that weft-cni sees is one that
// is thrown away.
func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }
