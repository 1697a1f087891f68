// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

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
	var all []Function
	var errs []error
	ids := map[PCIAddr]vfList{}
	for _, name := range names {
		addr, err := ParsePCIAddr(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := m.function(addr, func(pf PCIAddr) (vfList, error) {
			if _, ok := ids[pf]; !ok {
				list, err := m.vfs(pf)
				if err != nil {
					return nil, err
				}
				ids[pf] = list
			}
			return ids[pf], nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went meanwhile
		}
		if f.Class>>16 == networkClass {
			all = append(all, f)
		}
		errs = append(errs, err)
	}
	slices.SortFunc(all, func(a, b Function) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, errors.Join(errs...)
}

// Function reads one PCI function; fs.ErrNotExist: there is none.
func (m *Machine) Function(addr PCIAddr) (Function, error) {
	if _, err := ParsePCIAddr(string(addr)); err != nil {
		return Function{}, err
	}
	return m.function(addr, m.vfs)
}

// vfList is a PF's VFs by address.
type vfList map[PCIAddr]int

// function reads a function's folder. An error other than fs.ErrNotExist leaves what it is about
// out, and gives the rest.
func (m *Machine) function(addr PCIAddr, vfs func(pf PCIAddr) (vfList, error)) (Function, error) {
	f := Function{Addr: addr, VFID: -1, NUMANode: -1}
	class, err := number(m, addr, "class", 0)
	if err != nil {
		return f, err
	}
	f.Class = uint32(class)
	if f.Class>>16 != networkClass {
		return f, nil // nobody asks what else it is
	}
	r := reader{m: m, addr: addr}
	f.Vendor, f.Device = r.text("vendor"), r.text("device")
	f.Driver, f.IOMMUGroup = r.link("driver"), r.link("iommu_group")
	f.PF = PCIAddr(r.link("physfn"))
	f.NUMANode = r.number("numa_node", -1)
	f.TotalVFs, f.NumVFs = r.number("sriov_totalvfs", 0), r.number("sriov_numvfs", 0)
	where, err := m.sysfs.Readlink(path.Join(devices, string(addr)))
	if err == nil {
		f.PCIeRoot = pcieRoot(where)
	} else if !errors.Is(err, unix.EINVAL) { // a folder, not a link: a sysfs that somebody made
		r.errs = append(r.errs, err)
	}
	if f.Netdevs, err = m.netdevs(addr); err != nil {
		r.errs = append(r.errs, err)
	}
	if f.PF != "" {
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
	if err := errors.Join(r.errs...); err != nil {
		// The function itself may have gone while it was read; then that is all there is to say.
		if _, gone := number(m, addr, "class", 0); gone != nil {
			return f, gone
		}
		return f, fmt.Errorf("read PCI function %s: %s", addr, err) //nolint:errorlint // no part's fs.ErrNotExist is the function's
	}
	return f, nil
}

// reader reads attributes that a function need not have, and keeps what went wrong.
type reader struct {
	m    *Machine
	addr PCIAddr
	errs []error
}

func (r *reader) fail(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.errs = append(r.errs, err)
	}
}

func (r *reader) text(attr string) string {
	s, err := r.m.text(r.addr, attr)
	r.fail(err)
	return s
}

func (r *reader) link(attr string) string {
	s, err := r.m.sysfs.Readlink(path.Join(devices, string(r.addr), attr))
	r.fail(err)
	return strings.TrimPrefix(path.Base(s), ".")
}

func (r *reader) number(attr string, absent int) int {
	n, err := number(r.m, r.addr, attr, absent)
	r.fail(err)
	return int(n)
}

// text reads a short attribute.
func (m *Machine) text(addr PCIAddr, attr string) (string, error) {
	return m.read(path.Join(devices, string(addr), attr))
}

func (m *Machine) read(name string) (string, error) {
	file, err := m.sysfs.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	const most = 4096 // a page, which is all that an attribute can be
	data, err := io.ReadAll(io.LimitReader(file, most))
	return strings.TrimSpace(string(data)), err
}

func number(m *Machine, addr PCIAddr, attr string, absent int) (int64, error) {
	s, err := m.text(addr, attr)
	if err != nil {
		return int64(absent), err
	}
	n, err := parseNumber(s)
	if err != nil {
		return int64(absent), fmt.Errorf("read %s of %s: %w", attr, addr, err)
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
	dir := path.Join(devices, string(pf))
	names, err := m.list(dir)
	if err != nil {
		return nil, err
	}
	all := vfList{}
	for _, name := range names {
		id, ok := parseVirtfn(name)
		if !ok {
			continue
		}
		to, err := m.sysfs.Readlink(path.Join(dir, name))
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

// netdevs lists the names of a function's links, the uplink first.
func (m *Machine) netdevs(addr PCIAddr) ([]string, error) {
	dir := path.Join(devices, string(addr), "net")
	names, err := m.list(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no driver, or one that makes no link
	}
	if err != nil || len(names) < 2 {
		return names, err
	}
	port := map[string]int{}
	for _, name := range names {
		// EOPNOTSUPP: a driver that knows no ports has no representors.
		s, err := m.read(path.Join(dir, name, "phys_port_name"))
		if err == nil {
			port[name] = rank(s)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return port[a] - port[b] })
	return names, nil
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
	file, err := m.sysfs.Open(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, err := file.Readdirnames(-1)
	slices.Sort(names)
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
	is, err := number(m, pf, "sriov_numvfs", 0)
	if err == nil && int(is) != n {
		err = fmt.Errorf("it has %d", is)
	}
	if err != nil {
		return fmt.Errorf("set number of VFs of %s to %d: %w", pf, n, err)
	}
	return nil
}
