// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/test/lab"
)

// Where the runtime finds what the agent publishes.
const (
	confDir       = "/etc/cni/net.d"
	publishedConf = confDir + "/00-weft.conflist"
)

// While the primary conf is broken or gone, what was published stays, with the last good one in
// it; the node is not Ready, as it would be without Weft; pods live, and are deleted. When it is
// back, so is the node, and whoever waited starts.
func TestPrimaryConf(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "conf0", "10.86.0.0/24")
	good, published := r.file(lab.PrimaryConf), r.file(publishedConf)
	restore := func() { r.write(lab.PrimaryConf, good) }
	t.Cleanup(restore)

	for _, c := range []struct{ name, script string }{
		{"truncated", ": > " + lab.PrimaryConf},
		{"removed", "rm " + lab.PrimaryConf},
	} {
		r.create(c.name+"-before", "bridge")
		r.create(c.name+"-stays", "bridge")
		stays := r.running(c.name+"-before", c.name+"-stays")
		r.step("the primary conf is %s", c.name)
		r.shell(c.script)
		r.nodeReady(false)
		r.step("the node says so")
		r.create(c.name+"-waits", "bridge")
		r.remove(c.name + "-before")
		r.wait("nothing to be left of a pod deleted meanwhile", func() error { return r.leftovers(stays) })
		r.hasNetworks(stays, 1)
		if now := r.file(publishedConf); now != published {
			t.Errorf("with the primary conf %s, what was published became %s", c.name, now)
		}
		r.step("the primary conf is back")
		restore()
		r.nodeReady(true)
		r.hasNetworks(r.running(c.name+"-waits"), 1)
		if now := r.file(publishedConf); now != published {
			t.Errorf("with the primary conf back, what was published became %s", now)
		}
		r.remove(c.name+"-waits", c.name+"-stays")
	}
}

// A primary conf that changes is published anew, and pods get what it says.
func TestPrimaryConfChanged(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "conf1", "10.87.0.0/24")
	good := r.file(lab.PrimaryConf)
	t.Cleanup(func() {
		r.write(lab.PrimaryConf, good)
		r.wait("the conf to be as it was", func() error { return r.published(`"mtu":1380`, false) })
	})
	var conf map[string]any
	if err := json.Unmarshal([]byte(good), &conf); err != nil {
		t.Fatal(err)
	}
	conf["plugins"].([]any)[0].(map[string]any)["mtu"] = 1380
	changed, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	r.write(lab.PrimaryConf, string(changed))
	r.wait("the changed conf", func() error { return r.published(`"mtu":1380`, true) })
	r.create("pod", "bridge")
	pod := r.running("pod")
	r.hasNetworks(pod, 1)
	if mtu := r.links(pod)["eth0"].MTU; mtu != 1380 {
		t.Errorf("eth0 has an MTU of %d, want that of the changed primary conf", mtu)
	}
	r.remove("pod")
}

// When another tool renames or removes what was published, it is there again within moments,
// and counted; pods get their networks.
func TestPublishedConfTakenAway(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "conf2", "10.88.0.0/24")
	published := r.file(publishedConf)
	const counter = "weft_conf_restored_total"
	before := r.metrics()[counter]
	renamed := publishedConf + ".cilium_bak"
	t.Cleanup(func() { r.node.Exec(r.ctx(), "rm", "-f", renamed) }) //nolint:errcheck // it may not be there
	for n, c := range []struct{ name, script string }{
		{"renamed", fmt.Sprintf("mv %s %s", publishedConf, renamed)},
		{"removed", "rm " + publishedConf},
		{"overwritten", "echo '{' > " + publishedConf},
	} {
		r.step("what was published is %s", c.name)
		r.shell(c.script)
		r.wait("it to be restored", func() error {
			now, err := r.node.Exec(t.Context(), "cat", publishedConf)
			if err != nil {
				return err
			}
			if now != published {
				return fmt.Errorf("it is %q", now)
			}
			return nil
		})
		r.wait("it to be counted", func() error {
			if got := r.metrics()[counter] - before; got != float64(n+1) {
				return fmt.Errorf("%s grew by %v, want %d", counter, got, n+1)
			}
			return nil
		})
		// The runtime reads the directory when it changes.
		r.nodeReady(true)
		name := "after-" + c.name
		r.create(name, "bridge")
		r.hasNetworks(r.running(name), 1)
		r.remove(name)
	}
	if got := strings.Fields(r.shell("ls -A " + confDir)); len(got) != 3 {
		t.Errorf("in %s are %q, want the primary conf, what was published and what was renamed", confDir, got)
	}
}

// write replaces a file of the node, as an installer does: by rename.
func (r *rig) write(path, content string) {
	r.t.Helper()
	script := fmt.Sprintf("printf %%s \"$1\" > %[1]s.new && mv %[1]s.new %[1]s", path)
	if _, err := r.node.Exec(r.ctx(), "sh", "-c", script, "sh", content); err != nil {
		r.t.Fatal(err)
	}
}

// published says whether what was published has that text, or has it not.
func (r *rig) published(text string, want bool) error {
	now, err := r.node.Exec(r.ctx(), "cat", publishedConf)
	if err != nil {
		return err
	}
	if strings.Contains(now, text) != want {
		return fmt.Errorf("it is %s", now)
	}
	return nil
}

// nodeReady waits until the node is Ready, or is not.
func (r *rig) nodeReady(want bool) {
	r.t.Helper()
	r.wait(fmt.Sprintf("the node's condition Ready to be %v", want), func() error {
		ready, message, err := r.ready(r.ctx())
		if err == nil && ready != want {
			err = errors.New("it is not: " + message)
		}
		return err
	})
}
