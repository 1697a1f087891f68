// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/build"
)

// Components of a control plane, by the names of their processes and logs.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// Where a lab's cluster is, inside the lab's network.
const (
	serviceIP    = "10.96.0.1" // of the Service "kubernetes": what pods are told
	serviceRange = "10.96.0.0/16"
	managementIP = "172.31.255.1"
	servicePort  = "443"
)

// Options say what a control plane consists of.
type Options struct {
	Kubernetes    string    // "1.34" or "1.34.2"; "" is the version that the lab is made for
	Controllers   bool      // kube-controller-manager and kube-scheduler too: with nodes
	APIServerArgs []string  // further flags, e.g. --feature-gates=…
	Progress      io.Writer // nil: nothing is said
}

// ControlPlane is a running cluster. Nothing of it is on the machine's network but one port of
// the loopback address, which Config and Kubeconfig name.
type ControlPlane struct {
	Kubeconfig string // path of a file for the cluster's administrator
	Version    string // as the API server reports it
	Dir        string // everything of this lab; vanishes with it

	options    Options
	builder    build.Builder
	kube       build.Set
	space      *workspace
	authority  *authority
	box        *box.Box
	config     *rest.Config
	components map[string]box.Process

	mu      sync.Mutex
	nodes   []*Node
	started int // nodes, those that are no more among them
}

