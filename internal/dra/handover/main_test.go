// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

func TestMain(m *testing.M) {
	code := kerneltest.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
