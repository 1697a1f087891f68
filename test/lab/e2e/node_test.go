// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The agents of deploy/.
const (
	agentNamespace = "kube-system"
	agentName      = "weft-agent"
	agentSelector  = "app.kubernetes.io/name=weft,app.kubernetes.io/component=agent"
)

// link is an interface as the kernel shows it.
type link struct {
	Name      string `json:"ifname"`
	MAC       string `json:"address"`
	MTU       int    `json:"mtu"`
	State     string `json:"operstate"`
	Addresses []struct {
		Family string `json:"family"`
		Local  string `json:"local"`
		Prefix int    `json:"prefixlen"`
		Scope  string `json:"scope"`
	} `json:"addr_info"`
	Info struct {
		Kind string `json:"info_kind"`
	} `json:"linkinfo"`
}

// global are the addresses of a link that reach further than it.
func (l link) global() []string {
	var all []string
	for _, a := range l.Addresses {
		if a.Scope == "global" {
			all = append(all, fmt.Sprintf("%s/%d", a.Local, a.Prefix))
		}
	}
	slices.Sort(all)
	return all
}

// route is one of a pod's routes.
type route struct {
	Destination string `json:"dst"`
	Gateway     string `json:"gateway"`
	Device      string `json:"dev"`
}

// pid is a process of a pod, by the machine's number: one whose cgroup names the pod.
func (r *rig) pid(pod *corev1.Pod) int {
	r.t.Helper()
	pids := processes(string(pod.UID))
	if len(pids) == 0 {
		r.t.Fatalf("pod %s has no process", pod.Name)
	}
	return pids[0]
}

// processes are those of the machine whose cgroup names a pod. Nothing of Weft is asked.
func processes(podUID string) (pids []int) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		panic(err) // the pattern is right
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(content), "pod"+podUID) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// inNetwork runs a command of the machine on the network of a pod.
func (r *rig) inNetwork(pod *corev1.Pod, args ...string) string {
	r.t.Helper()
	args = append([]string{"--target", strconv.Itoa(r.pid(pod)), "--net"}, args...)
	out, err := exec.CommandContext(r.ctx(), "nsenter", args...).Output()
	if err != nil {
		r.t.Fatalf("on the network of pod %s: nsenter %s: %v", pod.Name, strings.Join(args, " "), err)
	}
	return string(out)
}

// links are the interfaces of a pod, without lo.
func (r *rig) links(pod *corev1.Pod) map[string]link {
	r.t.Helper()
	return decodeLinks(r.t, r.inNetwork(pod, "ip", "-json", "-details", "address"))
}

func decodeLinks(t *testing.T, text string) map[string]link {
	t.Helper()
	var list []link
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]link{}
	for _, l := range list {
		if l.Name != "lo" {
			all[l.Name] = l
		}
	}
	return all
}

// defaultRoutes are those of a pod, of one family: "-4" or "-6".
func (r *rig) defaultRoutes(pod *corev1.Pod, family string) (routes []route) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.inNetwork(pod, "ip", family, "-json", "route", "show", "default")), &routes); err != nil {
		r.t.Fatal(err)
	}
	return routes
}

// agentPod is the node's agent, the newest where an old one is ending.
func (r *rig) agentPod() (*corev1.Pod, error) {
	list, err := r.kube.CoreV1().Pods(agentNamespace).List(r.ctx(), metav1.ListOptions{
		LabelSelector: agentSelector, FieldSelector: "spec.nodeName=" + r.node.Name,
	})
	if err != nil {
		return nil, err
	}
	var newest *corev1.Pod
	for i, p := range list.Items {
		if newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp) {
			newest = &list.Items[i]
		}
	}
	if newest == nil {
		return nil, errors.New("the node has no agent")
	}
	return newest, nil
}

// agentReady waits until the node's agent says so itself.
func (r *rig) agentReady() {
	r.t.Helper()
	r.wait("the agent", func() error {
		pod, err := r.agentPod()
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			return errors.New("it is ending")
		}
		out, err := r.node.Exec(r.ctx(), "busybox", "wget", "-q", "-O-", "http://127.0.0.1:9479/readyz")
		if err != nil {
			return fmt.Errorf("%w; pod %s is %s", err, pod.Name, pod.Status.Phase)
		}
		if r.agentPID() == 0 {
			return fmt.Errorf("no process, but /readyz says %q", out)
		}
		return nil
	})
}

// agentPID is the machine's number of the agent's process, 0 without one.
func (r *rig) agentPID() int {
	pod, err := r.agentPod()
	if err != nil {
		return 0
	}
	for _, pid := range processes(string(pod.UID)) {
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(comm)) == agentName {
			return pid
		}
	}
	return 0
}

// signalAgent sends the agent's process a signal. After SIGKILL it waits for its end; the
// kubelet starts another one.
func (r *rig) signalAgent(s syscall.Signal) {
	r.t.Helper()
	pid := r.agentPID()
	if pid == 0 {
		r.t.Fatal("the agent has no process")
	}
	if err := syscall.Kill(pid, s); err != nil {
		r.t.Fatal(err)
	}
	if s == syscall.SIGKILL {
		r.wait("the end of the agent", func() error {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("pid %d is there", pid)
			}
			return nil
		})
	}
}

