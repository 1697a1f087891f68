// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/host/kernel"
)

// provision starts giving each configured PF its number of VFs, where that is allowed. What stands in
// the way at one PF becomes its problem.
func (r *runner) provision(spec v2alpha1.SRIOVConfig, inv inventory, now time.Time, problems map[string]error) {
	r.collect(now)
	seen := map[kernel.PCIAddr]string{}
	for _, iface := range spec.Ifaces {
		pf, err := r.pf(iface.IfName, inv)
		if err != nil {
			problems[iface.IfName] = err
			continue
		}
		if other, ok := seen[pf.Addr]; ok {
			problems[iface.IfName] = fmt.Errorf("interface %s is PF %s, which %s names already", iface.IfName, pf.Addr, other)
			continue
		}
		seen[pf.Addr] = iface.IfName
		if err := r.provisionPF(iface, pf, inv.vfs[pf.Addr], now); err != nil {
			problems[iface.IfName] = err
		}
	}
	for addr := range r.retries {
		if _, ok := seen[addr]; !ok {
			delete(r.retries, addr)
		}
	}
}

// pf finds a configured PF: by the name of its link, or by an alternative name.
func (r *runner) pf(ifName string, inv inventory) (kernel.Function, error) {
	if f, ok := inv.named(ifName); ok {
		return f, nil
	}
	link, err := r.conf.Kernel.Link(kernel.Namespace{}, ifName)
	if err != nil {
		return kernel.Function{}, fmt.Errorf("find interface %s: %w", ifName, err)
	}
	f, ok := inv.functions[link.PCI]
	if !ok || f.PF != "" {
		return kernel.Function{}, fmt.Errorf("interface %s is no physical function of a PCI network device", ifName)
	}
	return f, nil
}

func (r *runner) provisionPF(
	iface v2alpha1.SRIOVInterface, pf kernel.Function, vfs []kernel.Function, now time.Time,
) error {
	want := iface.VFCount
	if _, ok := r.busy[pf.Addr]; ok {
		return r.retries[pf.Addr].err
	}
	switch {
	case want == 0 || want == pf.NumVFs:
		delete(r.retries, pf.Addr)
		return nil
	case pf.TotalVFs == 0:
		return fmt.Errorf("interface %s (%s) has no SR-IOV", iface.IfName, pf.Addr)
	case want > pf.TotalVFs:
		return fmt.Errorf("interface %s: vfCount is %d, but PF %s can have %d VFs at most",
			iface.IfName, want, pf.Addr, pf.TotalVFs)
	}
	if pf.NumVFs != 0 {
		if err := r.mayResize(iface, pf, vfs); err != nil {
			return err
		}
	}
	last := r.retries[pf.Addr]
	if last.want != want || !now.Before(last.at) {
		r.start(iface, pf, vfs)
	}
	return last.err
}

// start changes the number of VFs in a goroutine of its own: a write to sysfs takes as long as the
// PF's driver likes, and other PFs do not wait for it.
func (r *runner) start(iface v2alpha1.SRIOVInterface, pf kernel.Function, vfs []kernel.Function) {
	r.busy[pf.Addr] = iface.VFCount
	r.fresh[pf.Addr] = &fresh{come: map[kernel.PCIAddr]bool{}}
	r.working.Go(func() {
		var err error
		if pf.NumVFs == 0 {
			err = r.makeVFs(pf, iface.VFCount)
		} else {
			err = r.resize(iface, pf, vfs)
		}
		r.mu.Lock()
		r.finished[pf.Addr] = err
		r.mu.Unlock()
		r.Rescan()
	})
}

