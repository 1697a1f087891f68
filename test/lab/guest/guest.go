// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/test/lab/vm"
)

//go:embed guest.sh
var script []byte

// Boot makes, below dir, the kernel and the initrd that guests boot.
func Boot(ctx context.Context, store vm.Store, root, dir string) error {
	files := map[string]string{"/test/guest.sh": filepath.Join(dir, "guest.sh")}
	if err := os.WriteFile(files["/test/guest.sh"], script, 0o755); err != nil {
		return err
	}
	for _, path := range []string{"/usr/sbin/qemu-ga", "/bin/ip"} {
		more, err := program(ctx, root, path)
		if err != nil {
			return err
		}
		maps.Copy(files, more)
	}
	args, err := store.Served(ctx, vm.Options{
		Modules:  []string{"virtio_pci", "virtio_net", "virtio_console", "veth", "bridge", "8021q", "virtio_rng"},
		Files:    files,
		Commands: [][]string{{"/bin/sh", "/test/guest.sh"}},
	}, dir)
	if err != nil {
		return err
	}
	at := slices.Index(args, "-kernel")
	if at < 0 || at+1 >= len(args) {
		return errors.New("find the kernel among QEMU's arguments: there is none")
	}
	return os.Link(args[at+1], filepath.Join(dir, "kernel"))
}

// NIC is a network interface of a guest.
type NIC struct{ Name, MAC string }

// XML is the NIC as libvirt wants it: as KubeVirt names it, on QEMU's own network.
func (n NIC) XML() string {
	return fmt.Sprintf("<interface type='user'><mac address='%s'/><model type='virtio'/><alias name='ua-%s'/></interface>", n.MAC, n.Name)
}

// Guest is a running virtual machine.
type Guest struct {
	Name string // of the domain

	pod    *Pod
	orders net.Conn
	lines  *bufio.Reader
}

// cmdline is that of package vm's machines.
const cmdline = "console=ttyS0 quiet loglevel=2 mitigations=off nokaslr no_timer_check tsc=reliable cryptomgr.notests" +
	" random.trust_cpu=on apparmor=0 audit=0 nowatchdog mce=off pci=noaer panic=-1" +
	" initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init,init_encrypted"

const domain = `<domain type='qemu'><name>%[1]s</name><memory unit='MiB'>384</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/weft/kernel</kernel><initrd>/weft/initrd</initrd><cmdline>%[2]s</cmdline></os>
<features><acpi/></features><cpu mode='custom' match='exact' check='none'><model>qemu64</model></cpu>
<pm><suspend-to-mem enabled='no'/></pm>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
%[3]s
<controller type='pci' model='pcie-root'/>%[4]s
<controller type='usb' model='none'/><memballoon model='none'/><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
<serial type='file'><source path='/run/weft/console'/></serial>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<channel type='unix'><source mode='bind' path='/run/weft/orders'/><target type='virtio' name='weft.orders'/></channel>
</devices></domain>`

// Domain is a machine as libvirt wants it, in a place where Boot's files are in /weft, and /run/weft
// is there to write to.
func Domain(name string, nics ...NIC) string {
	var devices strings.Builder
	for _, n := range nics {
		devices.WriteString(n.XML())
	}
	const ports = 12 // room for what is plugged in
	return fmt.Sprintf(domain, escape(name), cmdline, devices.String(), strings.Repeat("<controller type='pci' model='pcie-root-port'/>", ports))
}

// Start starts a guest in a pod and waits until it does what it is told. Its first NIC is up.
func (p *Pod) Start(ctx context.Context, name string, nics ...NIC) (*Guest, error) {
	if err := os.WriteFile(p.Path("run/weft/domain.xml"), []byte(Domain(name, nics...)), 0o644); err != nil {
		return nil, err
	}
	if _, err := p.Virsh(ctx, "create", "/run/weft/domain.xml"); err != nil {
		return nil, err
	}
	g := &Guest{Name: name, pod: p}
	err := poll(ctx, "the guest's port", func() (err error) {
		g.orders, err = net.Dial("unix", p.Path("run/weft/orders"))
		return err
	})
	if err != nil {
		return nil, err
	}
	g.lines = bufio.NewReader(g.orders)
	if _, err := g.Do(ctx, "true"); err != nil {
		console, _ := os.ReadFile(p.Path("run/weft/console"))
		return nil, fmt.Errorf("%w; its console says:\n%s", err, console)
	}
	return g, nil
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}

// Do runs a line of shell in the guest and gives its output.
func (g *Guest) Do(ctx context.Context, line string) (string, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Minute)
	}
	if err := g.orders.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(g.orders, line); err != nil {
		return "", fmt.Errorf("tell the guest %q: %w", line, err)
	}
	answer, err := g.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("tell the guest %q: %w", line, err)
	}
	status, encoded, _ := strings.Cut(strings.TrimSpace(answer), " ")
	out, err := base64.StdEncoding.DecodeString(encoded)
	if err == nil && status != "0" {
		err = fmt.Errorf("in the guest, %q ended with %s: %s", line, status, out)
	}
	return string(out), err
}

// Plug gives the guest a NIC.
func (g *Guest) Plug(ctx context.Context, n NIC) error { return g.device(ctx, "attach-device", n) }

// Unplug takes a NIC from the guest, which has to agree.
func (g *Guest) Unplug(ctx context.Context, n NIC) error { return g.device(ctx, "detach-device", n) }

func (g *Guest) device(ctx context.Context, verb string, n NIC) error {
	const path = "/run/weft/device.xml"
	if err := os.WriteFile(g.pod.Path(path), []byte(n.XML()), 0o644); err != nil {
		return err
	}
	_, err := g.pod.Virsh(ctx, verb, g.Name, path)
	return err
}

// SetLink sets the state of a NIC's link.
func (g *Guest) SetLink(ctx context.Context, n NIC, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	_, err := g.pod.Virsh(ctx, "domif-setlink", g.Name, n.MAC, state)
	return err
}

// Pause stops the machine's processors, or lets them go on.
func (g *Guest) Pause(ctx context.Context, paused bool) error {
	verb := "resume"
	if paused {
		verb = "suspend"
	}
	_, err := g.pod.Virsh(ctx, verb, g.Name)
	return err
}
