// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/test/lab/vm/order"
)

// Options say what machine it is, and what runs in it.
type Options struct {
	Kernel  Kernel   // default: Current
	Modules []string // with what they depend on; default: DefaultModules
	PFs     int      // cards; two are wired to each other; default: 1
	VFs     int      // that each card has when the commands start; at most 7
	IOMMU   bool
	Memory  int // in MiB; default: 1024

	Files    map[string]string // path in the machine: file or directory here
	Share    string            // a directory here, at /share there
	Disk     string            // a disk here (MakeDisk), at /disk there, that outlives the machine
	Commands [][]string        // run one after the other in /test
	Env      []string

	// Served: the disk is the machine's root, and it does what a box does (box.Over); see Served.
	Socket string   // of QEMU: where the first process listens
	Taps   []string // the cable of each card is this link; default: they are wired to each other
	Link   string   // one more card, an ordinary one, whose cable is this link

	Timeout time.Duration // default: 2 minutes
	Stdin   io.Reader     // for a shell
	Stdout  io.Writer     // console and commands
}

// DefaultModules are those of the kinds of links that Weft's users have, and of disk and directory.
// (ext4 needs crc32c_generic without saying so.)
func DefaultModules() []string {
	return []string{
		"igb", "igbvf", "dummy", "8021q", "macvlan", "ipvlan", "bridge", "veth", "vrf", "bonding", "tun",
		"vfio_pci", "virtio_pci", "virtio_net", "virtio_blk", "crc32c_generic", "ext4", "9pnet_virtio", "9p",
	}
}

// Result is how a machine ended.
type Result struct {
	Status   int   // of the first command that failed; 0: none did
	Statuses []int // of each command that ended
}

// Errors of a machine, as opposed to those of its commands.
var (
	// ErrTimeout says that the time limit was over.
	ErrTimeout = errors.New("machine did not end in time")
	// ErrDied says that the machine ended without a status: its kernel or its first process failed.
	ErrDied = errors.New("machine ended without a status")
)

// Run boots a machine, runs the commands in it and waits for its end. An error tells that the
// machine failed; that a command failed is in the result.
func (s Store) Run(ctx context.Context, o Options) (Result, error) {
	if len(o.Commands) == 0 {
		return Result{}, errors.New("the machine is given nothing to run")
	}
	if err := QemuFault(ctx); err != nil {
		return Result{}, err
	}
	o = o.defaults()
	kernel, base, err := s.base(ctx, o.Kernel, o.Modules)
	if err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "weft-vm")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	initrd := filepath.Join(dir, "initrd")
	if err := o.initrd(initrd, base); err != nil {
		return Result{}, fmt.Errorf("make the machine's root: %w", err)
	}
	return o.boot(ctx, kernel, initrd)
}

func (o Options) defaults() Options {
	const memory, limit = 1024, 2 * time.Minute
	if o.Kernel == "" {
		o.Kernel = Current
	}
	if o.Modules == nil {
		o.Modules = DefaultModules()
	}
	if o.PFs == 0 {
		o.PFs = 1
	}
	if o.Memory == 0 {
		o.Memory = memory
	}
	if o.Timeout == 0 {
		o.Timeout = limit
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	return o
}

// Served makes what boots a machine that is served, below dir, and says how: by a command that ends
// when the machine does, and which waits until somebody connects to the socket.
func (s Store) Served(ctx context.Context, o Options, dir string) ([]string, error) {
	if err := QemuFault(ctx); err != nil {
		return nil, err
	}
	o = o.defaults()
	kernel, base, err := s.base(ctx, o.Kernel, o.Modules)
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := o.initrd(initrd, base); err != nil {
		return nil, fmt.Errorf("make the machine's root: %w", err)
	}
	qemu, err := exec.LookPath(Qemu)
	if err != nil {
		return nil, err
	}
	return append([]string{qemu}, o.arguments(kernel, initrd)...), nil
}

// initrd is the base with the caller's files and the order behind it.
func (o Options) initrd(path string, base baseImage) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in, err := os.Open(base.path)
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := io.Copy(file, in); err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	a := newArchive(w)
	a.dir("/test")
	for _, to := range slices.Sorted(maps.Keys(o.Files)) {
		a.copy(to, o.Files[to])
	}
	text, err := json.Marshal(order.Order{
		Modules: base.modules, VFs: o.VFs, Share: o.Share != "", Disk: o.Disk != "", Commands: o.Commands, Serve: o.Socket != "",
		Env: append([]string{"WEFT_VM=1", "WEFT_VM_KERNEL=" + string(o.Kernel)}, o.Env...),
	})
	if err != nil {
		return err
	}
	a.file(order.Path, 0o644, text)
	return errors.Join(a.close(), w.Flush(), file.Close())
}

