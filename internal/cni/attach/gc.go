// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/scratch"
	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/lanes"
)

// drainTimeout is how long GC waits for running ADDs before it leaves the networks alone.
const drainTimeout = 5 * time.Second

// gc undoes the sandboxes that the runtime no longer lists, then has every network
// release what no living attachment of that conf name holds. A network's list is
// taken over all records, whatever NAD or conf version they came from, and all
// Multus scratch files: two NADs with one conf name share their plugins' state.
func (h *hands) gc(ctx context.Context) ([]byte, error) {
	if err := h.configure(); err != nil {
		return nil, err
	}
	if err := checkValid(h.conf.ValidAttachments); err != nil {
		return nil, err
	}
	ctx = brief.WithTimeout(ctx, gcTimeout)
	if err := h.open(); err != nil {
		return nil, err
	}
	valid := map[netconf.ValidAttachment]bool{}
	for _, v := range h.conf.ValidAttachments {
		valid[v] = true
	}
	nets, podNetwork := networks{}, ""
	if p, err := h.ownNetworks(ctx); err != nil {
		h.log.warn("GC goes on without the cluster network: " + err.Error())
	} else if p != nil {
		for _, a := range p.Attachments {
			nets.add(a.Conf)
			if a.Default {
				podNetwork = a.Conf.Name
			}
		}
	}
	faults := []error{h.gcRecords(ctx, valid, nets), h.gcScratch(ctx)}
	h.sweepSome(ctx)
	faults = append(faults, h.gcNetworks(ctx, nets, podNetwork))
	return nil, errors.Join(faults...)
}

// checkValid checks the runtime's list before anything is undone by it: of a list with an entry
// that can be no attachment the others cannot be trusted either.
func checkValid(list []netconf.ValidAttachment) error {
	for i, v := range list {
		for _, f := range []struct {
			field, value string
			validate     func(string) error
		}{
			{"containerID", v.ContainerID, netconf.NetworkName},
			{"ifname", v.IfName, selection.InterfaceName},
		} {
			if err := f.validate(f.value); err != nil {
				return fault.New(fault.Config, "configuration", fmt.Sprintf("cni.dev/valid-attachments[%d].%s", i, f.field), "%s %w", fault.Quote(f.value), err)
			}
		}
	}
	return nil
}

// gcRecords undoes the records that are not in the runtime's list, unless their ADD
// is still running, and collects the networks of all.
func (h *hands) gcRecords(ctx context.Context, valid map[netconf.ValidAttachment]bool, nets networks) error {
	keys, err := h.store.Keys()
	if err != nil {
		return stateFault("", err)
	}
	var faults []error
	for i, key := range keys {
		// The networks come after the last record.
		ctx := chain.Share(ctx, len(keys)-i+1, undoShare)
		faults = append(faults, h.gcRecord(ctx, key, valid, nets))
	}
	return errors.Join(faults...)
}

// gcRecord undoes one record, unless it is in the runtime's list, and collects its networks.
func (h *hands) gcRecord(ctx context.Context, key journal.Key, valid map[netconf.ValidAttachment]bool, nets networks) error {
	st, err := h.store.Read(key)
	if err != nil {
		return h.gcUnreadable(ctx, key, err)
	}
	if len(st.Intents) == 0 {
		return h.gcOne(ctx, key)
	}
	s, err := record.Decode(st, h.boot)
	if err != nil {
		return stateFault(key, err)
	}
	for _, a := range s.Attachments {
		nets.add(a.Conf)
	}
	sb := s.Body.Sandbox
	if valid[netconf.ValidAttachment{ContainerID: sb.ContainerID, IfName: sb.IfName}] {
		return nil
	}
	return h.gcOne(ctx, key)
}

// gcUnreadable moves a corrupt record to quarantine; one of a newer version is left alone,
// and one that is gone since the keys were listed is fine.
func (h *hands) gcUnreadable(ctx context.Context, key journal.Key, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, journal.ErrNewer) {
		h.log.warn(err.Error())
		return nil
	}
	if _, ok := errors.AsType[*journal.CorruptError](err); ok {
		return h.gcOne(ctx, key)
	}
	return stateFault(key, err)
}

// gcOne undoes and forgets one record. One that a living call holds is left to it.
func (h *hands) gcOne(ctx context.Context, key journal.Key) error {
	rec, err := h.takeIdle(ctx, key, h.patience(key))
	if errors.Is(err, journal.ErrBusy) {
		h.log.debug("GC leaves sandbox " + string(key) + " to the call that holds it")
		return nil
	}
	if err != nil || rec == nil {
		return err
	}
	defer rec.Close() //nolint:errcheck // an empty record is removed, another one is left
	if len(rec.State().Intents) == 0 {
		return nil
	}
	return h.undoRecord(ctx, rec)
}

// patience is how long GC waits for a record's lock. An ADD that lives keeps it for long
// and is in its right. When the ADD is dead, who holds the lock is a DEL, or a delegate in
// the moment between its fork and its exec, in which it looks like Weft itself.
func (h *hands) patience(key journal.Key) time.Duration {
	st, err := h.store.Read(key)
	if err == nil && len(st.Intents) > 0 && !journal.Alive(st.Intents[len(st.Intents)-1].Owner) {
		return endTimeout
	}
	return idleProbe
}

