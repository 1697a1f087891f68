// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const devices = "bus/pci/devices"

// networkClass is the upper byte of the class of PCI network controllers.
const networkClass = 0x02

// Functions lists the network-class PCI functions by address. The error joins what single
// functions could not tell; the list is good all the same.
func (m *Machine) Functions() ([]Function, error) {
	names, err := m.list(devices)
	if err != nil {
		return nil, fmt.Errorf("list PCI functions: %w", err)
	}
	// Each reader has its own part: a machine has hundreds of functions, and nearly all the time
	// goes into the kernel's answers.
	const most = 4
	readers := min(most, runtime.GOMAXPROCS(0), max(1, len(names)))
	found := make([]Function, len(names))
	errs := make([]error, len(names))
	numbers := &vfNumbers{m: m, of: map[PCIAddr]vfList{}}
	var wait sync.WaitGroup
	for part := range readers {
		wait.Go(func() {
			open := opener{m: m}
			defer open.close()
			for i := part * len(names) / readers; i < (part+1)*len(names)/readers; i++ {
				addr, err := ParsePCIAddr(names[i])
				if err == nil {
					found[i], err = open.function(addr, numbers.list)
				}
				errs[i] = err
			}
		})
	}
	wait.Wait()
	var all []Function
	for i, f := range found {
		if errors.Is(errs[i], fs.ErrNotExist) {
			errs[i] = nil // it went meanwhile
		} else if f.Class>>16 == networkClass {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b Function) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, errors.Join(errs...)
}

// Function reads one PCI function; fs.ErrNotExist: there is none.
func (m *Machine) Function(addr PCIAddr) (Function, error) {
	if _, err := ParsePCIAddr(string(addr)); err != nil {
		return Function{}, err
	}
	open := opener{m: m}
	defer open.close()
	return open.function(addr, m.vfs)
}

// vfList is a PF's VFs by address.
type vfList map[PCIAddr]int

// vfNumbers reads each PF's list once.
type vfNumbers struct {
	m  *Machine
	mu sync.Mutex // held while a list is read: the others wait for it, instead of reading it too
	of map[PCIAddr]vfList
}

func (n *vfNumbers) list(pf PCIAddr) (vfList, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list, ok := n.of[pf]
	if ok {
		return list, nil
	}
	list, err := n.m.vfs(pf)
	if err == nil {
		n.of[pf] = list
	}
	return list, err
}

// function reads a function's folder. An error other than fs.ErrNotExist leaves what it is about
// out, and gives the rest.
func (o *opener) function(addr PCIAddr, vfs func(pf PCIAddr) (vfList, error)) (Function, error) {
	f := Function{Addr: addr, VFID: -1, NUMANode: -1}
	dir, where, err := o.open(addr)
	if err != nil {
		return f, err
	}
	defer dir.close()
	r := reader{dir: dir, addr: addr}
	told := !o.untold && r.uevent(&f)
	o.untold = !told
	if !told {
		if f.Class, err = r.class(); err != nil {
			return f, err
		}
	}
	if f.Class>>16 != networkClass {
		return f, nil // nobody asks what else it is
	}
	if !told {
		f.Vendor, f.Device = r.text("vendor"), r.text("device")
	}
	if f.Driver == "" {
		f.Driver = r.link("driver")
	}
	f.IOMMUGroup, f.PF = r.link("iommu_group"), PCIAddr(r.link("physfn"))
	f.NUMANode = r.number("numa_node", -1)
	f.PCIeRoot = pcieRoot(where)
	if f.PF == "" { // a VF has no VFs
		f.TotalVFs, f.NumVFs = r.number("sriov_totalvfs", 0), r.number("sriov_numvfs", 0)
	} else {
		ids, err := vfs(f.PF)
		id, ok := ids[addr]
		if err == nil && !ok {
			err = fmt.Errorf("PF %s has no virtfn link to %s", f.PF, addr)
		}
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("find the number of VF %s: %w", addr, err))
		} else {
			f.VFID = id
		}
	}
	f.Netdevs = r.netdevs()
	if err := errors.Join(r.errs...); err != nil {
		// The function itself may have gone while it was read; then that is all there is to say.
		if _, gone := r.class(); gone != nil {
			return f, gone
		}
		return f, fmt.Errorf("read PCI function %s: %s", addr, err) //nolint:errorlint // no part's fs.ErrNotExist is the function's
	}
	return f, nil
}

