// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/test/lab/image"
)

// PodManifest is the YAML of a pod that runs busybox and ends at once when it is deleted.
// Further lines of its spec may be given.
func PodManifest(namespace, name string, annotations map[string]string, spec ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  namespace: %s\n  name: %s\n  annotations:\n    test: lab\n", namespace, name)
	for key, value := range annotations {
		fmt.Fprintf(&b, "    %q: %q\n", key, value)
	}
	fmt.Fprintf(&b, "spec:\n  terminationGracePeriodSeconds: 0\n  containers: [{name: main, image: %q}]\n", image.BusyboxName)
	for _, line := range spec {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// WaitRunning waits until a pod is Ready. If it does not become so, the test fails with what a
// person would look at.
func WaitRunning(tb testing.TB, namespace, name string) {
	tb.Helper()
	cp := Cluster(tb)
	_, err := cp.Kubectl(tb.Context(), "", "wait", "--for=condition=Ready", "--timeout=120s", "--namespace="+namespace, "pod/"+name)
	if err == nil {
		return
	}
	description, errDescribe := cp.Kubectl(tb.Context(), "", "describe", "--namespace="+namespace, "pod", name)
	tb.Fatal(errors.Join(err, errDescribe), "\n", description)
}
