// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// machine is what is asked of the kernel; *kernel.Machine is one.
type machine interface {
	Links(ns kernel.Namespace) ([]kernel.Link, error)
	Move(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error)
	SetUp(ns kernel.Namespace, index int, up bool) error
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
	Function(addr kernel.PCIAddr) (kernel.Function, error)
	NamespaceID(path string) (uint64, error)
}

// store are the allocations; *state.Store is one.
type store interface {
	OfPod(uid types.UID) []device.Allocation
}

// Config is what a Handover needs.
type Config struct {
	StateDir string
	Managers map[device.ManagerType]device.Manager
	Store    store
	Kernel   machine
	// Observe is told of each operation ("attach", "detach", "return"); nil is fine.
	Observe func(operation string, links int, took time.Duration, err error)
	Log     *slog.Logger
}

// Handover hands devices over. Its methods may be called from several goroutines.
type Handover struct {
	cfg     Config
	records *journal.Store
	pods    keyed // one operation a pod at a time
}

// Sandbox is where a pod's devices go.
type Sandbox struct {
	PodUID    string
	ID        string
	Namespace string // path of its network namespace; "" when it has none of its own
	// Reserved are names of interfaces that others give the pod.
	Reserved []string
}

// Given is a link that a pod has.
type Given struct {
	Pool   string
	Device string
	IfName string
	PCI    kernel.PCIAddr
	MAC    string
}

// New opens the records.
func New(cfg Config) (*Handover, error) {
	if cfg.Observe == nil {
		cfg.Observe = func(string, int, time.Duration, error) {}
	}
	records, err := journal.Open(filepath.Join(cfg.StateDir, record.Handovers), record.Handovers)
	if err != nil {
		return nil, fmt.Errorf("open records of hand-overs: %w", err)
	}
	return &Handover{cfg: cfg, records: records}, nil
}

// Close lets the records go.
func (h *Handover) Close() error { return h.records.Close() }

// host is the host's own network namespace.
func host() kernel.Namespace { return kernel.Namespace{} }

// Prepared names the interfaces that a pod's devices take in it, of those whose name is known: a
// device that keeps its host's name is among them.
func (h *Handover) Prepared(podUID string) (names []string) {
	for _, row := range h.cfg.Store.OfPod(types.UID(podUID)) {
		m := h.cfg.Managers[row.Manager]
		if m != nil && len(m.Nodes(row.PreparedDevice)) == 0 {
			names = append(names, podName(m, row))
		}
	}
	return names
}

func podName(m device.Manager, row device.Allocation) string {
	if row.Config.PodIfName != "" {
		return row.Config.PodIfName
	}
	return m.Home(row.PreparedDevice, row.Saved).Name
}

