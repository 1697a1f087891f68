// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/vm"
)

// machine is what a node has that is one of its own, emulated (package vm): its own kernel, disk, and
// SR-IOV card, whose cable is plugged into the link that the other nodes know as "data".
type machine struct {
	disk string
	ran  int // commands, for the names of what they wrote
}

// PF is what the card's link is called.
const PF = "ens1f0"

// share is where a machine sees the lab's directory.
const share = "/share"

// StartMachine adds a node of that name that is an emulated machine with an SR-IOV card, PF, of seven
// virtual functions, none of which is there yet. It returns when the node is Ready, which takes a
// minute.
func (cp *ControlPlane) StartMachine(ctx context.Context, name string) (*Node, error) {
	if !cp.options.Controllers || os.Geteuid() != 0 {
		return nil, errors.New("start a machine: it needs a control plane with controllers, and root")
	}
	programs, err := cp.nodePrograms(ctx)
	if err != nil {
		return nil, err
	}
	n, err := cp.newNode(name, &machine{})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	defer func() {
		fmt.Fprintf(cp.options.Progress, "lab: machine %s took %.1f s to start\n", n.Name, time.Since(start).Seconds())
	}()
	if err := n.steps(ctx,
		n.plug,
		func(ctx context.Context) error { return n.makeDisk(ctx, programs) },
		n.boot,
		n.launchRuntime,
		n.startKubelet,
		n.Ready,
	); err != nil {
		return nil, err
	}
	return n, nil
}

// Reboot ends the machine as a loss of power does, once all is on its disk, and starts it again. Its
// pods and claims are what they are. It returns when the node is Ready.
func (n *Node) Reboot(ctx context.Context) error {
	if n.machine == nil {
		return fmt.Errorf("reboot %s: it is no machine of its own", n.Name)
	}
	if err := n.quiet(ctx, "sync"); err != nil {
		return err
	}
	if err := errors.Join(n.cutPower(), n.box.Close()); err != nil {
		return err
	}
	return n.steps(ctx, n.boot,
		func(context.Context) error { return n.Start(Containerd) }, n.RuntimeReady,
		func(context.Context) error { return n.Start(Kubelet) }, n.Ready)
}

// Remove ends a node that is a machine, and takes its Node object away.
func (n *Node) Remove(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(n.cp.Config())
	if err != nil {
		return err
	}
	n.cp.mu.Lock()
	n.cp.nodes = slices.DeleteFunc(n.cp.nodes, func(other *Node) bool { return other == n })
	n.cp.mu.Unlock()
	return errors.Join(n.close(), client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}),
		ip(ctx, n.cp.box, "link delete "+n.tap(managementLink), "link delete "+n.tap(dataLink)))
}

// tap is the machine's end of a cable here. (A link's name has 15 bytes.)
func (n *Node) tap(link string) string { return fmt.Sprintf("%s-m%d", link, n.number) }

// plug makes the other ends of the machine's cables.
func (n *Node) plug(ctx context.Context) error {
	var lines []string
	for _, link := range []string{managementLink, dataLink} {
		lines = append(lines, fmt.Sprintf("tuntap add dev %s mode tap", n.tap(link)),
			fmt.Sprintf("link set %s master %s0 up", n.tap(link), link))
	}
	return ip(ctx, n.cp.box, append(lines, fmt.Sprintf("route add %s via %s onlink dev %s0", n.Subnet, n.Address, managementLink))...)
}

