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
// it reaches the API server at InsideURL. It ends with the test, if not by End before.
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

// EndBeside sends such a process a signal and waits until it has ended.
func EndBeside(tb testing.TB, name string, s syscall.Signal) {
	tb.Helper()
	if err := Cluster(tb).box.End(tb.Context(), name, s); err != nil {
		tb.Fatal(err)
	}
}

// InsideURL is where the API server is for what runs on the control plane's network.
func (cp *ControlPlane) InsideURL() string { return cp.insideURL() }

// Root is the folder of the tree that the lab builds from.
func (cp *ControlPlane) Root() string { return cp.builder.Root }

// Script runs a shell script on the control plane's network.
func (cp *ControlPlane) Script(ctx context.Context, text string) error {
	return cp.script(ctx, "script", text)
}
