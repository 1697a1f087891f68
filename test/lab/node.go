// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/build"
	"github.com/weftnet/weft/test/lab/image"
)

// Processes of a node, by the names of their logs.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
)

// Links of a node: one that reaches the control plane and the other nodes, one for the second
// interfaces of pods.
const (
	managementLink = "mgmt"
	dataLink       = "data"
)

// Where a node has what is the lab's own.
const (
	nodeLab       = "/lab"
	nodeBin       = nodeLab + "/bin"
	nodeEtc       = nodeLab + "/etc"
	nodeLog       = nodeLab + "/log"
	nodeImages    = nodeLab + "/images"
	runtimeSocket = "/run/containerd/containerd.sock"
)

// Node is a machine of the cluster: a box with the machine's files below and its own above.
type Node struct {
	Name    string
	Address string // on the management link
	Subnet  string // of its pods
	Logs    string // directory, on the machine

	cp        *ControlPlane
	number    int
	cgroup    string
	box       *box.Box
	machine   *machine // nil: a box of this machine
	processes map[string]box.Process
}

// StartNode adds the next node: n1, n2, … It returns when the node is Ready.
func (cp *ControlPlane) StartNode(ctx context.Context) (*Node, error) {
	if !cp.options.Controllers {
		return nil, errors.New("start a node: this control plane is without controllers")
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("start a node: a node needs root")
	}
	programs, err := cp.nodePrograms(ctx)
	if err != nil {
		return nil, err
	}
	n, err := cp.newNode("", nil)
	if err != nil {
		return nil, err
	}
	if err := n.steps(ctx,
		n.makeCgroup,
		n.makeBox,
		n.connect,
		func(context.Context) error { return n.makeRoot(programs) },
		n.startRuntime,
		n.startKubelet,
		n.Ready,
	); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) steps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return fmt.Errorf("start node %s: %w", n.Name, err)
		}
	}
	return nil
}

// programs is what a node's own directories are filled with.
type programs struct{ kube, runtime, plugins build.Set }

func (cp *ControlPlane) nodePrograms(ctx context.Context) (programs, error) {
	runtime, err := cp.builder.Runtime(ctx)
	if err != nil {
		return programs{}, err
	}
	plugins, err := cp.builder.Plugins(ctx)
	return programs{kube: cp.kube, runtime: runtime, plugins: plugins}, err
}

// newNode is one that has not started yet, under the next name where none is given. From here on Stop
// ends it.
func (cp *ControlPlane) newNode(name string, m *machine) (*Node, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.started++
	number := cp.started
	n := &Node{
		Name: cmp.Or(name, fmt.Sprintf("n%d", number)), Address: fmt.Sprintf("172.31.255.%d", 10+number),
		Subnet: fmt.Sprintf("10.244.%d.0/24", number), cp: cp, number: number, machine: m,
		processes: map[string]box.Process{},
	}
	n.Logs = cp.space.log(n.Name)
	if err := os.MkdirAll(n.Logs, 0o755); err != nil {
		return nil, err
	}
	cp.nodes = append(cp.nodes, n)
	return n, nil
}

func (n *Node) makeCgroup(context.Context) error {
	n.cgroup = "weft-lab-" + n.cp.space.id + "-" + n.Name
	if err := n.cp.space.note(func(r *record) { r.Cgroups = append(r.Cgroups, n.cgroup) }); err != nil {
		return err
	}
	if err := makeCgroup(n.cgroup); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// Nodes are those that were started.
func (cp *ControlPlane) Nodes() []*Node {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return append([]*Node(nil), cp.nodes...)
}

func (n *Node) makeBox(context.Context) error {
	log, err := os.Create(filepath.Join(n.Logs, "init.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	if n.box, err = box.New(n.Name, log); err != nil {
		return err
	}
	return n.cp.space.notePID(n.box.PID())
}

// connect gives the node its two links and the lab a way to its pods.
func (n *Node) connect(ctx context.Context) error {
	var inLab []string
	for _, link := range []string{managementLink, dataLink} {
		outer := link + "-" + n.Name
		inLab = append(inLab,
			fmt.Sprintf("link add %s type veth peer name %s netns %d", outer, link, n.box.PID()),
			fmt.Sprintf("link set %s master %s0 up", outer, link))
	}
	inLab = append(inLab, fmt.Sprintf("route add %s via %s onlink dev %s0", n.Subnet, n.Address, managementLink))
	if err := ip(ctx, n.cp.box, inLab...); err != nil {
		return err
	}
	return ip(ctx, n.box,
		fmt.Sprintf("address add %s/24 dev %s", n.Address, managementLink),
		"link set "+managementLink+" up",
		"link set "+dataLink+" up",
		"route add default via "+managementIP)
}

// ip runs lines of ip(8) on the network of a box.
func ip(ctx context.Context, b *box.Box, lines ...string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := b.StartOnNetwork(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("set up links: %w: %s", err, out.String())
	}
	return nil
}

// makeRoot fills the node. Where Kubernetes and its neighbours look by default, the machine's
// own directories are covered by empty ones.
func (n *Node) makeRoot(p programs) error {
	write, err := n.files()
	if err != nil {
		return err
	}
	images, err := n.cp.images()
	if err != nil {
		return err
	}
	root := box.Root{
		Hostname: n.Name, Size: "4g",
		Memory: []string{"/run", "/tmp"},
		Fresh: []string{
			"/etc/cni", "/opt/cni", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/weft",
			"/var/log/pods", "/var/log/containers", "/etc/kubernetes", "/etc/containerd", "/etc/cdi", nodeLab,
		},
		Bind:  map[string]string{nodeLog: n.Logs, nodeImages: images, path.Join(nodeBin, "kube"): p.kube.Path("kube")},
		Write: write,
		// runc seals its own file through an overlay of its directory, which does not see a bind
		// mount over the file: so it is a copy. A plugin is replaced by rename, as is Weft's.
		Copy: map[string]string{path.Join(nodeBin, "runc"): p.runtime.Path("runc")},
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		root.Bind[path.Join(nodeBin, name)] = p.runtime.Path(name)
	}
	plugins, err := os.ReadDir(p.plugins.Dir)
	if err != nil {
		return err
	}
	for _, e := range plugins {
		root.Copy[path.Join("/opt/cni/bin", e.Name())] = p.plugins.Path(e.Name())
	}
	return n.box.SetRoot(root)
}

func (n *Node) startRuntime(ctx context.Context) error {
	if err := n.launchRuntime(ctx); err != nil {
		return err
	}
	return n.ImportImage(ctx, path.Join(nodeImages, baseImages))
}

func (n *Node) launchRuntime(ctx context.Context) error {
	err := n.start(Containerd, path.Join(nodeBin, "containerd"), "--config", nodeEtc+"/containerd.toml")
	if err != nil {
		return err
	}
	return n.RuntimeReady(ctx)
}

// RuntimeReady waits until containerd answers.
func (n *Node) RuntimeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.patience(), errors.New("not ready in time"))
	defer cancel()
	if err := poll(ctx, func() error { return n.quiet(ctx, "ctr", "--connect-timeout=1s", "version") }); err != nil {
		return fmt.Errorf("wait for containerd: %w\n%s", err, tail(filepath.Join(n.Logs, Containerd+".log")))
	}
	return nil
}

