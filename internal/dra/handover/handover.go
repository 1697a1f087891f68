// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
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
	// Known is closed when what was prepared before this start has its rows; nil: it has. Until then
	// a pod of which there is a record is refused.
	Known <-chan struct{}
	// Ready says why a pod's devices are not to be handed over although they have rows, or have none
	// because their record cannot be had. It waits for nothing. Nil is fine.
	Ready func(pod types.UID) error
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
	// Yields says that another living sandbox of the pod keeps what it has: ErrElsewhere then. It is
	// for who only looks whether a sandbox lacks something, which may be the pod's last one.
	Yields bool
	// Static says that it is a static pod's, whose UID the API does not know.
	Static bool
}

// ErrElsewhere says that another sandbox of the pod has its devices.
var ErrElsewhere = errors.New("another sandbox of the pod has its devices")

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
	records.Salvaging(salvaged)
	return &Handover{cfg: cfg, records: records}, nil
}

// Close lets the records go.
func (h *Handover) Close() error { return h.records.Close() }

func (h *Handover) String() string { return "hand-over of devices" }

// host is the host's own network namespace.
func host() kernel.Namespace { return kernel.Namespace{} }

// Prepared names the interfaces that a pod's devices take in it; those that keep their host's name
// are among them. The error says why it cannot be told yet.
func (h *Handover) Prepared(podUID string) (names []string, err error) {
	rows, err := h.rows(podUID, links)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		names = append(names, podName(h.cfg.Managers[row.Manager], row))
	}
	return names, nil
}

// Nodes are the device files that a pod's containers need. What was set up behind them is seen to first.
func (h *Handover) Nodes(ctx context.Context, podUID string) (paths []string, err error) {
	rows, err := h.rows(podUID, files)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	unlock, err := h.pods.lock(ctx, podUID) // who frees them waits, or is seen here
	if err != nil {
		return nil, err
	}
	defer unlock()
	if rows, err = h.still(podUID, files); err != nil {
		return nil, err
	}
	if err := device.Mend(ctx, h.cfg.Managers, rows); err != nil {
		return nil, fmt.Errorf("see to what was set up: %w", err)
	}
	for _, row := range rows {
		for _, path := range h.cfg.Managers[row.Manager].Nodes(row.PreparedDevice) {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

// known says why a pod's rows may be missing: there is a record of its devices, or of some that pods
// share, and rows are not made from records yet.
func (h *Handover) known(podUID string) error {
	if h.cfg.Known == nil {
		return nil
	}
	select {
	case <-h.cfg.Known:
		return nil
	default:
	}
	dir := filepath.Join(h.cfg.StateDir, record.Devices)
	keys, err := journal.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for devices that were prepared for pod %s: %w", podUID, err)
	}
	for _, key := range keys {
		uid, err := journal.PodUID(dir, key)
		if err != nil || uid == "" || uid == podUID {
			return fmt.Errorf("claim %s was prepared before the agent's start and is not read yet: try again", key)
		}
	}
	return nil
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
	rows, err := h.rows(s.PodUID, links)
	if err != nil || len(rows) == 0 {
		return nil, err
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
	if rows, err = h.still(s.PodUID, links); err != nil { // while its turn came, a claim may have been freed
		return nil, err
	}
	if err := h.takeOver(ctx, s); err != nil {
		return nil, err
	}
	rec, lost, err := h.acquire(ctx, journal.Key(s.ID))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	if err := h.settle(rec, s, ns, rows, lost); err != nil {
		return nil, err
	}
	if given, stands, err := h.standing(rec.State(), ns, rows); stands {
		return given, err
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
	if err := device.Mend(ctx, h.cfg.Managers, rows); err != nil {
		return nil, fmt.Errorf("see to what was set up: %w", err)
	}
	if given, err = h.act(ctx, rec, body, rows); err != nil {
		return nil, err
	}
	return append(there, given...), nil
}

// What a pod has of a device.
const (
	links = false
	files = true
)

// rows are a pod's rows whose device is a link, or is files. The error says why they are not to be handed
// over yet.
func (h *Handover) rows(podUID string, filed bool) (rows []device.Allocation, err error) {
	if err := h.known(podUID); err != nil {
		return nil, err
	}
	for _, row := range h.cfg.Store.OfPod(types.UID(podUID)) {
		m := h.cfg.Managers[row.Manager]
		switch {
		case m == nil:
			return nil, fmt.Errorf("device %s of pool %s: there is no device manager %q", row.DeviceName, row.Pool, row.Manager)
		case filed == (len(m.Nodes(row.PreparedDevice)) > 0):
			rows = append(rows, row)
		}
	}
	if h.cfg.Ready != nil { // also without rows: they may be missing
		return rows, h.cfg.Ready(types.UID(podUID))
	}
	return rows, nil
}

// still is rows for a pod that had some before.
func (h *Handover) still(podUID string, filed bool) ([]device.Allocation, error) {
	rows, err := h.rows(podUID, filed)
	if err == nil && len(rows) == 0 {
		err = device.ErrFreed
	}
	return rows, err
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
	own, err := h.cfg.Kernel.NamespaceID(host().Path)
	if err != nil {
		return kernel.Namespace{}, fmt.Errorf("the host's network namespace: %w", err)
	}
	if own == id {
		return kernel.Namespace{}, fmt.Errorf("sandbox %s is in the host's network namespace (hostNetwork): a claimed device cannot be given to it", s.ID)
	}
	return kernel.Namespace{Path: s.Namespace, ID: id}, nil
}

// standing says whether an earlier call finished the hand-over to that sandbox, and gives what the
// pod has. It runs, perhaps: what is there is left alone also when something went missing.
func (h *Handover) standing(s journal.State, ns kernel.Namespace, rows []device.Allocation) (given []Given, stands bool, err error) {
	body, err := bodyOf(s)
	if err != nil || body == nil || body.Namespace != ns {
		return nil, false, nil //nolint:nilerr // undo tells it
	}
	if away, finished := outstanding(s, body); !finished || len(away) == 0 {
		return nil, false, nil
	}
	var faults []error
	for _, row := range rows {
		link, err := h.cfg.Managers[row.Manager].Link(ns, row.PreparedDevice, row.Saved)
		if err != nil {
			faults = append(faults, fmt.Errorf("device %s of pool %s was given to sandbox %s and is not there any more: %w", row.DeviceName, row.Pool, body.SandboxID, err))
			continue
		}
		given = append(given, givenOf(row, link))
	}
	return given, true, errors.Join(faults...)
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

// takeOver gives back what other sandboxes of the pod have: the kubelet runs one at a time.
func (h *Handover) takeOver(ctx context.Context, s Sandbox) error {
	return h.each(func(key journal.Key, _ journal.State, body record.Handover) error {
		if body.PodUID != s.PodUID || string(key) == s.ID {
			return nil
		}
		if s.Yields && h.lives(body.Namespace) {
			return fmt.Errorf("sandbox %s: %w", key, ErrElsewhere)
		}
		if err := h.end(ctx, key, nil); err != nil {
			return fmt.Errorf("take devices back from sandbox %s of the same pod: %w", key, err)
		}
		return nil
	})
}
