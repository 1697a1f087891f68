// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kube is a whole Kubernetes in one program: the first argument, or the name that it is
// called by, says which component runs. One program of 200 MB links once, where six would link
// the same packages six times.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args
	if command(name) == nil && name != "etcd" {
		if len(os.Args) < 2 {
			usage()
		}
		name, args = os.Args[1], os.Args[1:]
	}
	if name == "etcd" {
		etcdmain.Main(args)
		return
	}
	build := command(name)
	if build == nil {
		usage()
	}
	os.Args = args // pflag and klog read it
	c := build()
	c.SetArgs(args[1:])
	os.Exit(cli.Run(c))
}

// command returns what makes the component's command; making one has side effects on global
// flags, so only the one that runs is made.
func command(name string) func() *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand
	case "kube-scheduler":
		return func() *cobra.Command { return scheduler.NewSchedulerCommand() }
	case "kubelet":
		return func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand
	default:
		return nil
	}
}

// kubeletCommand serves every minor: some take a context.
func kubeletCommand() *cobra.Command {
	switch build := any(kubelet.NewKubeletCommand).(type) {
	case func() *cobra.Command:
		return build()
	case func(context.Context) *cobra.Command:
		return build(context.Background())
	default:
		panic(fmt.Sprintf("this kubelet's command is made by a %T", build))
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kubectl …")
	os.Exit(2)
}
