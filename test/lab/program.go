// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"syscall"
	"testing"

	"github.com/weftnet/weft/test/lab/box"
)

// Program builds one of Weft's commands as it is in the tree and gives its path.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	path, err := Cluster(tb).builder.WeftProgram(tb.Context(), name)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Beside starts a process on the network of the control plane, where the API server reaches it and
// it reaches the API server with InsideKubeconfig. It ends with the test, if not by End before.
// Its output is appended to a file that is removed with the lab.
func Beside(tb testing.TB, name string, args ...string) (log string) {
	tb.Helper()
	cp := Cluster(tb)
	log = cp.space.log(name + ".log")
	running, err := cp.box.Start(box.Process{Name: name, Args: args, Env: environment(), Log: log})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		select {
		case <-running.Done():
		default:
			if err := cp.box.End(context.Background(), name, syscall.SIGTERM); err != nil { //nolint:usetesting // the test's own is over
				tb.Errorf("end %s: %v", name, err)
			}
		}
	})
	return log
}

// InsideKubeconfig is a kubeconfig of the administrator for what runs on the control plane's network.
func (cp *ControlPlane) InsideKubeconfig() string { return cp.pki("inside.kubeconfig") }

// Script runs a shell script on the control plane's network.
func (cp *ControlPlane) Script(ctx context.Context, text string) error {
	return cp.script(ctx, "script", text)
}
