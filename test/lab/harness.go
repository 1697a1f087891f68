// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/test/lab/box"
)

// What Main reads of the environment.
const (
	kubernetesVariable = "K8S_VERSION" // Options.Kubernetes
	nodesVariable      = "NODES"       // how many nodes, where there are any
)

// shared is the one cluster of a test binary.
var shared atomic.Pointer[ControlPlane] //nolint:gochecknoglobals // one per test process is the point

// Main is TestMain of tests that share a cluster of so many nodes; with none it is a control
// plane without controllers. It does not return. The logs of a failed run are kept, and the
// run says where.
func Main(m *testing.M, nodes int) {
	box.Init()
	os.Exit(mainStatus(m, nodes))
}

func mainStatus(m *testing.M, nodes int) int {
	ctx, stop := ossignal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if n, err := strconv.Atoi(os.Getenv(nodesVariable)); err == nil && nodes > 0 {
		nodes = max(n, 1)
	}
	cp, err := Up(ctx, Options{Kubernetes: os.Getenv(kubernetesVariable), Progress: os.Stderr}, nodes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	shared.Store(cp)
	finished := context.AfterFunc(ctx, func() { // the test that runs will not end soon
		cp.StopKeepingLogs() //nolint:errcheck // what it leaves, the next lab takes
		os.Exit(1)
	})
	status := m.Run()
	finished()
	end := cp.Stop
	if status != 0 {
		end = cp.StopKeepingLogs
	}
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return cmp.Or(status, 1)
	}
	return status
}

// Up starts a control plane and so many nodes.
func Up(ctx context.Context, o Options, nodes int) (*ControlPlane, error) {
	o.Controllers = o.Controllers || nodes > 0
	cp, err := StartControlPlane(ctx, o)
	if err != nil {
		return nil, err
	}
	for range nodes {
		start := time.Now()
		n, err := cp.StartNode(ctx)
		if err != nil {
			return nil, errors.Join(err, cp.StopKeepingLogs())
		}
		fmt.Fprintf(cp.options.Progress, "lab: node %s is ready after %.1f s\n", n.Name, time.Since(start).Seconds())
	}
	return cp, nil
}

// Cluster is the cluster that Main started.
func Cluster(tb testing.TB) *ControlPlane {
	tb.Helper()
	cp := shared.Load()
	if cp == nil {
		tb.Fatal("no cluster: TestMain does not call lab.Main")
	}
	return cp
}

// Namespace makes a namespace for the test and removes it at its end. Where pods run, it waits
// until they are gone; without controllers the namespace stays behind, terminating.
func Namespace(tb testing.TB) string {
	tb.Helper()
	cp := Cluster(tb)
	client, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		tb.Fatal(err)
	}
	namespaces := client.CoreV1().Namespaces()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(tb.Name())}}
	if _, err := namespaces.Create(tb.Context(), ns, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), readyTimeout, errors.New("the namespace does not go")) //nolint:usetesting // the test's own is over
		defer cancel()
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		if err := client.CoreV1().Pods(ns.Name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			tb.Errorf("delete the pods of namespace %s: %v", ns.Name, err)
		}
		if err := namespaces.Delete(ctx, ns.Name, now); err != nil {
			tb.Errorf("delete namespace %s: %v", ns.Name, err)
		}
		if !cp.options.Controllers {
			return
		}
		if err := poll(ctx, func() error { return gone(namespaces.Get(ctx, ns.Name, metav1.GetOptions{})) }); err != nil {
			tb.Errorf("wait for the end of namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// namespaceName makes a name of a test's: valid, and unused.
func namespaceName(test string) string {
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(test), "-"), "-")
	random := make([]byte, 3)
	rand.Read(random)
	return name[:min(len(name), 50)] + "-" + hex.EncodeToString(random)
}
