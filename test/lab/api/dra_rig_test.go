// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/weftnet/weft/internal/agent"
	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/host/logs/logstest"
	"github.com/weftnet/weft/test/lab"
)

const (
	draDriver      = "networkdriver.cilium.io"
	agentNamespace = "kube-system"
	agentAccount   = "weft-agent"
	driverRole     = "weft-agent-network-driver"
)

// memory is a machine in memory, which nothing has to be closed of.
type memory struct{ *kerneltest.Machine }

func (memory) Close() error { return nil }

// draNode is a node of the cluster without containers: the agent's own code under the rights that
// deploy/ ships, on a machine in memory, and a kubelet whose sockets are real.
type draNode struct {
	t       *testing.T
	name    string
	kube    kubernetes.Interface // the administrator's
	host    *kerneltest.Machine
	kubelet *kubelettest.Kubelet
	dir     string
	token   string
	server  string // what the agent takes for the API server, whose certificates ca is of; "": the lab's
	ca      []byte
	stop    func()
}

// draReady says that the one cluster has what draCluster gives it.
var draReady sync.Once //nolint:gochecknoglobals // as the cluster itself

// draCluster is the cluster with the definitions, rights and policies of deploy/, and what allocates.
func draCluster(t *testing.T) kubernetes.Interface {
	t.Helper()
	draReady.Do(func() {
		lab.InstallCRDs(t)
		lab.Apply(t, shipped(t, "rbac.yaml", "policy.yaml", "network-driver/rbac.yaml"), "--server-side", "--force-conflicts")
		if err := lab.Cluster(t).StartScheduling(); err != nil {
			t.Fatal(err)
		}
	})
	client, err := kubernetes.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// shipped are files of deploy/, as they are.
func shipped(t *testing.T, files ...string) string {
	t.Helper()
	var all []string
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join("../../../deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(content))
	}
	return strings.Join(all, "\n---\n")
}

// startNode makes a node, and starts its agent.
func startNode(t *testing.T, kube kubernetes.Interface, name string) *draNode {
	t.Helper()
	n := newNode(t, kube, name)
	n.start()
	return n
}

// newNode makes a node whose card ens1f0 can have eight VFs.
func newNode(t *testing.T, kube kubernetes.Interface, name string) *draNode {
	t.Helper()
	n := &draNode{t: t, name: name, kube: kube, host: kerneltest.NewMachine(), kubelet: kubelettest.Start(t), dir: t.TempDir()}
	n.host.AddPF("0000:03:00.0", "ens1f0", 8)
	n.host.ChangeFunction("0000:03:00.0", func(f *kernel.Function) { f.Vendor, f.Device, f.Driver = "0x15b3", "0x101d", "mlx5_core" })
	n.join()
	n.token = n.issue()
	return n
}

// join adds the Node, ready for pods. No kubelet says so again, and no controller asks.
func (n *draNode) join() {
	n.t.Helper()
	nodes := n.kube.CoreV1().Nodes()
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi")}
	made, err := nodes.Create(n.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelHostname: n.name}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Lab"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.atEnd("node", func(ctx context.Context) error { return nodes.Delete(ctx, n.name, metav1.DeleteOptions{}) })
	n.atEnd("slices", func(ctx context.Context) error {
		return n.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name})
	})
	made.Spec.Taints = nil // the server's, until a controller finds the node ready
	if _, err := nodes.Update(n.t.Context(), made, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// issue gives the token that the pod of the node's agent would have: it names the node.
func (n *draNode) issue() string {
	n.t.Helper()
	pods := n.kube.CoreV1().Pods(agentNamespace)
	pod, err := pods.Create(n.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: agentAccount + "-" + n.name},
		Spec: corev1.PodSpec{
			NodeName: n.name, ServiceAccountName: agentAccount, Containers: []corev1.Container{{Name: "agent", Image: "weft"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.atEnd("the agent's pod", func(ctx context.Context) error {
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	})
	if err := lab.Cluster(n.t).DefaultRoles(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	request, err := n.kube.CoreV1().ServiceAccounts(agentNamespace).CreateToken(n.t.Context(), agentAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return request.Status.Token
}

// atEnd has something done at the test's end, when its context is over.
func (n *draNode) atEnd(what string, f func(context.Context) error) {
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) //nolint:usetesting // the test's own is over
		defer cancel()
		if err := f(ctx); err != nil && !apierrors.IsNotFound(err) {
			n.t.Errorf("remove %s: %v", what, err)
		}
	})
}

// start starts the agent with what is in its state directory. It ends with the test, or by stop.
func (n *draNode) start() {
	n.t.Helper()
	cluster := lab.Cluster(n.t).Config()
	file := api.NewConfig()
	file.Clusters["lab"] = &api.Cluster{Server: cluster.Host, CertificateAuthorityData: cluster.CAData}
	if n.server != "" {
		file.Clusters["lab"] = &api.Cluster{Server: n.server, CertificateAuthorityData: n.ca}
	}
	file.AuthInfos["agent"] = &api.AuthInfo{Token: n.token}
	file.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "agent"}
	file.CurrentContext = "lab"
	kubeconfig := filepath.Join(n.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*file, kubeconfig); err != nil {
		n.t.Fatal(err)
	}
	cfg, err := config.Parse("agent.yaml", fmt.Appendf(nil, `
nodeName: %[4]s
kubeconfig: %[2]s
stateDir: %[1]s/state
socketDir: %[3]s/run
metricsAddress: ""
cni: {confDir: %[1]s, binDir: %[1]s, kubeletDir: %[1]s}
networkDriver: {enabled: true, kubeletDir: %[3]s, nriSocket: %[3]s/nri.sock, sysfs: %[1]s}
`, n.dir, kubeconfig, n.kubelet.Dir(), n.name), config.Overrides{})
	if err != nil {
		n.t.Fatal(err)
	}
	var log logstest.Buffer
	a, err := agent.New(cfg, "v0", slog.New(slog.NewTextHandler(&log, nil)).With("node", n.name))
	if err != nil {
		n.t.Fatal(err)
	}
	a.OnMachine(memory{n.host})
	ctx, cancel := context.WithCancel(context.Background()) //nolint:usetesting // it ends before what it uses does
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				n.t.Error(err)
			}
			if n.t.Failed() {
				n.t.Logf("the agent of %s:\n%s", n.name, log.String())
			}
		})
	}
	n.t.Cleanup(n.stop)
}