// Attach moves all links of a pod's prepared devices into its sandbox, and says which they are. It
// does nothing when they are there, and leaves all of them at home when one cannot be moved.
func (h *Handover) Attach(ctx context.Context, s Sandbox) (given []Given, err error) {
	start := time.Now()
	rows := h.linked(s.PodUID)
	if len(rows) == 0 {
		return nil, nil
	}
	defer func() { h.cfg.Observe("attach", len(rows), time.Since(start), err) }()
	ns, err := h.namespace(s)
	if err != nil {
		return nil, err
	}
	unlock, err := h.pods.lock(ctx, s.PodUID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := h.takeOver(ctx, s); err != nil {
		return nil, err
	}
	rec, err := h.acquire(ctx, journal.Key(s.ID))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	if given, ok := h.standing(rec.State(), ns, rows); ok {
		return given, nil
	}
	if _, err := h.undo(ctx, rec, nil); err != nil {
		return nil, fmt.Errorf("undo an earlier hand-over to sandbox %s: %w", s.ID, err)
	}
	rows, there := h.split(ns, rows)
	if len(rows) == 0 {
		return there, nil
	}
	body, err := h.plan(ctx, s, ns, rows)
	if err != nil {
		return nil, err
	}
	given, err = h.act(ctx, rec, body, rows)
	return append(there, given...), err
}

// linked are a pod's rows whose device is a link.
func (h *Handover) linked(podUID string) (rows []device.Allocation) {
	for _, row := range h.cfg.Store.OfPod(types.UID(podUID)) {
		if m := h.cfg.Managers[row.Manager]; m != nil && len(m.Nodes(row.PreparedDevice)) == 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

// namespace is the sandbox's, which must not be the host's: its links are there already, under
// names that a pod must not choose.
func (h *Handover) namespace(s Sandbox) (kernel.Namespace, error) {
	if s.Namespace == "" {
		return kernel.Namespace{}, fmt.Errorf("sandbox %s has no network namespace of its own (hostNetwork): a claimed device cannot be given to it", s.ID)
	}
	id, err := h.cfg.Kernel.NamespaceID(s.Namespace)
	if err != nil {
		return kernel.Namespace{}, fmt.Errorf("network namespace of sandbox %s: %w", s.ID, err)
	}
	if own, err := h.cfg.Kernel.NamespaceID("/proc/self/ns/net"); err == nil && own == id {
		return kernel.Namespace{}, fmt.Errorf("sandbox %s is in the host's network namespace (hostNetwork): a claimed device cannot be given to it", s.ID)
	}
	return kernel.Namespace{Path: s.Namespace, ID: id}, nil
}

// acquire gives the record of a sandbox. What could be read of one that is broken, and goes into
// quarantine, is undone first.
func (h *Handover) acquire(ctx context.Context, key journal.Key) (*journal.Record, error) {
	rec, err := h.records.Acquire(ctx, key)
	if corrupt, ok := errors.AsType[*journal.CorruptError](err); ok {
		if err := h.salvage(ctx, key, corrupt); err != nil {
			return nil, errors.Join(err, rec.Close())
		}
		return rec, nil
	}
	return rec, err
}

// bodyOf is what a record says; nil when it says nothing.
func bodyOf(s journal.State) (*record.Handover, error) {
	if len(s.Intents) == 0 {
		return nil, nil //nolint:nilnil // nothing was recorded, which is no fault
	}
	var body record.Handover
	if err := json.Unmarshal(s.Intents[0].Body, &body); err != nil {
		return nil, fmt.Errorf("read a hand-over: %w", err)
	}
	return &body, nil
}

// outstanding are the links of a record that may be away, and whether the hand-over was finished.
// In another boot all of them are home, or are no more.
func outstanding(s journal.State, links int) (away []int, finished bool) {
	open := make([]bool, links)
	for _, p := range s.Phases {
		if p.Item == journal.WholeCall {
			finished = p.Phase == journal.Done
			continue
		}
		if p.Item >= 0 && p.Item < links {
			open[p.Item] = p.Phase != journal.Undone
		}
	}
	if len(s.Intents) > 0 && s.Intents[0].Boot != journal.BootID() {
		return nil, false
	}
	for i, is := range open {
		if is {
			away = append(away, i)
		}
	}
	return away, finished
}

// standing gives what a pod has when an earlier call gave it exactly that, and all of it is there.
func (h *Handover) standing(s journal.State, ns kernel.Namespace, rows []device.Allocation) ([]Given, bool) {
	body, err := bodyOf(s)
	if err != nil || body == nil || body.Namespace != ns {
		return nil, false
	}
	away, finished := outstanding(s, len(body.Links))
	if !finished || len(away) != len(body.Links) {
		return nil, false
	}
	var given []Given
	ours := 0
	for _, row := range rows {
		link, err := h.cfg.Managers[row.Manager].Link(ns, row.PreparedDevice, row.Saved)
		if err != nil {
			return nil, false
		}
		for _, l := range body.Links {
			if l.ClaimUID == string(row.ClaimUID) && l.Device == row.DeviceName && l.ShareID == row.ShareID {
				ours++
				if link.Name != l.PodName {
					return nil, false
				}
			}
		}
		given = append(given, givenOf(row, link))
	}
	return given, ours == len(body.Links)
}

func givenOf(row device.Allocation, link kernel.Link) Given {
	return Given{Pool: row.Pool, Device: row.DeviceName, IfName: link.Name, PCI: link.PCI, MAC: link.MAC.String()}
}

// split takes out the rows whose link is in the sandbox already: a CNI plugin moved it there for a
// network that takes its device from the claim, and brings it home.
func (h *Handover) split(ns kernel.Namespace, rows []device.Allocation) (left []device.Allocation, there []Given) {
	for _, row := range rows {
		link, err := h.cfg.Managers[row.Manager].Link(ns, row.PreparedDevice, row.Saved)
		if err != nil {
			left = append(left, row)
			continue
		}
		there = append(there, givenOf(row, link))
	}
	return left, there
}

// plan says what moves where, and finds what cannot before anything does.
func (h *Handover) plan(ctx context.Context, s Sandbox, ns kernel.Namespace, rows []device.Allocation) (record.Handover, error) {
	body := record.Handover{PodUID: s.PodUID, SandboxID: s.ID, Namespace: ns}
	taken := map[string]string{}
	for _, name := range s.Reserved {
		taken[name] = "another network of the pod"
	}
	there, err := h.cfg.Kernel.Links(ns)
	if err != nil {
		return body, fmt.Errorf("look into sandbox %s: %w", s.ID, err)
	}
	for _, l := range there {
		taken[l.Name] = "an interface that the pod has already"
		for _, name := range l.AltNames {
			taken[name] = "an alternative name of interface " + l.Name
		}
	}
	var faults []error
	for _, row := range rows {
		m := h.cfg.Managers[row.Manager]
		name := podName(m, row)
		if by, ok := taken[name]; ok {
			faults = append(faults, fmt.Errorf("device %s of pool %s: podIfName %q is taken by %s", row.DeviceName, row.Pool, name, by))
			continue
		}
		taken[name] = "device " + row.DeviceName
		link, err := h.find(ctx, m, row)
		if err != nil {
			faults = append(faults, fmt.Errorf("device %s of pool %s: %w", row.DeviceName, row.Pool, err))
			continue
		}
		dev, err := json.Marshal(row.PreparedDevice)
		if err != nil {
			faults = append(faults, fmt.Errorf("device %s: %w", row.DeviceName, err))
			continue
		}
		body.Links = append(body.Links, record.Link{
			ClaimUID: string(row.ClaimUID), Pool: row.Pool, Device: row.DeviceName, ShareID: row.ShareID,
			Manager: string(row.Manager), Dev: dev, Saved: row.Saved,
			PCI: link.PCI, Index: link.Index, Home: home(m.Home(row.PreparedDevice, row.Saved), link), PodName: name,
		})
	}
	return body, errors.Join(faults...)
}

// home is what a link gets back: what its manager knows, and what it is now where that says nothing.
func home(known kernel.LinkState, link kernel.Link) kernel.LinkState {
	if known.Name == "" {
		return kernel.StateOf(link)
	}
	return known
}

// find gives a device's link in the host's namespace; one that died with an earlier sandbox is set
// up again.
func (h *Handover) find(ctx context.Context, m device.Manager, row device.Allocation) (kernel.Link, error) {
	link, err := m.Link(host(), row.PreparedDevice, row.Saved)
	if !errors.Is(err, kernel.ErrNoLink) {
		return link, err
	}
	if _, err := m.Setup(ctx, row.PreparedDevice, row.Config, row.Saved); err != nil {
		return link, fmt.Errorf("set it up again: %w", err)
	}
	return m.Link(host(), row.PreparedDevice, row.Saved)
}

// act moves the links, or leaves them as they were.
func (h *Handover) act(ctx context.Context, rec *journal.Record, body record.Handover, rows []device.Allocation) (given []Given, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("write down a hand-over: %w", err)
	}
	if err := rec.Begin(journal.Intent{PodUID: body.PodUID, Body: text}); err != nil {
		return nil, fmt.Errorf("write down a hand-over: %w", err)
	}
	for i, l := range body.Links {
		link, err := h.move(ctx, rec, body, i)
		if err != nil {
			err = fmt.Errorf("device %s of pool %s, interface %s: %w", l.Device, l.Pool, l.PodName, err)
			if undone := h.forget(ctx, rec, nil); undone != nil {
				err = errors.Join(err, fmt.Errorf("undo the hand-over: %w", undone))
			}
			return nil, err
		}
		given = append(given, givenOf(rows[i], link))
	}
	if err := rec.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall}); err != nil {
		return nil, errors.Join(fmt.Errorf("write down a hand-over: %w", err), h.forget(ctx, rec, nil))
	}
	h.cfg.Log.InfoContext(ctx, "devices are in their pod", "pod_uid", body.PodUID, "sandbox", body.SandboxID, "links", len(given))
	return given, nil
}