// opener opens functions' folders. It keeps the folder of the links to them, and the one that the
// last function was in: a PF and its VFs are below the same port.
type opener struct {
	m      *Machine
	links  *folder
	in     string
	parent *folder
	// untold: the last function had no uevent to tell what it is, as in a sysfs that somebody made,
	// where the next will have none either.
	untold bool
}

func (o *opener) close() {
	o.links.close()
	o.parent.close()
}

// open opens a function's folder, and tells where the link to it leads; "" if a folder is in the
// link's place, as in a sysfs that somebody made.
func (o *opener) open(addr PCIAddr) (*folder, string, error) {
	var err error
	if o.links == nil {
		if o.links, err = o.m.folder(devices); err != nil {
			return nil, "", err
		}
	}
	// What is no plain link to a folder is for the root to judge.
	link := path.Join(devices, string(addr))
	where, err := o.links.readlink(string(addr))
	if errors.Is(err, unix.EINVAL) || path.IsAbs(where) {
		dir, err := o.m.folder(link)
		return dir, "", err
	}
	if err != nil {
		return nil, "", err
	}
	above, base := path.Split(where)
	if above != o.in || o.parent == nil {
		o.parent.close()
		o.in = above
		if o.parent, err = o.m.folder(path.Join(devices, above)); err != nil {
			return nil, "", err
		}
	}
	dir, err := o.parent.folder(base)
	if errors.Is(err, errLink) || errors.Is(err, unix.ENOTDIR) {
		dir, err = o.m.folder(link)
	}
	return dir, where, err
}

// reader reads attributes that a function need not have, and keeps what went wrong.
type reader struct {
	dir  *folder
	addr PCIAddr
	errs []error
}

// uevent takes a function's class, IDs and driver from what the kernel tells of all that at once, if
// it does.
func (r *reader) uevent(f *Function) bool {
	text, err := r.dir.read("uevent")
	if err != nil {
		return false
	}
	return parseUevent(text, f)
}

// parseUevent writes nothing unless it knows class and IDs. The numbers are those of the attributes,
// written otherwise: without 0x and the leading zeros.
func parseUevent(text string, f *Function) bool {
	var class uint64
	var driver, vendor, device string
	found := false
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "PCI_CLASS":
			const bits = 24
			n, err := strconv.ParseUint(value, 16, bits)
			class, found = n, err == nil
		case "PCI_ID":
			vendor, device, _ = strings.Cut(strings.ToLower(value), ":")
		case "DRIVER":
			driver = value
		}
	}
	const digits = len("15b3")
	if !found || len(vendor) != digits || len(device) != digits || strings.Trim(vendor+device, "0123456789abcdef") != "" {
		return false
	}
	f.Class, f.Vendor, f.Device, f.Driver = uint32(class), "0x"+vendor, "0x"+device, driver
	return true
}

func (r *reader) class() (uint32, error) {
	n, err := r.parsed("class", 0)
	return uint32(n), err
}

func (r *reader) fail(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.errs = append(r.errs, err)
	}
}

func (r *reader) text(attr string) string {
	s, err := r.dir.read(attr)
	r.fail(err)
	return s
}

func (r *reader) link(attr string) string {
	s, err := r.dir.readlink(attr)
	r.fail(err)
	return strings.TrimPrefix(path.Base(s), ".")
}

func (r *reader) number(attr string, absent int) int {
	n, err := r.parsed(attr, absent)
	r.fail(err)
	return int(n)
}