// arguments are QEMU's. What is turned off saves time at the boot. The code of a machine that is a node
// is 500 MB once it is translated and a few pods have run; when its buffer, of tb-size MB, is full QEMU
// throws all of it away, and translates it again.
func (o Options) arguments(kernel, initrd string) []string {
	args := []string{
		"-M", "q35,sata=off,smbus=off,usb=off,hpet=off,vmport=off,i8042=off", "-cpu", "qemu64,+rdrand",
		"-accel", "tcg,thread=multi,tb-size=1024", "-smp", "2", "-m", fmt.Sprint(o.Memory),
		"-nodefaults", "-no-reboot", "-display", "none",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", // Ctrl-C is the shell's
		"-global", "q35-pcihost.pci-hole64-size=0",
		"-device", "isa-debug-exit,iobase=0xf4,iosize=4",
		"-kernel", kernel, "-initrd", initrd,
	}
	boot := "console=ttyS0 quiet loglevel=2 mitigations=off nokaslr no_timer_check tsc=reliable cryptomgr.notests" +
		" random.trust_cpu=on apparmor=0 audit=0 nowatchdog mce=off pci=noaer panic=-1" +
		" initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init,init_encrypted"
	if o.IOMMU {
		args = append(args, "-device", "intel-iommu")
		boot += " intel_iommu=on"
	}
	for i := range o.PFs {
		// A hub: what one card sends, the others get.
		cable := fmt.Sprintf("hubport,id=pf%d,hubid=0", i)
		if i < len(o.Taps) {
			cable = fmt.Sprintf("tap,id=pf%d,ifname=%s,script=no,downscript=no", i, o.Taps[i])
		}
		args = append(args, "-netdev", cable,
			// Its virtual functions take the slots from 16 further on.
			"-device", fmt.Sprintf("igb,mac=02:00:00:00:%02x:00,netdev=pf%d,romfile=,addr=%#x", i+1, i, 4*(i+1)))
	}
	if o.Link != "" {
		args = append(args, "-netdev", "tap,id=link,ifname="+o.Link+",script=no,downscript=no", "-device", "virtio-net-pci,netdev=link,romfile=")
	}
	if o.Socket != "" {
		args = append(args, "-chardev", "socket,id=owner,server=on,wait=on,path="+quote(o.Socket),
			"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=owner,name="+order.Port)
	}
	if o.Share != "" {
		args = append(args, "-virtfs", "local,path="+quote(o.Share)+",mount_tag=share,security_model=none")
	}
	if o.Disk != "" {
		args = append(args, "-drive", "file="+quote(o.Disk)+",format=raw,if=virtio,cache=unsafe")
	}
	return append(args, "-append", boot)
}

// quote writes a path as a value of an option that commas part.
func quote(path string) string { return strings.ReplaceAll(path, ",", ",,") }

func (o Options) boot(ctx context.Context, kernel, initrd string) (Result, error) {
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, Qemu, o.arguments(kernel, initrd)...)
	cmd.Stdin = o.Stdin
	console := &console{out: o.Stdout, raw: o.Stdin != nil}
	cmd.Stdout = console
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	// QEMU ends with us, however we end. The kernel means the thread that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() //nolint:forbidigo // see above
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	console.flush()
	r := Result{Statuses: console.statuses}
	code := cmd.ProcessState.ExitCode()
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case limited.Err() != nil:
		return r, fmt.Errorf("%w (%s); it said last:\n%s", ErrTimeout, o.Timeout, console.last())
	case err == nil || code <= 0 || code%2 == 0: // it tells a status n by 2n+1
		return r, fmt.Errorf("%w (QEMU: %d); it said last:\n%s%s", ErrDied, code, console.last(), complaint.Bytes())
	case code == 1 && len(r.Statuses) < len(o.Commands):
		return r, fmt.Errorf("%w (QEMU: %d): %s", ErrDied, code, complaint.Bytes())
	}
	r.Status = code / 2
	if len(r.Statuses) < len(o.Commands) {
		return r, fmt.Errorf("%w: %d of %d commands ran; it said last:\n%s", ErrDied, len(r.Statuses), len(o.Commands), console.last())
	}
	return r, nil
}

// console hands on what the machine says, without the carriage returns of its serial line, and
// picks the statuses out.
type console struct {
	out      io.Writer
	raw      bool // a person's terminal: as it comes
	line     []byte
	tail     []string
	statuses []int
}

func (c *console) Write(data []byte) (int, error) {
	if c.raw {
		_, _ = c.out.Write(data)
	}
	for _, b := range data {
		switch b {
		case '\r':
		case '\n':
			c.flush()
		default:
			c.line = append(c.line, b)
		}
	}
	return len(data), nil
}

const lastLines = 60

func (c *console) flush() {
	line := string(c.line)
	c.line = c.line[:0]
	rest, status, ok := order.CutStatus(line)
	if ok {
		c.statuses = append(c.statuses, status)
		if rest == "" {
			return
		}
		line = rest // of a command whose last line had no end
	}
	if line != "" {
		c.tail = append(c.tail, line)
		c.tail = c.tail[max(0, len(c.tail)-lastLines):]
	}
	if !c.raw {
		_, _ = fmt.Fprintln(c.out, line)
	}
}

func (c *console) last() string { return strings.Join(c.tail, "\n") + "\n" }
