// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/test/lab"
)

// The pods of a node have an address of its subnet, reach the API server by the address that
// they are told, and their logs and shells can be had.
func TestPlainPod(t *testing.T) {
	cp, namespace := lab.Cluster(t), lab.Namespace(t)
	lab.Apply(t, lab.PodManifest(namespace, "plain", nil))
	lab.WaitRunning(t, namespace, "plain")
	node := cp.Nodes()[0]
	out, err := cp.Kubectl(t.Context(), "", "exec", "--namespace="+namespace, "plain", "--", "sh", "-c",
		"echo hello > /proc/1/fd/1; ip -o -4 address show dev eth0; nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo reached")
	if err != nil {
		t.Fatal(err)
	}
	if subnet := strings.TrimSuffix(node.Subnet, "0/24"); len(cp.Nodes()) == 1 && !strings.Contains(out, " "+subnet) {
		t.Errorf("no address of %s in %q", node.Subnet, out)
	}
	if !strings.Contains(out, "reached") {
		t.Errorf("the pod does not reach the API server: %q", out)
	}
	if out, err := cp.Kubectl(t.Context(), "", "logs", "--namespace="+namespace, "plain"); err != nil || out != "hello\n" {
		t.Errorf("logs: %q, %v", out, err)
	}
}

// Pods of all nodes reach each other. With one node it says nothing new.
func TestPodsOfAllNodes(t *testing.T) {
	cp, namespace := lab.Cluster(t), lab.Namespace(t)
	var pods []string
	for _, n := range cp.Nodes() {
		name := "on-" + n.Name
		lab.Apply(t, lab.PodManifest(namespace, name, nil, "nodeName: "+n.Name))
		pods = append(pods, name)
	}
	for _, to := range pods {
		lab.WaitRunning(t, namespace, to)
		address, err := cp.Kubectl(t.Context(), "", "get", "pod", "--namespace="+namespace, to, "--output=jsonpath={.status.podIP}")
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range pods {
			lab.WaitRunning(t, namespace, from)
			if _, err := cp.Kubectl(t.Context(), "", "exec", "--namespace="+namespace, from, "--", "ping", "-c1", "-W5", address); err != nil {
				t.Errorf("%s does not reach %s: %v", from, to, err)
			}
		}
	}
}

// A node's runtime and kubelet can be ended and come back; its pods live on.
func TestRestart(t *testing.T) {
	cp, namespace := lab.Cluster(t), lab.Namespace(t)
	lab.Apply(t, lab.PodManifest(namespace, "before", nil))
	lab.WaitRunning(t, namespace, "before")
	for _, n := range cp.Nodes() {
		for _, name := range []string{lab.Kubelet, lab.Containerd} {
			if err := n.End(t.Context(), name, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Start(lab.Containerd); err != nil {
			t.Fatal(err)
		}
		// A kubelet that finds no runtime ends, and nothing here starts it again.
		if err := n.RuntimeReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Start(lab.Kubelet); err != nil {
			t.Fatal(err)
		}
	}
	lab.Apply(t, lab.PodManifest(namespace, "after", nil))
	lab.WaitRunning(t, namespace, "after")
	restarts, err := cp.Kubectl(t.Context(), "", "get", "pod", "--namespace="+namespace, "before",
		"--output=jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}")
	if err != nil || restarts != "Running 0" {
		t.Errorf("the pod from before: %q, %v", restarts, err)
	}
}

// A lab whose owner is killed leaves no process, mount, link or namespace, and its cgroups and
// files only until the next one.
func TestOwnerKilled(t *testing.T) {
	owner := exec.Command("/proc/self/exe")
	owner.Env = append(os.Environ(), ownerVariable+"=1")
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	before := mounts(t)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal("the lab did not start: ", err)
	}
	var dir string
	var pid int
	if _, err := fmt.Sscan(line, &dir, &pid); err != nil {
		t.Fatal(err)
	}
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	cgroups := filepath.Join("/sys/fs/cgroup/*", "weft-lab-"+filepath.Base(dir)+"-*")
	if found, _ := filepath.Glob(cgroups); len(found) == 0 {
		t.Errorf("no cgroup matches %s while the lab lives", cgroups)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	for deadline := time.Now().Add(time.Minute); ; {
		left := inside(t, network)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v of the lab outlive its owner", left)
		}
	}
	if after := mounts(t); after != before {
		t.Errorf("mounts before: %s\nafter: %s", before, after)
	}
	if err := lab.Reap(); err != nil {
		t.Fatal(err)
	}
	if found, _ := filepath.Glob(cgroups); len(found) > 0 {
		t.Errorf("cgroups stay: %v", found)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s stays: %v", dir, err)
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// inside are the processes in a network namespace.
func inside(t *testing.T, network string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == network {
			all = append(all, l)
		}
	}
	return all
}
