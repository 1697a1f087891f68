// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// bridgeConfig is a network on each node, dataConfig one that joins the nodes.
	bridgeConfig = `{"cniVersion":"1.0.0","type":"bridge","bridge":"e2e0","ipam":{"type":"host-local","subnet":"10.55.0.0/24"}}`
	dataConfig   = `{"cniVersion":"1.0.0","type":"macvlan","master":"data","mode":"bridge","ipam":{"type":"host-local","subnet":"10.56.0.0/24"}}`
)

// Two pods on a bridge and on a macvlan reach each other on both: what one says is heard by the
// other, at the address of that network. With its interface down it is not.
func TestReach(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	for _, name := range []string{"one", "two"} {
		r.create(name, "bridge, data")
	}
	one, two := r.running("one"), r.running("two")
	r.step("both pods run")
	for _, network := range []struct{ link, subnet string }{{"net1", "10.55.0."}, {"net2", "10.56.0."}} {
		for _, way := range [][2]*corev1.Pod{{one, two}, {two, one}} {
			if err := r.say(way[0], way[1], r.address(way[1], network.link, network.subnet), 10); err != nil {
				t.Errorf("%s, from %s to %s: %v", network.link, way[0].Name, way[1].Name, err)
			}
		}
		r.step("%s carries both ways", network.link)
	}
	for link, subnet := range map[string]string{"net1": "10.55.0.", "net2": "10.56.0."} {
		address := r.address(two, link, subnet)
		r.inNetwork(two, "ip", "link", "set", link, "down")
		if err := r.say(one, two, address, 1); err == nil {
			t.Errorf("%s: what was said arrived although the interface is down", link)
		}
	}
	r.remove("one", "two")
	r.step("both pods are gone")
}

// address is the one address of a pod's interface, which must be of a subnet.
func (r *rig) address(pod *corev1.Pod, name, subnet string) string {
	r.t.Helper()
	all := r.links(pod)[name].global()
	if len(all) != 1 || !strings.HasPrefix(all[0], subnet) {
		r.t.Fatalf("pod %s: %s has %q, not one address of %s0/24", pod.Name, name, all, subnet)
	}
	address, _, _ := strings.Cut(all[0], "/")
	return address
}

// say sends a word that nobody can guess from one pod to another, by TCP, and compares what was
// heard there. A listener takes a moment to listen, so it says it a few times.
func (r *rig) say(from, to *corev1.Pod, address string, tries int) error {
	r.t.Helper()
	const port = "7777"
	word := rand.Text()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	var heard strings.Builder
	listener := r.inPod(ctx, to, "nc", "-l", "-p", port)
	listener.Stdout = &heard
	// Without input of its own it would end the connection from its side, and a speaker that hears so
	// before it has its word says nothing.
	silent, err := listener.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // nothing was written
	if err := listener.Start(); err != nil {
		r.t.Fatal(err)
	}
	for range tries {
		speaker := r.inPod(ctx, from, "sh", "-c", "echo $0 | nc -w 2 $1 $2", word, address, port)
		var out []byte
		if out, err = speaker.CombinedOutput(); err == nil {
			break
		}
		err = fmt.Errorf("say it: %w: %s", err, out)
	}
	if err != nil {
		cancel()
		listener.Wait() //nolint:errcheck // it was killed
		return err
	}
	if err := listener.Wait(); err != nil {
		return fmt.Errorf("hear it: %w", err)
	}
	if got := strings.TrimSpace(heard.String()); got != word {
		return fmt.Errorf("heard %q in place of %q", got, word)
	}
	return nil
}

// inPod is a command in a pod's file system and network, which ends with the context.
func (r *rig) inPod(ctx context.Context, pod *corev1.Pod, args ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(r.pid(pod)), "--net", "--mount"}, args...)...)
	cmd.Env = []string{"PATH=/bin"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