// StartControlPlane builds what is not built yet, and starts etcd and kube-apiserver, which is a
// matter of seconds. The caller stops it; if the caller's process ends before that, the cluster
// ends as well.
func StartControlPlane(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	b, err := builder(o.Progress)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{options: o, builder: b}
	if cp.kube, cp.Version, err = b.Kubernetes(ctx, o.Kubernetes); err != nil {
		return nil, err
	}
	if cp.space, err = newWorkspace(b.Cache()); err != nil {
		return nil, err
	}
	cp.Dir = cp.space.dir
	defer func() {
		if err != nil {
			err = errors.Join(err, cp.stop(true))
		}
	}()
	start := time.Now()
	steps := []func(context.Context) error{cp.makeBox, cp.makeKeys, cp.startStore, cp.startAPI}
	if o.Controllers {
		steps = append(steps, cp.startControllers, cp.DefaultRoles)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(o.Progress, "lab: Kubernetes %s is ready after %.1f s, logs are in %s\n",
		cp.Version, time.Since(start).Seconds(), cp.space.log())
	return cp, nil
}

func builder(progress io.Writer) (build.Builder, error) {
	dir, err := os.Getwd()
	if err != nil {
		return build.Builder{}, err
	}
	root, err := build.Root(dir)
	return build.Builder{Root: root, Progress: progress}, err
}

// makeBox makes the lab's network with the addresses of the cluster, and the way in.
func (cp *ControlPlane) makeBox(ctx context.Context) error {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer listener.Close() // the box has it
	cp.config = &rest.Config{Host: "https://" + listener.Addr().String(), QPS: 500, Burst: 1000}
	log, err := os.Create(cp.space.log("control-plane.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	if cp.box, err = box.New("control-plane", log, listener); err != nil {
		return err
	}
	if err := cp.space.notePID(cp.box.PID()); err != nil {
		return err
	}
	if err := cp.box.Memory(cp.space.path("data")); err != nil {
		return err
	}
	if err := cp.script(ctx, "network", networkScript(cp.options.Controllers)); err != nil {
		return err
	}
	return cp.box.Forward(0, net.JoinHostPort(managementIP, servicePort))
}

// networkScript gives the lab its addresses. With nodes there are two bridges: one that joins
// them with the control plane, and one that is the cable of their second links.
func networkScript(nodes bool) string {
	lines := []string{"set -eu", "ip address add " + serviceIP + "/32 dev lo"}
	if !nodes {
		return strings.Join(append(lines, "ip address add "+managementIP+"/32 dev lo"), "\n")
	}
	return strings.Join(append(lines,
		"ip link add "+managementLink+"0 type bridge",
		"ip address add "+managementIP+"/24 dev "+managementLink+"0",
		"ip link set "+managementLink+"0 up",
		"ip link add "+dataLink+"0 type bridge",
		"ip link set "+dataLink+"0 up",
		"echo 1 > /proc/sys/net/ipv4/ip_forward",
	), "\n")
}

// script runs a shell script on the lab's network.
func (cp *ControlPlane) script(ctx context.Context, name, text string) error {
	return cp.box.Run(ctx, box.Process{
		Name: name, Args: []string{"/bin/sh", "-c", text}, Env: environment(), Log: cp.space.log("network.log"),
	})
}

// environment is that of every process in a lab.
func environment() []string {
	return []string{"PATH=" + nodeBin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
}

func (cp *ControlPlane) pki(name string) string { return cp.space.path("pki", name) }

// makeKeys writes the certificates and the administrator's kubeconfig.
func (cp *ControlPlane) makeKeys(context.Context) (err error) {
	if cp.authority, err = newAuthority(); err != nil {
		return err
	}
	dir := cp.space.path("pki")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(cp.pki("ca.crt"), cp.authority.pem, 0o644); err != nil {
		return err
	}
	signing, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(signing)
	if err != nil {
		return err
	}
	if err := os.WriteFile(cp.pki("accounts.key"), private, 0o600); err != nil {
		return err
	}
	admins := []string{"system:masters"}
	for name, s := range map[string]subject{
		"server": {name: "kube-apiserver", hosts: []string{
			serviceIP, managementIP, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		}},
		"admin":      {name: "admin", groups: admins},
		"to-kubelet": {name: "kube-apiserver", groups: admins},
	} {
		pair, err := cp.authority.issue(s)
		if err != nil {
			return err
		}
		if err := pair.write(dir, name); err != nil {
			return err
		}
		if name == "admin" {
			cp.config.TLSClientConfig = rest.TLSClientConfig{CAData: cp.authority.pem, CertData: pair.cert, KeyData: pair.key}
		}
	}
	return cp.makeKubeconfigs()
}

func (cp *ControlPlane) makeKubeconfigs() error {
	cp.Kubeconfig = cp.space.path("kubeconfig")
	if err := writeKubeconfig(cp.Kubeconfig, cp.config.Host, cp.config.TLSClientConfig); err != nil {
		return err
	}
	return writeKubeconfig(cp.pki("inside.kubeconfig"), cp.insideURL(), cp.config.TLSClientConfig)
}

// insideURL is where the API server is for what runs in the lab.
func (cp *ControlPlane) insideURL() string {
	return "https://" + net.JoinHostPort(managementIP, servicePort)
}

func (cp *ControlPlane) startStore(context.Context) error {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return cp.start(Etcd,
		"--data-dir="+cp.space.path("data", "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
}

func (cp *ControlPlane) startAPI(ctx context.Context) error {
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379", "--cert-dir=" + cp.space.path("pki"),
		"--bind-address=0.0.0.0", "--secure-port=" + servicePort, "--advertise-address=" + managementIP,
		"--tls-cert-file=" + cp.pki("server.crt"), "--tls-private-key-file=" + cp.pki("server.key"),
		"--client-ca-file=" + cp.pki("ca.crt"), "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + cp.pki("accounts.key"), "--service-account-signing-key-file=" + cp.pki("accounts.key"),
		"--service-cluster-ip-range=" + serviceRange, "--allow-privileged", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + cp.pki("to-kubelet.crt"), "--kubelet-client-key=" + cp.pki("to-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
	}
	if !cp.options.Controllers {
		// Nobody makes service accounts, so pods are let in without one.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if err := cp.start(APIServer, append(args, cp.options.APIServerArgs...)...); err != nil {
		return err
	}
	return cp.Ready(ctx)
}

func (cp *ControlPlane) startControllers(context.Context) error {
	common := []string{"--kubeconfig=" + cp.pki("inside.kubeconfig"), "--leader-elect=false", "--secure-port=0"}
	if err := cp.start(Scheduler, common...); err != nil {
		return err
	}
	return cp.start(ControllerManager, slices.Concat(common, []string{
		"--service-account-private-key-file=" + cp.pki("accounts.key"), "--root-ca-file=" + cp.pki("ca.crt"),
	})...)
}

// StartScheduling starts, in a control plane without nodes, what allocates claims and binds pods:
// the scheduler, and of the controllers the one that makes claims of templates. Nothing else of the
// cluster changes by itself thereby. Where both run, it does nothing.
func (cp *ControlPlane) StartScheduling() error {
	if _, ok := cp.components[Scheduler]; ok {
		return nil
	}
	common := []string{"--kubeconfig=" + cp.pki("inside.kubeconfig"), "--leader-elect=false", "--secure-port=0"}
	if err := cp.start(ControllerManager, append(common, "--controllers=resourceclaim-controller")...); err != nil {
		return err
	}
	return cp.start(Scheduler, common...)
}

// start starts a component for the first time.
func (cp *ControlPlane) start(name string, args ...string) error {
	p := box.Process{
		Name: name, Args: slices.Concat([]string{cp.kube.Path("kube"), name}, args),
		Env: environment(), Log: cp.space.log(name + ".log"),
	}
	if cp.components == nil {
		cp.components = map[string]box.Process{}
	}
	cp.components[name] = p
	_, err := cp.box.Start(p)
	return err
}

// Start starts a component again that has ended.
func (cp *ControlPlane) Start(name string) error {
	p, ok := cp.components[name]
	if !ok {
		return fmt.Errorf("start %s: this control plane has none", name)
	}
	_, err := cp.box.Start(p)
	return err
}

// End sends a component a signal and waits until it has ended.
func (cp *ControlPlane) End(ctx context.Context, name string, s syscall.Signal) error {
	return cp.box.End(ctx, name, s)
}

// Config is a client's configuration with the rights of the administrator.
func (cp *ControlPlane) Config() *rest.Config { return rest.CopyConfig(cp.config) }

// readyTimeout bounds the start of an API server on a machine that has much else to do.
const readyTimeout = 2 * time.Minute

// defaultRoles is the API server's check that the roles which it brings itself are there. It
// waits for a second before it makes the first one, and makes some 150 one by one.
const defaultRoles = "poststarthook/rbac/bootstrap-roles"

// Ready waits until the API server says that it is ready, but for its default roles: the
// administrator needs none, and after the first start they are there.
func (cp *ControlPlane) Ready(ctx context.Context) error {
	return cp.answers(ctx, "/readyz", defaultRoles)
}

// DefaultRoles waits for these, for what is done as somebody else.
func (cp *ControlPlane) DefaultRoles(ctx context.Context) error {
	return cp.answers(ctx, "/readyz/"+defaultRoles)
}

// answers waits until all checks below a path succeed, but for those that are excluded.
func (cp *ControlPlane) answers(ctx context.Context, path string, excluded ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("not ready in time"))
	defer cancel()
	client, err := rest.UnversionedRESTClientFor(readyConfig(cp.Config()))
	if err != nil {
		return err
	}
	err = poll(ctx, func() error {
		request := client.Get().AbsPath(path).Timeout(5 * time.Second)
		for _, check := range excluded {
			request.Param("exclude", check)
		}
		return request.Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w\n%s", APIServer, err, tail(cp.space.log(APIServer+".log")))
	}
	return nil
}

// poll calls f until it succeeds or ctx ends; the error is the last one of f.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// tail is the end of a log file, for an error's text.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return filepath.Base(path) + ":\n" + strings.Join(lines, "\n")
}

// Stop ends the cluster with its nodes and removes everything of it.
func (cp *ControlPlane) Stop() error { return cp.stop(false) }

// StopKeepingLogs is Stop, but the logs stay; it says where in the progress.
func (cp *ControlPlane) StopKeepingLogs() error { return cp.stop(true) }

func (cp *ControlPlane) stop(keepLogs bool) error {
	cp.mu.Lock()
	nodes := cp.nodes
	cp.nodes = nil
	cp.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	if cp.box != nil {
		errs = append(errs, cp.box.Close())
	}
	logs, err := cp.space.remove(keepLogs)
	if logs != "" {
		fmt.Fprintf(cp.options.Progress, "lab: logs are in %s\n", logs)
	}
	return errors.Join(append(errs, err)...)
}
