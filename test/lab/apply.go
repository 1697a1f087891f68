// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// Kubectl runs kubectl as the administrator, with input on its stdin, and returns its output.
func (cp *ControlPlane) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, cp.kube.Path("kube"), append([]string{"kubectl", "--kubeconfig=" + cp.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(environment(), "HOME="+cp.Dir) // its cache goes with the lab
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Apply creates or changes the objects of some YAML.
func Apply(tb testing.TB, manifest string, args ...string) {
	tb.Helper()
	if _, err := Cluster(tb).Kubectl(tb.Context(), manifest, append([]string{"apply", "--filename=-"}, args...)...); err != nil {
		tb.Fatal(err)
	}
}

// InstallCRDs gives the cluster the custom resources of deploy/, as they are shipped, and waits
// until they are served.
func InstallCRDs(tb testing.TB) {
	tb.Helper()
	cp := Cluster(tb)
	files, err := filepath.Glob(filepath.Join(cp.builder.Root, "deploy", "crd-*.yaml"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("find the CRDs of deploy/: %v, %v", files, err)
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		Apply(tb, string(content), "--server-side")
	}
	if _, err := cp.Kubectl(tb.Context(), "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		tb.Fatal(err)
	}
}

// InstallWeft builds Weft's image, gives it to every node, applies deploy/ exactly as it is
// shipped (its image is the one that is built here) and waits until the agents are ready.
func InstallWeft(tb testing.TB) {
	tb.Helper()
	if err := Cluster(tb).InstallWeft(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// agentDaemonSet is the name that deploy/ gives the agents.
const agentDaemonSet = "daemonset/weft-agent"

// InstallWeft is what the function of that name does. Again, it replaces the agents by those of
// the tree as it is now.
func (cp *ControlPlane) InstallWeft(ctx context.Context) error {
	if err := cp.loadWeft(ctx); err != nil {
		return err
	}
	deploy := filepath.Join(cp.builder.Root, "deploy")
	if _, err := cp.Kubectl(ctx, "", "apply", "--kustomize="+deploy); err != nil {
		return err
	}
	_, err := cp.Kubectl(ctx, "", "--namespace=kube-system", "rollout", "status", agentDaemonSet, "--timeout=180s")
	if err == nil {
		return nil
	}
	// What a person would ask next.
	pods, _ := cp.Kubectl(ctx, "", "--namespace=kube-system", "describe", "pods")
	logs, _ := cp.Kubectl(ctx, "", "--namespace=kube-system", "logs", agentDaemonSet, "--all-containers", "--tail=30")
	return fmt.Errorf("%w\n%s\n%s", err, pods, logs)
}

// loadWeft builds the image and imports it on every node.
func (cp *ControlPlane) loadWeft(ctx context.Context) error {
	programs, err := cp.builder.Weft(ctx)
	if err != nil {
		return err
	}
	archive := cp.space.path("images", "weft.tar")
	if err := cp.builder.WeftImage(ctx, archive, programs); err != nil {
		return err
	}
	for _, n := range cp.Nodes() {
		if err := n.ImportImage(ctx, nodeImages+"/weft.tar"); err != nil {
			return err
		}
	}
	return nil
}

// Helm runs Helm as the cluster's administrator and returns what it printed. What it keeps for a user is
// the lab's.
func (cp *ControlPlane) Helm(ctx context.Context, args ...string) (string, error) {
	helm, err := cp.builder.Helm(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, helm.Path("helm"), append([]string{"--kubeconfig=" + cp.Kubeconfig}, args...)...)
	cmd.Dir, cmd.Env = cp.builder.Root, []string{"HOME=" + cp.space.path("data"), "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Multus builds the real Multus and gives its path on the nodes.
func (cp *ControlPlane) Multus(ctx context.Context) (string, error) {
	set, err := cp.builder.Multus(ctx)
	if err != nil {
		return "", err
	}
	return cp.Give(set.Path("multus"))
}

// Give copies a file of the machine to where every node sees it, and returns its path there: a node
// has some directories to itself, so the machine's own path may lead nowhere.
func (cp *ControlPlane) Give(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	name := filepath.Base(file)
	return nodeImages + "/" + name, writeFile(cp.space.path("images", name), content)
}

// LoadImage gives every node the images of a docker-archive of the machine.
func (cp *ControlPlane) LoadImage(ctx context.Context, archive string) error {
	given, err := cp.Give(archive)
	if err != nil {
		return err
	}
	for _, n := range cp.Nodes() {
		if err := n.ImportImage(ctx, given); err != nil {
			return err
		}
	}
	return nil
}

// gone turns the answer of a GET into nil once the object is no more.
func gone[T runtime.Object](_ T, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("it is still there")
}