// stopAgent takes the agent off the node, as nobody's node selector would; startAgent, or the
// test's end, brings it back. What it published stays.
func (r *rig) stopAgent() {
	r.t.Helper()
	r.t.Cleanup(func() { r.selectAgent(`null`) })
	r.selectAgent(`"nowhere"`)
	r.wait("the end of the agent", func() error {
		if pod, err := r.agentPod(); err == nil {
			return fmt.Errorf("pod %s is there", pod.Name)
		}
		return nil
	})
}

// startAgent brings the agent back and waits until it is ready.
func (r *rig) startAgent() {
	r.t.Helper()
	r.selectAgent(`null`)
	r.agentReady()
}

// selectAgent sets what the node of an agent must have besides.
func (r *rig) selectAgent(value string) {
	r.t.Helper()
	patch := `{"spec":{"template":{"spec":{"nodeSelector":{"e2e":` + value + `}}}}}`
	_, err := r.kube.AppsV1().DaemonSets(agentNamespace).Patch(r.ctx(), agentName, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{})
	if err != nil {
		r.t.Error(err)
	}
}

// replaceAgent deletes the agent's pod, so that the DaemonSet makes another, and waits until
// that is ready.
func (r *rig) replaceAgent() {
	r.t.Helper()
	r.deleteAgent()
	r.agentReady()
}

// deleteAgent deletes the agent's pod and waits for the next one, which need not be ready.
func (r *rig) deleteAgent() {
	r.t.Helper()
	old, err := r.agentPod()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.kube.CoreV1().Pods(agentNamespace).Delete(r.ctx(), old.Name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.wait("another agent", func() error {
		if pod, err := r.agentPod(); err != nil || pod.UID == old.UID {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
}

// metrics are the agent's, as it serves them: name and labels as one string.
func (r *rig) metrics() map[string]float64 {
	r.t.Helper()
	out, err := r.node.Exec(r.ctx(), "busybox", "wget", "-q", "-O-", "http://127.0.0.1:9479/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok {
			name += "}"
		} else {
			name, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(line, "#") {
			all[name] = n
		}
	}
	return all
}

// requests are the agent's to the API server, by metric name and labels.
func (r *rig) requests() map[string]float64 {
	r.t.Helper()
	all := r.metrics()
	for name := range all {
		if !strings.HasPrefix(name, "weft_apiserver_requests_total") {
			delete(all, name)
		}
	}
	return all
}

// clean waits until nothing of Weft's work is left on the node: no pod is there any more.
func (r *rig) clean() {
	r.t.Helper()
	if err := r.within(limit, func() error { return r.leftovers() }); err != nil {
		r.t.Errorf("left on the node: %v", err)
	}
}

// leftovers names everything on the node that belongs to no living pod: records, leases of
// host-local, network namespaces, links, running delegates. Pods on the node's network have
// none of it.
func (r *rig) leftovers(living ...*corev1.Pod) error {
	ctx, cancel := context.WithTimeout(r.ctx(), time.Minute)
	defer cancel()
	const look = `cd /
		for f in /var/lib/weft/attachments/* /var/lib/weft/quarantine/*; do [ -f "$f" ] && echo record $f $(head -n1 "$f"); done
		for f in /var/lib/cni/networks/*/*; do [ -f "$f" ] && echo lease ${f##*/} $(tr '\r\n' '  ' < "$f"); done
		for f in /run/netns/* /var/run/netns/*; do [ -e "$f" ] && echo netns $f; done
		for f in /proc/[0-9]*/exe; do echo process $f $(readlink $f); done
		ip -json -details address | tr -d '\n' | sed 's/^/links /'; echo`
	out, err := r.node.Exec(ctx, "sh", "-c", look)
	if err != nil {
		return err
	}
	left := []string{}
	namespaces := map[string]bool{}
	for line := range strings.Lines(out) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "record":
			if !slices.ContainsFunc(living, func(p *corev1.Pod) bool { return strings.Contains(rest, string(p.UID)) }) {
				left = append(left, line)
			}
		case "lease":
			if ip, _, _ := strings.Cut(rest, " "); isAddress(ip) && !slices.ContainsFunc(living, func(p *corev1.Pod) bool { return hasAddress(p, ip) }) {
				left = append(left, line)
			}
		case "netns":
			namespaces[filepath.Base(rest)] = true
		case "process":
			if strings.Contains(rest, " /opt/cni/bin/") {
				left = append(left, line)
			}
		case "links":
			left = append(left, strayLinks(r.t, rest, len(living))...)
		}
	}
	if len(namespaces) > len(living) {
		left = append(left, fmt.Sprintf("netns: %d for %d pods: %v", len(namespaces), len(living), namespaces))
	}
	if len(left) > 0 {
		return errors.New(strings.Join(left, "; "))
	}
	return nil
}

// strayLinks are veth and macvlan links that no pod is behind; bridges are nobody's to delete.
func strayLinks(t *testing.T, text string, living int) (stray []string) {
	t.Helper()
	for name, l := range decodeLinks(t, text) {
		k := l.Info.Kind
		if name == "mgmt" || name == "data" || k == "veth" && living > 0 {
			continue
		}
		if slices.Contains([]string{"veth", "macvlan", "macvtap", "ipvlan", "vlan"}, k) {
			stray = append(stray, fmt.Sprintf("link %s (%s)", name, k))
		}
	}
	return stray
}

func isAddress(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

func hasAddress(p *corev1.Pod, ip string) bool {
	return p.Status.PodIP == ip || strings.Contains(p.Annotations[statusAnnotation], `"`+ip+`"`)
}