func (r *reader) parsed(attr string, absent int) (int64, error) {
	s, err := r.dir.read(attr)
	if err != nil {
		return int64(absent), err
	}
	n, err := parseNumber(s)
	if err != nil {
		return int64(absent), fmt.Errorf("read %s of %s: %w", attr, r.addr, err)
	}
	return n, nil
}

// parseNumber reads a number of sysfs: decimal, or hexadecimal with 0x.
func parseNumber(s string) (int64, error) {
	const bits = 33 // 32 and a sign
	return strconv.ParseInt(s, 0, bits)
}

// vfs finds the numbers of a PF's VFs.
func (m *Machine) vfs(pf PCIAddr) (vfList, error) {
	dir, err := m.folder(path.Join(devices, string(pf)))
	if err != nil {
		return nil, err
	}
	defer dir.close()
	names, err := dir.names()
	if err != nil {
		return nil, err
	}
	all := vfList{}
	for _, name := range names {
		id, ok := parseVirtfn(name)
		if !ok {
			continue
		}
		to, err := dir.readlink(name)
		if err == nil {
			all[PCIAddr(path.Base(to))] = id
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return all, nil
}

func parseVirtfn(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "virtfn")
	if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 16)
	return int(id), err == nil
}

// netdevs gives the uplink first.
func (r *reader) netdevs() []string {
	dir, err := r.dir.folder("net")
	if err != nil {
		r.fail(err) // fs.ErrNotExist: no driver, or one that makes no link
		return nil
	}
	defer dir.close()
	names, err := dir.names()
	r.fail(err)
	if len(names) < 2 {
		return names
	}
	slices.Sort(names)
	port := map[string]int{}
	for _, name := range names {
		// EOPNOTSUPP: a driver that knows no ports has no representors.
		if s, err := dir.read(path.Join(name, "phys_port_name")); err == nil {
			port[name] = rank(s)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return port[a] - port[b] })
	return names
}

// rank orders links by what the driver calls their port: "p0" is an uplink, "pf0vf1" or "c1pf0" a
// representor.
func rank(port string) int {
	digits, ok := strings.CutPrefix(port, "p")
	if port == "" || ok && digits != "" && strings.Trim(digits, "0123456789") == "" {
		return 0
	}
	return 1
}

func (m *Machine) list(dir string) ([]string, error) {
	open, err := m.folder(dir)
	if err != nil {
		return nil, err
	}
	defer open.close()
	names, err := open.names()
	slices.Sort(names)
	return names, err
}

// one opens one function's folder for as long as f takes.
func (m *Machine) one(addr PCIAddr, f func(r *reader) error) error {
	open := opener{m: m}
	defer open.close()
	dir, _, err := open.open(addr)
	if err != nil {
		return err
	}
	defer dir.close()
	return f(&reader{dir: dir, addr: addr})
}

// netdevs lists the names of a function's links, the uplink first.
func (m *Machine) netdevs(addr PCIAddr) (names []string, err error) {
	err = m.one(addr, func(r *reader) error {
		names = r.netdevs()
		return errors.Join(r.errs...)
	})
	return names, err
}

// SetNumVFs makes n VFs of a PF, or ends them. The kernel answers fs.ErrNotExist when it is no PF
// or has no driver, ERANGE when n is more than it can have, EBUSY when it has another number
// that is not 0: those must be ended first.
func (m *Machine) SetNumVFs(pf PCIAddr, n int) error {
	if _, err := ParsePCIAddr(string(pf)); err != nil {
		return err
	}
	// Not created: sysfs has no place for new files, and a typing error must not look like a success.
	file, err := m.sysfs.OpenFile(path.Join(devices, string(pf), "sriov_numvfs"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set number of VFs of %s to %d: %w", pf, n, err)
	}
	_, err = file.WriteString(strconv.Itoa(n))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("set number of VFs of %s to %d: %w", pf, n, err)
	}
	err = m.one(pf, func(r *reader) error {
		is, err := r.parsed("sriov_numvfs", 0)
		if err == nil && int(is) != n {
			err = fmt.Errorf("it has %d", is)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("set number of VFs of %s to %d: %w", pf, n, err)
	}
	return nil
}
