// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkOperator: 5,000 nodes and 50 cluster configurations, each of which selects its hundred:
// how long the first reconcile takes at a rate of requests, what doing nothing costs, how long it
// takes from one label's change until its node's configuration says so, and memory.
func BenchmarkOperator(b *testing.B) {
	const nodes, configs, changes = 5000, 50, 200
	w := newOperatorWorld(b)
	everyNode(nodes, func(i int) { w.node(fmt.Sprintf("node-%04d", i), map[string]string{"role": fmt.Sprint(i % configs)}) })
	for i := range configs {
		w.config(fmt.Sprintf("config-%02d", i), fmt.Sprintf("{matchLabels: {role: %q}}", fmt.Sprint(i)))
	}
	for b.Loop() {
		if err := w.nodes.DeleteCollection(b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		o := drive(b, "--api-rate=500", "--lease=60s") // the lead is not what is measured
		for o.metric("weft_operator_writes_total", `verb="create"`) < nodes {
			if time.Since(began) > 10*time.Minute {
				b.Fatal("too slow")
			}
			pause(b, 100*time.Millisecond)
		}
		b.ReportMetric(time.Since(began).Seconds(), "first-s")
		w.quiet(o)
		busy := o.cpu()
		pause(b, 10*time.Second)
		b.ReportMetric((o.cpu()-busy).Seconds()/10*100, "idle-%cpu")
		var took []time.Duration
		watcher, err := w.nodes.Watch(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for i := range changes {
			name := fmt.Sprintf("node-%04d", i*7)
			role := (i*7 + 1) % configs
			changed := time.Now()
			w.node(name, map[string]string{"role": fmt.Sprint(role)})
			for event := range watcher.ResultChan() {
				object, ok := event.Object.(metav1.Object)
				if ok && object.GetName() == name && object.GetAnnotations()["networkdriver.cilium.io/cluster-config"] == fmt.Sprintf("config-%02d", role) {
					break
				}
			}
			took = append(took, time.Since(changed))
		}
		watcher.Stop()
		slices.Sort(took)
		b.ReportMetric(float64(took[changes/2].Milliseconds()), "change-p50-ms")
		b.ReportMetric(float64(took[changes*99/100].Milliseconds()), "change-p99-ms")
		b.ReportMetric(float64(o.anonymous())/1024, "RssAnon-MiB")
	}
}

// everyNode calls f with several numbers at once.
func everyNode(n int, f func(int)) {
	done := make(chan struct{})
	const workers = 8
	for first := range workers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := first; i < n; i += workers {
				f(i)
			}
		}()
	}
	for range workers {
		<-done
	}
}

func pause(b *testing.B, d time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// cpu is how much of a processor's time the process has had.
func (o *operatorProcess) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.cmd.Process.Pid))
	if err != nil {
		o.t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100
}

// anonymous is the process' own memory, in KiB.
func (o *operatorProcess) anonymous() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	if err != nil {
		o.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	n, _ := strconv.Atoi(strings.Fields(rest)[0])
	return n
}