// configure writes the node's configuration, and waits until the driver is registered and says that
// it is ready.
func (n *draNode) configure(spec string) {
	n.t.Helper()
	object, err := json.Marshal(driverConfig(n.t, nodeConfigKind, n.name, spec).Object)
	if err != nil {
		n.t.Fatal(err)
	}
	lab.Apply(n.t, string(object))
	n.configured()
}

// configured waits until the configuration that the API has is in force.
func (n *draNode) configured() {
	n.t.Helper()
	configs := n.configs()
	n.atEnd("the configuration", func(ctx context.Context) error { return configs.Delete(ctx, n.name, metav1.DeleteOptions{}) })
	eventually(n.t, "the configuration of "+n.name+" to be in force", func() error {
		got, err := configs.Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _ := json.Marshal(got.Object["status"])
		var now struct{ Conditions []metav1.Condition }
		if err := json.Unmarshal(status, &now); err != nil && len(now.Conditions) == 0 {
			return err
		}
		for _, c := range now.Conditions {
			if c.Status != metav1.ConditionTrue || c.ObservedGeneration != got.GetGeneration() {
				return fmt.Errorf("it says %s", status)
			}
		}
		if len(now.Conditions) != 2 {
			return fmt.Errorf("it says %s", status)
		}
		return nil
	})
	n.kubelet.WaitFor(draDriver)
}

func (n *draNode) configs() dynamic.ResourceInterface {
	n.t.Helper()
	client, err := dynamic.NewForConfig(lab.Cluster(n.t).Config())
	if err != nil {
		n.t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "cilium.io", Version: "v2alpha1", Resource: nodeConfigs})
}

// slices are the node's, sorted by pool and name.
func (n *draNode) slices() []resourceapi.ResourceSlice {
	n.t.Helper()
	list, err := n.kube.ResourceV1().ResourceSlices().List(n.t.Context(), metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name})
	if err != nil {
		n.t.Fatal(err)
	}
	return list.Items
}

// offers waits until the node's slices hold exactly these devices.
func (n *draNode) offers(want ...string) {
	n.t.Helper()
	slices.Sort(want)
	eventually(n.t, fmt.Sprintf("%s to offer %d devices", n.name, len(want)), func() error {
		var got []string
		for _, s := range n.slices() {
			for _, d := range s.Spec.Devices {
				got = append(got, d.Name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("it offers %q", got)
		}
		return nil
	})
}

// prepare has the kubelet prepare a claim, and gives what is wrong with that.
func (n *draNode) prepare(claim *resourceapi.ResourceClaim) error {
	n.t.Helper()
	answers, err := n.kubelet.Prepare(n.t.Context(), draDriver, wireClaim(claim))
	if text := answers[string(claim.UID)].GetError(); err == nil && text != "" {
		err = errors.New(text)
	}
	return err
}

// unprepare has the kubelet give a claim back.
func (n *draNode) unprepare(claim *resourceapi.ResourceClaim) {
	n.t.Helper()
	answers, err := n.kubelet.Unprepare(n.t.Context(), draDriver, wireClaim(claim))
	if text := answers[string(claim.UID)].GetError(); err != nil || text != "" {
		n.t.Fatalf("unprepare claim %s: %v %s", claim.Name, err, text)
	}
}

func wireClaim(c *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// debug is a client of the agent's debug socket.
func (n *draNode) debug() *debug.Client {
	c := debug.NewClient(filepath.Join(n.kubelet.Dir(), "run", "debug.sock"))
	n.t.Cleanup(c.Close)
	return c
}

// eventually waits until f gives no error.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	const patient = 30 * time.Second
	late := time.NewTimer(patient)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}

// bound waits until a pod is bound to a node, and gives the claim of its first resource.
func bound(t *testing.T, kube kubernetes.Interface, namespace, pod string) (*resourceapi.ResourceClaim, string) {
	t.Helper()
	var p *corev1.Pod
	eventually(t, "pod "+pod+" to be bound", func() (err error) {
		if p, err = kube.CoreV1().Pods(namespace).Get(t.Context(), pod, metav1.GetOptions{}); err != nil {
			return err
		}
		if p.Spec.NodeName == "" {
			return fmt.Errorf("its conditions are %v", p.Status.Conditions)
		}
		return nil
	})
	name := p.Spec.ResourceClaims[0].ResourceClaimName
	if name == nil {
		name = p.Status.ResourceClaimStatuses[0].ResourceClaimName
	}
	return claimOf(t, kube, namespace, *name), p.Spec.NodeName
}

func claimOf(t *testing.T, kube kubernetes.Interface, namespace, name string) *resourceapi.ResourceClaim {
	t.Helper()
	claim, err := kube.ResourceV1().ResourceClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}
