// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"io"
	"os/exec"

	"github.com/weftnet/weft/test/lab/box"
)

// Build builds every program that a lab of that Kubernetes runs ("" is the lab's own), so that
// nothing has to be built when one is started.
func Build(ctx context.Context, kubernetes string, progress io.Writer) error {
	b, err := builder(progress)
	if err != nil {
		return err
	}
	_, _, err = b.Kubernetes(ctx, kubernetes)
	_, errRuntime := b.Runtime(ctx)
	_, errPlugins := b.Plugins(ctx)
	return errors.Join(err, errRuntime, errPlugins)
}

// Cache is the directory that holds everything of labs.
func Cache() (string, error) {
	b, err := builder(io.Discard)
	return b.Cache(), err
}

// Reap removes what labs left whose owner was killed. Every start of a lab does so as well.
func Reap() error {
	cache, err := Cache()
	if err != nil {
		return err
	}
	return reap(cache)
}

// KubectlProgram is what to run as kubectl, to be followed by its arguments.
func (cp *ControlPlane) KubectlProgram() []string { return []string{cp.kube.Path("kube"), "kubectl"} }

// CommandIn and StartIn are Command and StartCommand for a node that another process owns, by
// the node's PID.
func CommandIn(ctx context.Context, args ...string) *exec.Cmd { return nodeCommand(ctx, args) }

// StartIn starts what CommandIn returned.
func StartIn(pid int, cmd *exec.Cmd) error { return box.StartIn(pid, cmd) }
