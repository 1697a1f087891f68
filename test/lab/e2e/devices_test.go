// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/weftnet/weft/test/lab"
)

const (
	nicResource = "example.com/nic"
	nicPlugin   = "/opt/cni/bin/e2e-nic"
	nicCalls    = "/var/lib/cni/e2e-nic"
	nicInfos    = "/var/run/k8s.cni.cncf.io/devinfo/dp"
	pluginDir   = "/var/lib/kubelet/device-plugins"
	endpoint    = "e2e-nic.sock"
)

// nicDelegate keeps what a delegate is given, one file a call, and then is macvlan.
const nicDelegate = `#!/bin/sh
pod=${CNI_ARGS##*K8S_POD_NAME=}
call=` + nicCalls + `/${pod%%;*}.$CNI_CONTAINERID.$CNI_IFNAME.$CNI_COMMAND
cat > $call
exec /opt/cni/bin/macvlan < $call
`

// A device plugin of its own, registered with the node's kubelet, gives pods devices: each network
// of a pod is handed one of those that the kubelet gave to this very pod, in order, whatever
// pods of its name had before and whether or not the kubelet was restarted; a pod with
// fewer devices than networks is told so, and nothing was called.
func TestDevicePlugin(t *testing.T) {
	r := newRig(t)
	p := r.devicePlugin("0000:0a:00.0", "0000:0a:00.1", "0000:0a:00.2", "0000:0a:00.3")
	r.nicNetwork("left")
	r.nicNetwork("right")
	before := r.metrics()
	r.step("the kubelet knows the devices")

	one := r.withNICs(p, "one", 2)
	two := r.withNICs(p, "two", 2)
	if all := slices.Sorted(slices.Values(append(slices.Clone(one), two...))); !slices.Equal(all, p.devices) {
		t.Fatalf("the kubelet gave %q and %q", one, two)
	}
	r.step("two pods have the devices that the kubelet gave them")
	r.remove("one")
	r.withNICs(p, "one", 2)
	r.step("so has a pod that was made anew")

	kubelet := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	kubelet(func() error { return r.node.End(t.Context(), lab.Kubelet, syscall.SIGKILL) })
	kubelet(func() error { return r.node.Start(lab.Kubelet) })
	p.register()
	// A kubelet takes a device from a pod that is gone only once it has heard of all pods.
	r.create("after", "")
	r.running("after")
	r.remove("two", "after")
	r.withNICs(p, "two", 2)
	r.step("and one after a restart of the kubelet")
	r.remove("one")
	r.tooFew(p)
	r.askedByGet(before, 4)
	r.remove("two")
	r.wait("the pods to leave nothing", func() error { return r.leftovers() }) // while their delegate is there
}

// withNICs makes a pod that asks for n devices and has two networks that draw from them, and
// wants each delegate to be given its device. It returns what the kubelet gave to the pod.
func (r *rig) withNICs(p *nics, name string, n int) []string {
	r.t.Helper()
	r.create(name, "left, right", wantsNICs(n))
	pod := r.running(name)
	given := p.last()
	id := r.sandboxOf(pod)
	for i, link := range []string{"net1", "net2"} {
		var conf struct {
			DeviceID, PciBusID string
			RuntimeConfig      struct{ DeviceID string }
		}
		call := fmt.Sprintf("%s/%s.%s.%s.ADD", nicCalls, name, id, link)
		if err := json.Unmarshal([]byte(r.file(call)), &conf); err != nil {
			r.t.Fatalf("%s: %v", call, err)
		}
		if got := []string{conf.DeviceID, conf.PciBusID, conf.RuntimeConfig.DeviceID}; !slices.Equal(got, []string{given[i], given[i], given[i]}) {
			r.t.Errorf("%s of pod %s is given the device %q, want %s: the kubelet gave it %q", link, name, got, given[i], given)
		}
	}
	r.settled()
	want := map[string]string{"eth0": "", "net1": given[0], "net2": given[1]}
	if d := cmp.Diff(want, r.toldDevices(name)); d != "" {
		r.t.Errorf("devices in network-status of pod %s (-want +got):\n%s", name, d)
	}
	return given
}

// toldDevices are the PCI addresses of device-info in a pod's network-status, by interface.
func (r *rig) toldDevices(name string) map[string]string {
	r.t.Helper()
	var all []struct {
		Interface string
		Info      struct {
			PCI struct {
				Address string `json:"pci-address"`
			}
		} `json:"device-info"`
	}
	if err := json.Unmarshal([]byte(r.get(name).Annotations[statusAnnotation]), &all); err != nil {
		r.t.Fatal(err)
	}
	told := map[string]string{}
	for _, s := range all {
		told[s.Interface] = s.Info.PCI.Address
	}
	return told
}

// tooFew has a pod ask for one device and two networks.
func (r *rig) tooFew(p *nics) {
	r.t.Helper()
	r.create("few", "left, right", wantsNICs(1))
	e := r.event("few", fmt.Sprintf("needs a device of %q, and the pod has 1 for 2 networks", nicResource))
	r.step("one that has too few waits: %s", e.Message)
	if calls := r.glob(nicCalls + "/few.*"); calls != "" {
		r.t.Errorf("delegates were called: %s", calls)
	}
	if given := p.last(); len(given) != 1 {
		r.t.Errorf("the kubelet gave it %q: this shows nothing", given)
	}
	r.remove("few")
}

