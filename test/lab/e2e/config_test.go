// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// configKey is the agent's file in its ConfigMap.
const configKey = "agent.yaml"

// configure gives the agents another configuration, as an administrator does: the ConfigMap,
// then another agent. At the test's end the shipped one is back.
func (r *rig) configure(text string) {
	r.t.Helper()
	before := r.setConfig(text)
	if !r.configured {
		r.configured = true
		r.t.Cleanup(func() {
			r.setConfig(before)
			r.replaceAgent()
		})
	}
	r.replaceAgent()
}

// setConfig changes the ConfigMap and returns what it held.
func (r *rig) setConfig(text string) (before string) {
	r.t.Helper()
	maps := r.kube.CoreV1().ConfigMaps(agentNamespace)
	m, err := maps.Get(r.ctx(), agentName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	before = m.Data[configKey]
	m.Data[configKey] = text
	if _, err := maps.Update(r.ctx(), m, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	return before
}

// wrongConfig has a fault in every line but those that open a section.
const wrongConfig = `nodeName: Node_1
stateDir: state
socketDir: 7
metricsAddress: everywhere
pprof: perhaps
log:
  level: loud
  format: xml
cni:
  confDir: etc
  confName: a/b.conflist
  binDir: [bin]
  statusTimeout: 5h
  kubeletDir: ""
  delegateLimit: many
  kubeconfig: /etc/admin.conf
  confdir: /etc/cni/net.d
networkDriver:
  enabled: maybe
vmi:
  policy: best
colour: blue
`

// wrongKeys are its faults.
func wrongKeys() []string {
	return []string{
		":1: nodeName: ", ":2: stateDir: ", ":3: socketDir: ", ":4: metricsAddress: ", ":5: pprof: ", ":7: log.level: ", ":8: log.format: ",
		":10: cni.confDir: ", ":11: cni.confName: ", ":12: cni.binDir: ", ":13: cni.statusTimeout: ", ":14: cni.kubeletDir: ",
		":15: cni.delegateLimit: ", ":16: cni.kubeconfig: ", ":17: cni.confdir: ", ":19: networkDriver.enabled: ", ":21: vmi.policy: ", ":22: colour: ",
	}
}

// A wrong configuration is told in full, every fault with its line and key, ends with exit code
// 2, and nothing of the node is touched: by no command of the agent.
func TestWrongConfiguration(t *testing.T) {
	r := newRig(t)
	weft := r.mountImage()
	if _, err := r.node.Exec(t.Context(), "sh", "-c", "cat > /tmp/wrong.yaml <<'END'\n"+wrongConfig+"END"); err != nil {
		t.Fatal(err)
	}
	before := r.touched()
	for _, command := range []string{"", "install", "uninstall", "check-config"} {
		args := strings.Fields(weft + "/weft-agent " + command + " --config /tmp/wrong.yaml")
		cmd := r.node.Command(t.Context(), args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := r.node.StartCommand(cmd); err != nil {
			t.Fatal(err)
		}
		status, ok := errors.AsType[*exec.ExitError](cmd.Wait())
		if !ok || status.ExitCode() != 2 {
			t.Errorf("weft-agent %s: %v, not exit code 2", command, status)
		}
		checkFaults(t, "weft-agent "+command, out.String())
	}
	if diff := cmp.Diff(before, r.touched()); diff != "" {
		t.Errorf("something was touched (-before +after):\n%s", diff)
	}
}

func checkFaults(t *testing.T, who, text string) {
	t.Helper()
	for _, key := range wrongKeys() {
		if strings.Count(text, key) != 1 {
			t.Errorf("%s says %q %d times, not once", who, key, strings.Count(text, key))
		}
	}
	if lines := strings.Count(text, ".yaml:"); lines != len(wrongKeys()) {
		t.Errorf("%s tells %d faults, not %d:\n%s", who, lines, len(wrongKeys()), text)
	}
}

// touched is the state of every file that an agent could touch. Left out is what the runtime
// does meanwhile: it repeats DEL for sandboxes that are long gone, whose locks are empty records.
func (r *rig) touched() (files []string) {
	r.t.Helper()
	out, err := r.node.Exec(r.t.Context(), "sh", "-c",
		`find /etc/cni /opt/cni /run/weft /var/lib/weft /var/lib/cni state etc -printf '%p %i %m %U %s %T@ %l\n' 2>/dev/null | sort`)
	if err != nil && out == "" {
		r.t.Fatal(err)
	}
	const records = "/var/lib/weft/attachments"
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if f[0] == records || strings.HasPrefix(f[0], records+"/") && f[4] == "0" {
			continue
		}
		files = append(files, strings.TrimSpace(line))
	}
	return files
}

// A wrong ConfigMap keeps the new agent from starting, with every fault in the init container's
// log; what was published stays, and plain pods start. With the right one all goes on.
func TestWrongConfigMap(t *testing.T) {
	r := newRig(t)
	published := r.file("/etc/cni/net.d/00-weft.conflist")
	before := r.setConfig(wrongConfig)
	restored := false
	restore := func() {
		if !restored {
			restored = true
			r.setConfig(before)
			r.replaceAgent()
		}
	}
	t.Cleanup(restore)
	r.deleteAgent()
	r.wait("the init container to fail", func() error {
		pod, err := r.agentPod()
		if err != nil {
			return err
		}
		for _, s := range pod.Status.InitContainerStatuses {
			for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if ended != nil && ended.ExitCode == 2 {
					return nil
				}
			}
		}
		text, err := json.Marshal(pod.Status.InitContainerStatuses)
		return fmt.Errorf("%s, %w", text, err)
	})
	checkFaults(t, "the init container", r.initLog())
	if now := r.file("/etc/cni/net.d/00-weft.conflist"); now != published {
		t.Errorf("what was published changed to %s", now)
	}
	r.create("plain", "")
	r.running("plain")
	r.step("a plain pod runs without an agent")
	r.nad("bridge", bridgeConfig)
	r.create("waits", "bridge")
	r.eventAbout("waits", "the node's agent does not answer")
	restore()
	r.running("waits")
	r.remove("plain", "waits")
}

// initLog is the whole log of an attempt of the agent's init container that ended. The kubelet
// starts it again and again, so that the container that is there now may have said nothing yet.
func (r *rig) initLog() (log string) {
	r.t.Helper()
	r.wait("the log of an init container that ended", func() error {
		pod, err := r.agentPod()
		if err != nil {
			return err
		}
		for _, s := range pod.Status.InitContainerStatuses {
			args := []string{"--namespace=" + agentNamespace, "logs", pod.Name, "--container=" + s.Name}
			if s.State.Terminated == nil {
				args = append(args, "--previous")
			}
			if log, err = r.cp.Kubectl(r.t.Context(), "", args...); err != nil {
				return err
			}
			// Between the two requests the kubelet may have started it once more.
			again, err := r.agentPod()
			if err != nil {
				return err
			}
			for _, now := range again.Status.InitContainerStatuses {
				if now.RestartCount != s.RestartCount || now.ContainerID != s.ContainerID {
					return errors.New("it was started again meanwhile")
				}
			}
			// Of a container that was removed meanwhile, the kubelet gives this in place of a log.
			if log != "" && !strings.HasPrefix(log, "unable to retrieve container logs") {
				return nil
			}
		}
		return fmt.Errorf("it says %q", log)
	})
	return log
}

// file reads a file of the node.
func (r *rig) file(path string) string {
	r.t.Helper()
	out, err := r.node.Exec(r.t.Context(), "cat", path)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// mountImage mounts Weft's image on the node, as docs/agent.md says, and returns where.
func (r *rig) mountImage() string {
	r.t.Helper()
	const where = "/mnt"
	if _, err := r.node.Exec(r.t.Context(), "ctr", "--namespace=k8s.io", "images", "mount", "localhost/weft/weft:dev", where); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if _, err := r.node.Exec(r.ctx(), "ctr", "--namespace=k8s.io", "images", "unmount", "--rm", where); err != nil {
			r.t.Error(err)
		}
	})
	return where
}

// ctx outlives the test's: for what is done at its end.
func (r *rig) ctx() context.Context { return context.WithoutCancel(r.t.Context()) }