func (h *Handover) move(ctx context.Context, rec *journal.Record, body record.Handover, i int) (kernel.Link, error) {
	if err := ctx.Err(); err != nil {
		return kernel.Link{}, context.Cause(ctx)
	}
	l := body.Links[i]
	if err := rec.Append(journal.Phase{Phase: journal.Attempting, Item: i}); err != nil {
		return kernel.Link{}, err
	}
	link, err := h.cfg.Kernel.Move(host(), l.Index, body.Namespace, l.PodName)
	if err != nil {
		return link, err
	}
	if err := h.cfg.Kernel.SetUp(body.Namespace, link.Index, true); err != nil {
		return link, err
	}
	return link, rec.Append(journal.Phase{Phase: journal.Done, Item: i})
}

// takeOver gives back what other sandboxes of the pod have: the kubelet runs one at a time.
func (h *Handover) takeOver(ctx context.Context, s Sandbox) error {
	return h.each(func(key journal.Key, _ journal.State, body record.Handover) error {
		if body.PodUID != s.PodUID || string(key) == s.ID {
			return nil
		}
		if err := h.end(ctx, key, nil); err != nil {
			return fmt.Errorf("take devices back from sandbox %s of the same pod: %w", key, err)
		}
		return nil
	})
}

// each calls f with every record that can be read, and joins its errors. Records that cannot are
// told of, and stop nothing.
func (h *Handover) each(f func(journal.Key, journal.State, record.Handover) error) error {
	keys, err := h.records.Keys()
	if err != nil {
		return fmt.Errorf("list hand-overs: %w", err)
	}
	var faults []error
	for _, key := range keys {
		s, body, err := h.read(key)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			h.cfg.Log.Error("record of a hand-over cannot be read", "sandbox", key, "error", err)
		case body != nil:
			faults = append(faults, f(key, s, *body))
		}
	}
	return errors.Join(faults...)
}

// read gives what a record says, of a broken one what could be read. The body is nil when it says
// nothing.
func (h *Handover) read(key journal.Key) (journal.State, *record.Handover, error) {
	s, err := h.records.Read(key)
	if corrupt, ok := errors.AsType[*journal.CorruptError](err); ok {
		s, err = corrupt.State, nil
		s.Phases = nil // what is missing may say anything: all of it counts as attempted
	}
	if err != nil {
		return s, nil, err
	}
	body, err := bodyOf(s)
	return s, body, err
}
