// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weftnet/weft/test/lab"
)

const (
	node = "lab-vm"
	name = "web"
)

// kubectl runs kubectl as the administrator.
func kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := lab.Cluster(t).Kubectl(t.Context(), input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// launcherPod makes the launcher's pod, on a node that nobody runs; its UID.
func launcherPod(t *testing.T, namespace string) string {
	t.Helper()
	const status = `[{"name":"kindnet","interface":"eth0","ips":["10.244.0.9"],"default":true},{"name":"NS/red","interface":"podb1f51a511f1","ips":["192.0.2.7"]}]`
	lab.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  namespace: %[1]s
  name: virt-launcher-%[2]s
  labels: {kubevirt.io: virt-launcher}
  annotations:
    kubevirt.io/domain: %[2]s
    k8s.v1.cni.cncf.io/network-status: '%[4]s'
spec:
  nodeName: %[3]s
  automountServiceAccountToken: false
  containers: [{name: compute, image: none}]
`, namespace, name, node, strings.ReplaceAll(status, "NS", namespace)))
	return kubectl(t, "", "get", "pod", "-n", namespace, "virt-launcher-"+name, "-o", "jsonpath={.metadata.uid}")
}

// vmi makes a VirtualMachineInstance that runs in a pod of a node.
func vmi(t *testing.T, namespace, pod string) {
	t.Helper()
	crd, err := os.ReadFile("testdata/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lab.Apply(t, string(crd))
	kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/virtualmachineinstances.kubevirt.io")
	lab.Apply(t, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  namespace: %[1]s
  name: %[2]s
  labels: {kubevirt.io/nodeName: %[3]s}
spec:
  domain:
    devices:
      interfaces:
        - {name: red, bridge: {}}
        - {name: default, masquerade: {}}
  networks:
    - {name: red, multus: {networkName: red}}
    - {name: default, pod: {}}
status:
  phase: Running
  nodeName: %[3]s
  activePods: {%[4]s: %[3]s}
`, namespace, name, node, pod))
}

// agent is a running weft-agent of the node.
type agent struct {
	socket, metrics string
}

// startAgent runs the agent with the rights that deploy/ gives it for a mode.
func startAgent(t *testing.T, mode string) agent {
	t.Helper()
	dir := t.TempDir()
	port := freePort(t)
	a := agent{socket: filepath.Join(dir, "run/debug.sock"), metrics: port}
	conf := fmt.Sprintf(`nodeName: %s
kubeconfig: %s
stateDir: %s/state
socketDir: %[3]s/run
metricsAddress: %s
log: {level: debug, format: text}
cni: {enabled: false}
vmi: {mode: %s, podCacheDir: %[3]s/cache, pollInterval: 1s}
`, node, agentKubeconfig(t, dir, mode), dir, port, mode)
	if err := os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, "weft-agent"), "--config", filepath.Join(dir, "agent.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("the agent ended by itself: %v", err)
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := <-ended; err != nil {
				t.Errorf("agent ended: %v", err)
			}
		}
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("agent says:\n%s", text)
		}
		log.Close()
	})
	return a
}

// run starts a program that ends with this process, and waits for it. The kernel ends it with the
// thread that started it, and threads that entered a pod end: it has one for itself.
func run(cmd *exec.Cmd) (ended <-chan error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, result := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() //nolint:forbidigo // the lab is not linked with internal/host
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			result <- cmd.Wait()
		}
	}()
	return result, <-started
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// agentKubeconfig is the agent's account, with the shipped rights.
func agentKubeconfig(t *testing.T, dir, mode string) string {
	t.Helper()
	for _, file := range append([]string{"rbac.yaml"}, map[string][]string{"observe": {"vmi/rbac.yaml"}, "publish": {"vmi/rbac.yaml", "vmi/publish/rbac.yaml"}}[mode]...) {
		text, err := os.ReadFile(filepath.Join("../../../deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		lab.Apply(t, string(text))
	}
	if mode == "observe" {
		kubectl(t, "", "delete", "clusterrolebinding", "weft-agent-vmi-publish", "--ignore-not-found")
	}
	conf, err := clientcmd.LoadFromFile(lab.Cluster(t).Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range conf.AuthInfos {
		user.Impersonate = "system:serviceaccount:kube-system:weft-agent"
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*conf, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// get is what the agent says of the machine.
func (a agent) get(t *testing.T) func() (machine, error) {
	t.Helper()
	return func() (machine, error) {
		all, err := getVMIs(t, "--socket", a.socket)
		if err != nil {
			return machine{}, err
		}
		for _, m := range all {
			if m.Name == name {
				return m, nil
			}
		}
		return machine{}, errNone
	}
}

// metric is a number of the agent's.
func (a agent) metric(t *testing.T, want string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.metrics+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), want+" "); ok {
			return value
		}
	}
	return ""
}

// status is what stands in the object. It is asked for often, while a guest wants the processors.
func status(t *testing.T, namespace string) func() (machine, error) {
	t.Helper()
	client, err := dynamic.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	vmis := client.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}).Namespace(namespace)
	return func() (m machine, err error) {
		object, err := vmis.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return m, err
		}
		text, err := json.Marshal(object.Object["status"])
		if err != nil {
			return m, err
		}
		return m, json.Unmarshal(text, &m)
	}
}

// version is the object's.
func version(t *testing.T, namespace string) string {
	t.Helper()
	return kubectl(t, "", "get", "vmi", "-n", namespace, name, "-o", "jsonpath={.metadata.resourceVersion}")
}

func weft(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "weft"), args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