// makeDisk makes the machine's root.
func (n *Node) makeDisk(ctx context.Context, p programs) error {
	const size = 4096
	write, err := n.files()
	if err != nil {
		return err
	}
	if _, err := n.cp.images(); err != nil {
		return err
	}
	dir := n.cp.space.path("machine", n.Name)
	n.machine.disk = dir + ".disk"
	defer os.RemoveAll(dir)
	files, err := n.machineFiles(ctx, p)
	if err != nil {
		return err
	}
	for to, from := range files {
		if err := placeFile(from, filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	for to, content := range n.system(write) {
		to = filepath.Join(dir, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), writeFile(to, content)); err != nil {
			return err
		}
	}
	if err := n.makeTree(ctx, dir); err != nil {
		return err
	}
	if err := n.fillStore(ctx, p, filepath.Join(dir, "var/lib/containerd")); err != nil {
		return fmt.Errorf("give %s its images: %w", n.Name, err)
	}
	return vm.MakeRoot(ctx, n.machine.disk, dir, size)
}

// system adds what a small system has of files in /etc.
func (n *Node) system(files map[string][]byte) map[string][]byte {
	files["/etc/passwd"] = []byte("root:x:0:0:root:/root:/bin/sh\n")
	files["/etc/group"] = []byte("root:x:0:\n")
	files["/etc/hosts"] = []byte("127.0.0.1 localhost " + n.Name + "\n")
	files["/etc/resolv.conf"] = nil
	files["/etc/machine-id"] = fmt.Appendf(nil, "%032x\n", n.number)
	return files
}

// makeTree makes the directories and symbolic links of a machine's root.
func (n *Node) makeTree(ctx context.Context, root string) error {
	applets, err := vm.Applets(ctx)
	if err != nil {
		return err
	}
	links := map[string]string{
		nodeLog: path.Join(share, "log", n.Name), nodeImages: path.Join(share, "images"), "/var/run": "../run", "/usr/bin/env": "/bin/busybox",
	}
	for _, name := range applets {
		links["/bin/"+name] = "busybox"
	}
	delete(links, "/bin/ip") // iproute2's is there
	for link, to := range links {
		link = filepath.Join(root, link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(to, link)); err != nil {
			return err
		}
	}
	for _, d := range []string{"/root", "/var/log/pods", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni", "/etc/kubernetes/manifests", "/sbin"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// fillStore puts the images that the nodes have into what will be the machine's store: an emulated
// processor takes minutes for that.
func (n *Node) fillStore(ctx context.Context, p programs, store string) (err error) {
	images, err := n.cp.images()
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(images, "*.tar"))
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "lab")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	socket := filepath.Join(scratch, "s")
	config := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n"+
		"disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', 'io.containerd.nri.v1.nri']\n"+
		"[grpc]\n  address = %q\n", store, filepath.Join(scratch, "state"), socket)
	if err := writeFile(filepath.Join(scratch, "config.toml"), []byte(config)); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(n.Logs, "store.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	runtime := exec.CommandContext(ctx, p.runtime.Path("containerd"), "--config", filepath.Join(scratch, "config.toml"))
	runtime.Stdout, runtime.Stderr = log, log
	runtime.Cancel = func() error { return runtime.Process.Signal(syscall.SIGTERM) }
	if err := runtime.Start(); err != nil {
		return err
	}
	defer func() {
		runtime.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		err = errors.Join(err, runtime.Wait())
	}()
	ctr := func(args ...string) error {
		out, err := exec.CommandContext(ctx, p.runtime.Path("ctr"), append([]string{"--address=" + socket, "--namespace=k8s.io"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("not ready in time"))
	defer cancel()
	if err := poll(limited, func() error { return ctr("version") }); err != nil {
		return err
	}
	for _, archive := range archives {
		if err := ctr("image", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// machineFiles are those of the machine's disk that are programs: path there, path here.
func (n *Node) machineFiles(ctx context.Context, p programs) (map[string]string, error) {
	files := map[string]string{"/bin/busybox": vm.Busybox, path.Join(nodeBin, "kube"): p.kube.Path("kube")}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		files[path.Join(nodeBin, name)] = p.runtime.Path(name)
	}
	plugins, err := os.ReadDir(p.plugins.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range plugins {
		files[path.Join("/opt/cni/bin", e.Name())] = p.plugins.Path(e.Name())
	}
	libraries, err := vm.Libraries(ctx, p.runtime.Path("runc"))
	if err != nil {
		return nil, err
	}
	tool, err := vm.Program(ctx, "ip")
	if err != nil {
		return nil, err
	}
	maps.Copy(files, libraries)
	maps.Copy(files, tool)
	return files, nil
}

// placeFile puts a file there as a second name of it, or as a copy where that cannot be.
func placeFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	if err := os.Link(from, to); err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// emulator is the name of the process that the machine is.
func (n *Node) emulator() string { return "machine-" + n.Name }

// machineModules are those of the kernel that a node needs, and its pods' links.
func machineModules() []string {
	return []string{
		"virtio_pci", "virtio_net", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "9pnet_virtio", "9p", "overlay",
		"bridge", "veth", "igb", "igbvf", "dummy", "8021q", "macvlan", "vfio_pci",
	}
}

// boot starts the machine on its disk, and its network.
func (n *Node) boot(ctx context.Context) error {
	dir := n.cp.space.path("machine")
	socket := filepath.Join(dir, n.Name+".sock")
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	store := vm.Store{Dir: filepath.Join(n.cp.builder.Cache(), "vm"), Progress: n.cp.options.Progress}
	args, err := store.Served(ctx, vm.Options{
		Modules: machineModules(), Memory: 2048, IOMMU: true, Share: n.cp.space.dir, Disk: n.machine.disk,
		Socket: socket, Taps: []string{n.tap(dataLink)}, Link: n.tap(managementLink),
	}, dir)
	if err != nil {
		return err
	}
	emulator := box.Process{Name: n.emulator(), Args: args, Env: environment(), Log: filepath.Join(n.Logs, "console.log")}
	if _, err := n.cp.box.Start(emulator); err != nil {
		return err
	}
	conn, err := n.dial(ctx, socket)
	if err != nil {
		return err
	}
	n.box = box.Over(n.Name, conn)
	script := strings.Join([]string{
		"set -eu",
		"hostname " + n.Name,
		`for l in /sys/class/net/*; do case "$(readlink $l/device/driver)" in */virtio_net) mgmt=${l##*/};; */igb) pf=${l##*/};; esac; done`,
		"/usr/bin/ip link set $mgmt name " + managementLink,
		"/usr/bin/ip address add " + n.Address + "/24 dev " + managementLink,
		"/usr/bin/ip link set " + managementLink + " up",
		"/usr/bin/ip link set $pf name " + PF,
		"/usr/bin/ip link delete dummy0", // the module's own: an administrator has numdummies=0
		"/usr/bin/ip link set " + PF + " up",
		"/usr/bin/ip route add default via " + managementIP,
		"echo 1 > /proc/sys/net/ipv4/ip_forward",
	}, "\n")
	return n.box.Run(ctx, box.Process{
		Name: "network", Args: []string{"/bin/sh", "-c", script}, Env: environment(), Log: path.Join(nodeLog, "network.log"),
	})
}

// dial connects to the machine's first process, through an emulator that is just starting.
func (n *Node) dial(ctx context.Context, socket string) (conn net.Conn, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the emulator does not start"))
	defer cancel()
	err = poll(limited, func() error {
		conn, err = net.Dial("unix", socket)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to machine %s: %w\n%s", n.Name, err, tail(filepath.Join(n.Logs, "console.log")))
	}
	return conn, nil
}

func (n *Node) cutPower() error { return n.cp.box.Kill(n.emulator()) }

// execThere is Exec for a machine: what the command writes goes through the shared directory.
func (n *Node) execThere(ctx context.Context, args []string) (string, error) {
	n.cp.mu.Lock()
	n.machine.ran++
	name := fmt.Sprintf("%s-%d", n.Name, n.machine.ran)
	n.cp.mu.Unlock()
	dir := n.cp.space.path("exec")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	out, errs := filepath.Join(dir, name+".out"), filepath.Join(dir, name+".err")
	defer os.Remove(out)
	defer os.Remove(errs)
	there := path.Join(share, "exec", name)
	// The process' own stream is for both; the command's complaints are kept apart.
	command := slices.Concat([]string{"/bin/sh", "-c", `exec "$@" 2>` + there + ".err", "sh", "/usr/bin/env"}, args)
	failed := n.box.Run(ctx, box.Process{Name: "exec-" + name, Args: command, Env: environment(), Log: there + ".out"})
	text, err := os.ReadFile(out)
	if err != nil && failed == nil {
		return "", err
	}
	if failed != nil {
		complaint, _ := os.ReadFile(errs)
		return string(text), fmt.Errorf("run %s on %s: %w: %s", strings.Join(args, " "), n.Name, failed, strings.TrimSpace(string(complaint)))
	}
	return string(text), nil
}