// collect takes note of what was finished. What failed is tried again after a pause.
func (r *runner) collect(now time.Time) {
	r.mu.Lock()
	finished := maps.Clone(r.finished)
	clear(r.finished)
	r.mu.Unlock()
	for addr, err := range finished {
		want := r.busy[addr]
		delete(r.busy, addr)
		if err == nil {
			delete(r.retries, addr)
			r.fresh[addr] = &fresh{until: now.Add(settleFor), come: map[kernel.PCIAddr]bool{}}
			continue
		}
		delete(r.fresh, addr)
		pause := firstRetry
		if last, ok := r.retries[addr]; ok && last.want == want {
			pause = min(2*last.pause, lastRetry)
		}
		r.retries[addr] = retry{want: want, at: now.Add(pause), pause: pause, err: err}
	}
}

// makeVFs makes the VFs of a PF that has none.
func (m *Manager) makeVFs(pf kernel.Function, want int) error {
	if err := m.conf.Provisioned.SetMade(pf.Addr, want); err != nil {
		return err
	}
	if err := m.conf.Kernel.SetNumVFs(pf.Addr, want); err != nil {
		// Those that somebody else makes after this are not to be taken for Weft's.
		return errors.Join(fmt.Errorf("make %d VFs of PF %s: %w", want, pf.Addr, err),
			m.conf.Provisioned.SetMade(pf.Addr, 0))
	}
	m.conf.Log.Info("made virtual functions", "pf", pf.Addr, "count", want)
	return nil
}

// mayResize says whether the VFs are Weft's to destroy.
func (m *Manager) mayResize(iface v2alpha1.SRIOVInterface, pf kernel.Function, vfs []kernel.Function) error {
	made, err := m.conf.Provisioned.Made(pf.Addr)
	if err == nil && made == pf.NumVFs {
		return m.unused(iface, pf, vfs)
	}
	return errors.Join(fmt.Errorf("interface %s: PF %s has %d VFs, vfCount is %d: left alone, since Weft did not make them; "+
		"set sriov_numvfs to 0 to have it make them", iface.IfName, pf.Addr, pf.NumVFs, iface.VFCount), err)
}

func (m *Manager) unused(iface v2alpha1.SRIOVInterface, pf kernel.Function, vfs []kernel.Function) error {
	for _, vf := range vfs {
		if why := m.inUse(vf); why != "" {
			return fmt.Errorf("interface %s: PF %s has %d VFs, vfCount is %d: left alone while VF %s is used: %s",
				iface.IfName, pf.Addr, pf.NumVFs, iface.VFCount, vf.Addr, why)
		}
	}
	return nil
}

// resize destroys all VFs of a PF and makes the wanted number, as the kernel will have it.
func (m *Manager) resize(iface v2alpha1.SRIOVInterface, pf kernel.Function, vfs []kernel.Function) error {
	if err := m.beginResize(pf.Addr, vfs); err != nil {
		return err
	}
	defer m.endResize(pf.Addr)
	// Once more, since one may have been prepared before new claims were refused.
	if err := m.unused(iface, pf, vfs); err != nil {
		return err
	}
	if err := m.conf.Kernel.SetNumVFs(pf.Addr, 0); err != nil {
		return fmt.Errorf("remove the %d VFs of PF %s: %w", pf.NumVFs, pf.Addr, err)
	}
	m.conf.Log.Info("removed virtual functions", "pf", pf.Addr, "count", pf.NumVFs)
	return m.makeVFs(pf, iface.VFCount)
}

// inUse says what a VF is used for, "" when for nothing.
func (m *Manager) inUse(vf kernel.Function) string {
	if used, why := m.conf.InUse(vf.Addr); used {
		return why
	}
	switch {
	case vf.Driver == "":
		return ""
	case isVFIO(vf.Driver):
		return "it is bound to " + vf.Driver
	}
	link, err := m.conf.Kernel.LinkOf(kernel.Namespace{}, vf.Addr)
	if errors.Is(err, kernel.ErrNoLink) {
		return "its link is not in the host's network namespace"
	}
	if err != nil {
		return "its link cannot be looked at: " + err.Error()
	}
	return usedOnHost(link)
}