// takeIdle locks a record that no living call holds, waiting for so long; nil when there
// is none (any more).
func (h *hands) takeIdle(ctx context.Context, key journal.Key, wait time.Duration) (*journal.Record, error) {
	ctx = brief.WithTimeout(ctx, wait)
	rec, _, err := h.find(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return rec, err
}

// undoRecord undoes and forgets a record that the runtime did not say DEL of.
func (h *hands) undoRecord(ctx context.Context, rec *journal.Record) error {
	if _, err := h.undo(ctx, rec, false); err != nil {
		return fmt.Errorf("sandbox %s: %w", rec.Key(), err)
	}
	return nil
}

// gcScratch undoes what Multus attached for sandboxes that the runtime no longer lists.
func (h *hands) gcScratch(ctx context.Context) error {
	ids, err := scratch.List(h.conf.CNIDir)
	if err != nil {
		return stateFault("", fmt.Errorf("list Multus scratch directory: %w", err))
	}
	var faults []error
	for _, id := range ids {
		if h.listed(id) {
			continue
		}
		if err := recordKey(id, defaultIfName).Validate(); err != nil {
			h.log.warn("Multus scratch file of a container that cannot be recorded: " + err.Error())
			continue
		}
		faults = append(faults, h.gcOneScratch(ctx, id))
	}
	return errors.Join(faults...)
}

// listed reports whether the runtime lists an attachment of the container.
func (h *hands) listed(id string) bool {
	return slices.ContainsFunc(h.conf.ValidAttachments, func(v netconf.ValidAttachment) bool { return v.ContainerID == id })
}

func (h *hands) gcOneScratch(ctx context.Context, id string) error {
	asked := h.req.sandbox
	defer func() { h.req.sandbox = asked }()
	h.req.sandbox = plan.Sandbox{ContainerID: id, IfName: defaultIfName, Path: asked.Path}
	rec, corrupt, err := h.acquire(ctx, h.key())
	if err != nil || corrupt {
		return err
	}
	defer rec.Close() //nolint:errcheck // an empty record is removed, another one is left
	if err := h.takeOver(ctx, rec); err != nil || len(rec.State().Intents) == 0 {
		return err
	}
	return h.undoRecord(ctx, rec)
}

// defaultIfName is the pod network's interface, where only Multus' file remembers it
// and that file does not.
const defaultIfName = "eth0"

// gcNetworks gives every network the list of what lives under its conf name. No ADD
// runs meanwhile: an address that one just took would be in no list yet.
func (h *hands) gcNetworks(ctx context.Context, nets networks, podNetwork string) error {
	gate, err := h.shutGate(ctx)
	if err != nil {
		return err
	}
	defer gate.Close() //nolint:errcheck // only its lock matters
	live, err := h.liveByName(podNetwork)
	if err != nil {
		return err
	}
	lane, err := h.lane(ctx, true)
	if err != nil {
		return err
	}
	defer lanes.Release(lane)
	all := nets.sorted()
	var faults []error
	for i, n := range all {
		ctx := chain.Share(ctx, len(all)-i, undoShare)
		call := chain.Call{Network: n, Path: h.path(), Inherit: []*os.File{lane}}
		if err := h.runner.GC(ctx, call, live[n.Name]); err != nil {
			faults = append(faults, fmt.Errorf("network %s: %w", n.Name, err))
		}
	}
	return errors.Join(faults...)
}

// networks is a set of networks by name and exact configuration.
type networks map[string]netconf.Network

func (n networks) add(conf netconf.Network) {
	parts := [][]byte{[]byte(conf.Name), []byte(conf.CNIVersion)}
	for _, p := range conf.Plugins {
		parts = append(parts, p.Conf)
	}
	n[string(bytes.Join(parts, []byte{0}))] = conf
}

func (n networks) sorted() []netconf.Network {
	keys := make([]string, 0, len(n))
	for k := range n {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	out := make([]netconf.Network, 0, len(keys))
	for _, k := range keys {
		out = append(out, n[k])
	}
	return out
}

// The gate keeps GC's lists true: an ADD holds it shared from its intent to its
// answer, GC alone. A second file is the turnstile in front of it, so that a steady
// stream of ADDs cannot keep a GC out. The kernel lets go of both when a process dies.
func (h *hands) enterGate(ctx context.Context) (*os.File, error) {
	turnstile, err := h.flock(ctx, "gc.turnstile", syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer turnstile.Close() //nolint:errcheck // only its lock matters
	return h.flock(ctx, "gc.gate", syscall.LOCK_SH)
}

func (h *hands) shutGate(ctx context.Context) (*os.File, error) {
	ctx = brief.WithTimeout(ctx, drainTimeout)
	turnstile, err := h.flock(ctx, "gc.turnstile", syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer turnstile.Close() //nolint:errcheck // only its lock matters
	return h.flock(ctx, "gc.gate", syscall.LOCK_EX)
}

func (h *hands) flock(ctx context.Context, name string, how int) (*os.File, error) {
	path := filepath.Join(h.conf.StateDir, name)
	file, err := brief.OpenFile(path, os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &fault.Fault{Code: fault.State, Object: "stateDir " + h.conf.StateDir, Text: err.Error(), Err: err}
	}
	const first, most = time.Millisecond, 50 * time.Millisecond
	for wait := first; ; wait = min(2*wait, most) {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, &fault.Fault{Code: fault.State, Object: "file " + path, Text: err.Error(), Err: err}
		}
		if err := brief.Sleep(ctx, wait); err != nil {
			_ = file.Close()
			return nil, fault.New(fault.TryLater, "file "+path, "", "other calls hold it: %v", err)
		}
	}
}
