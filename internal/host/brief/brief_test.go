// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
)

func TestProcess(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	Process()
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d processors", n)
	}
	err := slackenWatch()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("setting the timer slack of a thread needs CAP_SYS_NICE")
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := threads()
	if err != nil {
		t.Fatal(err)
	}
	for i, thread := range all[:2] { // the main thread, which keeps its own, and the watching one
		b, err := os.ReadFile("/proc/" + thread + "/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(b)); (got == watchSlack) != (i == 1) {
			t.Errorf("thread %d has a slack of %s ns", i, got)
		}
	}
}