// usedOnHost says what the host uses a link for that is in its network namespace, "" when for nothing.
// Weft brings a link home without any of it: this is somebody else's doing.
func usedOnHost(link kernel.Link) string {
	switch {
	case link.Master != "":
		return fmt.Sprintf("its link %s is a port of %s", link.Name, link.Master)
	case len(link.Uppers) > 0:
		return fmt.Sprintf("its link %s has %s on top of it", link.Name, strings.Join(link.Uppers, ", "))
	}
	state := "down"
	if link.Up {
		state = "up"
	}
	for _, addr := range link.Addrs {
		// Every link that is up has a link-local one, and nobody gave it that. Any other was given to
		// the link, also to one that is down: a link that comes home from a pod has none.
		if !addr.Addr().IsLinkLocalUnicast() {
			return fmt.Sprintf("its link %s is %s with address %s", link.Name, state, addr)
		}
	}
	return ""
}

// settle says which VFs are held back because they were made a moment ago and have no link yet. When
// the time is over, what is still missing is a problem of the PF, until it is there.
func (r *runner) settle(
	spec v2alpha1.SRIOVConfig, inv inventory, now time.Time, problems map[string]error,
) map[kernel.PCIAddr]bool {
	held := map[kernel.PCIAddr]bool{}
	for addr, f := range r.fresh {
		pf, ok := inv.functions[addr]
		if _, busy := r.busy[addr]; !busy && (!ok || pf.NumVFs == 0) {
			delete(r.fresh, addr)
			continue
		}
		vfs := inv.vfs[addr]
		missing := f.missing(vfs)
		_, busy := r.busy[addr]
		lost := pf.NumVFs - len(vfs)
		switch {
		case !busy && len(missing) == 0 && lost == 0:
			delete(r.fresh, addr)
		case busy || now.Before(f.until):
			for _, vf := range missing {
				held[vf.Addr] = true
			}
		default:
			if name := nameIn(spec, pf); problems[name] == nil {
				problems[name] = problem(pf, missing, lost)
			}
		}
	}
	return held
}

// missing are the VFs that have not come yet. One that once had its link is not missing when a pod
// has it.
func (f *fresh) missing(vfs []kernel.Function) []kernel.Function {
	var missing []kernel.Function
	for _, vf := range vfs {
		if len(vf.Netdevs) != 0 || isVFIO(vf.Driver) {
			f.come[vf.Addr] = true
		}
		if !f.come[vf.Addr] {
			missing = append(missing, vf)
		}
	}
	return missing
}

func problem(pf kernel.Function, missing []kernel.Function, lost int) error {
	var unbound, linkless []string
	for _, vf := range missing {
		if vf.Driver == "" {
			unbound = append(unbound, string(vf.Addr))
		} else {
			linkless = append(linkless, string(vf.Addr))
		}
	}
	var all []error
	if lost != 0 {
		all = append(all, fmt.Errorf("PF %s has %d VFs, of which %d are no Ethernet functions or not there", pf.Addr, pf.NumVFs, lost))
	}
	if len(unbound) != 0 {
		all = append(all, fmt.Errorf("no driver took VFs %s of PF %s: look at sriov_drivers_autoprobe and whether the driver is there",
			strings.Join(unbound, ", "), pf.Addr))
	}
	if len(linkless) != 0 {
		all = append(all, fmt.Errorf("VFs %s of PF %s have a driver but no link", strings.Join(linkless, ", "), pf.Addr))
	}
	return errors.Join(all...)
}

// nameIn is what the configuration calls a PF.
func nameIn(spec v2alpha1.SRIOVConfig, pf kernel.Function) string {
	for _, iface := range spec.Ifaces {
		if slices.Contains(pf.Netdevs, iface.IfName) {
			return iface.IfName
		}
	}
	return cmp.Or(first(pf.Netdevs), string(pf.Addr))
}