// askedByGet wants the agent to have asked the kubelet's socket, so many times at least.
func (r *rig) askedByGet(before map[string]float64, pods float64) {
	r.t.Helper()
	after := r.metrics()
	const name = `weft_device_lookup_duration_seconds_count{method=%q,outcome=%q}`
	for method, least := range map[string]float64{"get": pods, "checkpoint": pods} {
		if n := after[fmt.Sprintf(name, method, "done")] - before[fmt.Sprintf(name, method, "done")]; n < least {
			r.t.Errorf("asked by %s %v times, want %v at least", method, n, least)
		}
	}
	if n := after[fmt.Sprintf(name, "list", "done")]; n != 0 {
		r.t.Errorf("the kubelet was asked by List %v times, though it serves Get", n)
	}
}

func wantsNICs(n int) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{nicResource: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
}

// nicNetwork makes a network that draws from the devices.
func (r *rig) nicNetwork(name string) {
	r.t.Helper()
	r.nad(name, `{"cniVersion":"1.0.0","type":"e2e-nic","master":"data","mode":"bridge","capabilities":{"deviceID":true,"CNIDeviceInfoFile":true}}`)
	r.kubectl("annotate", "network-attachment-definitions", name, "k8s.v1.cni.cncf.io/resourceName="+nicResource)
}

// nics is a device plugin whose devices are names alone, two on each NUMA node.
type nics struct {
	deviceplugin.UnimplementedDevicePluginServer
	r       *rig
	devices []string
	end     func()

	mu     sync.Mutex
	given  [][]string
	listed chan struct{} // closed once the kubelet that is registered with has the list
}

// devicePlugin starts the plugin, with its device-info files and the delegate, until the test's end.
func (r *rig) devicePlugin(devices ...string) *nics {
	r.t.Helper()
	p := &nics{r: r, devices: devices, end: func() {}}
	r.t.Cleanup(func() {
		if r.t.Failed() { // pods that are left need their delegate to end
			if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "pods", "--all", "--timeout=1m", "--namespace="+r.ns); err != nil {
				r.t.Log(err)
			}
		}
		p.end()
		undo := fmt.Sprintf("rm -rf %s %s %s/example.com-nic-*", nicPlugin, nicCalls, nicInfos)
		if _, err := r.node.Exec(r.ctx(), "sh", "-c", undo); err != nil {
			r.t.Error(err)
		}
	})
	r.shell("mkdir -p " + nicCalls + " " + nicInfos)
	for _, d := range devices {
		r.write(fmt.Sprintf("%s/example.com-nic-%s-device.json", nicInfos, d), fmt.Sprintf(`{"type":"pci","version":"1.1.0","pci":{"pci-address":%q}}`, d))
	}
	r.write(nicPlugin, nicDelegate)
	r.shell("chmod 755 " + nicPlugin)
	p.register()
	return p
}

// inNode is where a directory of the node is for this process.
func (p *nics) inNode(name string) string {
	return fmt.Sprintf("/proc/%d/root%s", p.r.node.PID(), path.Join(pluginDir, name))
}

// register serves the plugin and has the kubelet know it. A kubelet clears the directory when it
// starts: the plugin comes after it.
func (p *nics) register() {
	r := p.r
	r.t.Helper()
	p.end()
	r.wait("the kubelet to register device plugins", func() error {
		c, err := net.Dial("unix", p.inNode("kubelet.sock"))
		if err == nil {
			c.Close()
		}
		return err
	})
	if err := os.Remove(p.inNode(endpoint)); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	l, err := net.Listen("unix", p.inNode(endpoint))
	if err != nil {
		r.t.Fatal(err)
	}
	p.mu.Lock()
	p.listed = make(chan struct{})
	listed := p.listed
	p.mu.Unlock()
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, p)
	var done sync.WaitGroup
	done.Go(func() { server.Serve(l) })
	p.end = func() { server.Stop(); done.Wait() }

	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", p.inNode("kubelet.sock"))
		}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(r.t.Context(), &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: endpoint, ResourceName: nicResource,
	})
	if err != nil {
		r.t.Fatal("register the device plugin: ", err)
	}
	r.wait("the node to offer the devices", func() error {
		select {
		case <-listed:
		default:
			return errors.New("the kubelet has not asked for them")
		}
		node, err := r.kube.CoreV1().Nodes().Get(r.t.Context(), r.node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n := node.Status.Allocatable[nicResource]; n.Value() != int64(len(p.devices)) {
			return fmt.Errorf("it offers %s", n.String())
		}
		return nil
	})
}

// last are the devices of the last allocation, sorted.
func (p *nics) last() []string {
	p.r.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.given) == 0 {
		p.r.t.Fatal("the kubelet allocated nothing")
	}
	return p.given[len(p.given)-1]
}

// GetDevicePluginOptions implements the plugin: it has none.
func (p *nics) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch implements the plugin: the devices never change.
func (p *nics) ListAndWatch(_ *deviceplugin.Empty, to grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	res := &deviceplugin.ListAndWatchResponse{}
	for i, id := range p.devices {
		res.Devices = append(res.Devices, &deviceplugin.Device{
			ID: id, Health: deviceplugin.Healthy, Topology: &deviceplugin.TopologyInfo{Nodes: []*deviceplugin.NUMANode{{ID: int64(i % 2)}}},
		})
	}
	if err := to.Send(res); err != nil {
		return err
	}
	p.mu.Lock()
	close(p.listed)
	p.mu.Unlock()
	<-to.Context().Done()
	return nil
}

// Allocate implements the plugin, and notes what a container is given.
func (p *nics) Allocate(_ context.Context, req *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	res := &deviceplugin.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		p.given = append(p.given, slices.Sorted(slices.Values(c.GetDevicesIds())))
		res.ContainerResponses = append(res.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NICS": strings.Join(c.GetDevicesIds(), ",")},
		})
	}
	return res, nil
}