// ImportImage gives the node the images of a docker-archive; archive is a path of the node.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	return n.quiet(ctx, "ctr", "--namespace=k8s.io", "image", "import", archive)
}

func (n *Node) startKubelet(context.Context) error {
	return n.start(Kubelet, path.Join(nodeBin, "kube"), "kubelet", "--kubeconfig="+nodeEtc+"/kubelet.kubeconfig",
		"--config="+nodeEtc+"/kubelet.yaml", "--hostname-override="+n.Name, "--node-ip="+n.Address)
}

// start starts a process of the node for the first time.
func (n *Node) start(name string, args ...string) error {
	n.processes[name] = box.Process{Name: name, Args: args, Env: environment(), Log: path.Join(nodeLog, name+".log")}
	return n.Start(name)
}

// Start starts Containerd or Kubelet again after it has ended.
func (n *Node) Start(name string) error {
	_, err := n.box.Start(n.processes[name])
	return err
}

// End sends Containerd or Kubelet a signal and waits until it has ended.
func (n *Node) End(ctx context.Context, name string, s syscall.Signal) error {
	return n.box.End(ctx, name, s)
}

// Ready waits until the node's condition Ready is true, as of now or later.
func (n *Node) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.patience(), errors.New("not ready in time"))
	defer cancel()
	client, err := kubernetes.NewForConfig(n.cp.Config())
	if err != nil {
		return err
	}
	err = poll(ctx, func() error {
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
			if c.Type == corev1.NodeReady {
				return errors.New(c.Message)
			}
		}
		return errors.New("no status yet")
	})
	if err != nil {
		return fmt.Errorf("wait for node: %w\n%s", err, tail(filepath.Join(n.Logs, Kubelet+".log")))
	}
	return nil
}

// Command is a command in the node: its namespaces, its root, its PATH. Run it by Exec or, with
// streams of one's own, by Box.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd { return nodeCommand(ctx, args) }

// nodeCommand lets env(1) look the program up, behind the node's root.
func nodeCommand(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/usr/bin/env", args...)
	cmd.Env, cmd.Dir = environment(), "/"
	cmd.WaitDelay = 5 * time.Second // a grandchild may hold the streams
	return cmd
}

// StartCommand starts what Command returned.
func (n *Node) StartCommand(cmd *exec.Cmd) error { return n.box.StartInside(cmd) }

// PID is the machine's number of the node's first process; its namespaces are the node's.
func (n *Node) PID() int { return n.box.PID() }

// close ends the node at once.
func (n *Node) close() error {
	var errs []error
	if n.machine != nil {
		errs = append(errs, n.cutPower())
	}
	if n.box != nil {
		errs = append(errs, n.box.Close())
	}
	return errors.Join(errs...)
}

// patience bounds what a node takes: an emulated machine has much less to do it with.
func (n *Node) patience() time.Duration {
	if n.machine != nil {
		return 3 * readyTimeout
	}
	return readyTimeout
}

// Exec runs a command in the node and returns what it wrote to stdout.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	if n.machine != nil {
		return n.execThere(ctx, args)
	}
	cmd := n.Command(ctx, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := n.StartCommand(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("run %s on %s: %w: %s", strings.Join(args, " "), n.Name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (n *Node) quiet(ctx context.Context, args ...string) error {
	_, err := n.Exec(ctx, args...)
	return err
}

const baseImages = "base.tar"

// images writes the archive that every node starts with, and returns its directory.
func (cp *ControlPlane) images() (string, error) {
	dir := cp.space.path("images")
	archive := filepath.Join(dir, baseImages)
	if _, err := os.Stat(archive); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	busybox, err := image.Busybox()
	if err != nil {
		return "", err
	}
	pause := busybox
	pause.Name = pauseImage
	return dir, image.Write(archive, busybox, pause)
}

// clientTLS is a kubelet's identity.
func (n *Node) clientTLS() (rest.TLSClientConfig, error) {
	pair, err := n.cp.authority.issue(subject{name: "system:node:" + n.Name, groups: []string{"system:nodes"}})
	return rest.TLSClientConfig{CAData: n.cp.authority.pem, CertData: pair.cert, KeyData: pair.key}, err
}
