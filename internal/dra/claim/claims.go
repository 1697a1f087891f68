// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// How long the parts of a call may take. Together they stay below the 45 s after which the kubelet
// gives up, with room for the claims that it has read before.
const (
	setupTime  = 15 * time.Second // the lock and Setup of all devices
	undoTime   = 10 * time.Second // what is undone when that fails
	statusTime = 10 * time.Second // the write of the status
	freeTime   = 35 * time.Second // an Unprepare
	listTime   = 10 * time.Second // the claims of the node's pods, at start
)

// goneFor is how long a claim must be gone, and its pod, before it is freed without a call of the
// kubelet, which may still be ending the pod's containers.
const goneFor = 2 * time.Minute

// store is where rows are.
type store interface {
	Device(name string) (device.Device, bool)
	Allocations() []device.Allocation
	OfClaim(uid types.UID) []device.Allocation
	rows
}

type rows interface {
	Put(a device.Allocation)
	Remove(key device.Key)
	Restored()
}

// api is what is asked of the cluster. Errors for which apierrors.IsNotFound holds say that
// there is no such claim.
type api interface {
	// Claim reads one claim.
	Claim(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error)
	// WriteStatus has change applied to the claim's status by one write, and by another one with a
	// fresh claim for as long as other writers are quicker. Nothing is written when it says so.
	WriteStatus(ctx context.Context, claim *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) bool) error
	// OfNode reads the claims of the node's pods, and says which pods there are. The error may join
	// what could not be read of single claims; the list is good all the same, unless pods is nil.
	OfNode(ctx context.Context) (claims []*resourceapi.ResourceClaim, pods map[types.UID]*corev1.Pod, err error)
}

type events interface {
	// Event tells users something about an object. It does not wait.
	Event(about corev1.ObjectReference, typ, reason, message string)
}

type returner interface {
	// Return brings every link of a claim home. Of what Ready refuses by then nothing is handed to the
	// claim's pod afterwards.
	Return(ctx context.Context, claimUID, podUID string) error
}

// Outcome is what Observe is told of a call for one claim.
type Outcome struct {
	Call    string // "prepare", "unprepare", "status"
	Devices int
	Took    time.Duration
	Err     error
}

// Config is what Claims are made of.
type Config struct {
	Node     string
	Driver   string // whose claims are looked for at a start; Plugin names others
	StateDir string
	// Managers are all that there are, also those that are not enabled: what they prepared must be
	// freed.
	Managers map[device.ManagerType]device.Manager
	Store    store
	API      api
	Events   events
	Handover returner
	Observe  func(Outcome) // nil is fine
	Boot     string        // ""; this boot
	Log      *slog.Logger
}

// Claims prepares and frees claims. Its methods may be called from several goroutines.
type Claims struct {
	cfg     Config
	records *journal.Store
	book    *book
	local   *retries // needs the node alone
	remote  *retries // needs the API

	mu      sync.Mutex
	adopted map[string]bool // by driver: its claims were looked for, or will be
}

// New opens the records. Nothing else is touched before Recover.
func New(cfg Config) (*Claims, error) {
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	if cfg.Boot == "" {
		cfg.Boot = journal.BootID()
	}
	records, err := journal.Open(filepath.Join(cfg.StateDir, record.Devices), record.Devices)
	if err != nil {
		return nil, fmt.Errorf("open the records of claims: %w", err)
	}
	c := &Claims{
		cfg: cfg, records: records, local: newRetries(), remote: newRetries(), adopted: map[string]bool{},
	}
	records.Salvaging(c.salvaged)
	c.book = newBook(c.podName)
	return c, nil
}

// podName is the name that a device takes in its pod: the one that was asked for, or its host's.
func (c *Claims) podName(kind device.ManagerType, dev device.Device, config v2alpha1.DeviceConfig, saved device.Saved) string {
	m := c.cfg.Managers[kind]
	if _, unread := dev.(unknown); config.PodIfName != "" || m == nil || unread {
		return config.PodIfName
	}
	return m.Home(dev, saved).Name
}

func (c *Claims) String() string { return "claims" }

// Run tries again, until ctx ends, what could not be freed, set up or written.
func (c *Claims) Run(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() { c.local.run(ctx) })
	both.Go(func() { c.remote.run(ctx) })
	both.Wait()
	return nil
}

// Close lets the records go.
func (c *Claims) Close() error { return c.records.Close() }

// Ready says why a device of a pod is not to be handed over although it has a row: after a reboot
// it could not be set up yet, and would be in the wrong network. A record of the pod's that cannot
// be had is a reason, too. It asks nobody and waits for nothing.
func (c *Claims) Ready(pod types.UID) error {
	faults := []error{c.book.unreadOf(pod)}
	seen := map[types.UID]bool{}
	for _, a := range c.cfg.Store.Allocations() {
		if a.PodUID == pod && !seen[a.ClaimUID] {
			seen[a.ClaimUID] = true
			faults = append(faults, c.book.fault(a.ClaimUID))
		}
	}
	return errors.Join(faults...)
}

// acquire takes a claim's record. A corrupt one is in quarantine afterwards, and what could be read of it
// has taken its place where that is enough to undo it.
func (c *Claims) acquire(ctx context.Context, uid types.UID) (*journal.Record, life, error) {
	key := journal.Key(uid)
	if err := key.Validate(); err != nil {
		return nil, life{}, fmt.Errorf("claim UID %q: %w", uid, err)
	}
	rec, err := c.records.Acquire(ctx, key)
	corrupt, damaged := errors.AsType[*journal.CorruptError](err)
	if err != nil && (!damaged || rec == nil) {
		return nil, life{}, fmt.Errorf("record of claim %s: %w", uid, err)
	}
	l, err := lifeOf(rec.State(), c.cfg.Boot)
	if err != nil {
		// Its bytes are what was written, and they make no sense.
		l, corrupt = life{}, &journal.CorruptError{Key: key, Reason: err.Error(), Path: c.records.QuarantineDir()}
		if err := rec.Quarantine(corrupt.Reason); err != nil {
			return nil, life{}, errors.Join(err, rec.Close())
		}
	}
	if corrupt != nil {
		c.tellCorrupt(corrupt, l)
	}
	return rec, l, nil
}

// tellCorrupt tells people of a corrupt record, and of what is known still.
func (c *Claims) tellCorrupt(corrupt *journal.CorruptError, l life) {
	known := l.phase != none
	c.cfg.Log.Error("record of a claim is corrupt", "claim_uid", corrupt.Key, "file", corrupt.Path, "reason", corrupt.Reason, "intent_known", known)
	if known {
		c.event(nameOf(l.body), types.UID(l.body.UID), corev1.EventTypeWarning, "RecordCorrupt",
			"The node's record of this claim was damaged and is in "+corrupt.Path+"; what it said of devices is used still.")
	}
}

// salvaged makes a new record of what was right in a corrupt one. What the lost lines said is not known: all of
// it may have been done, and nothing put back but what is known to be.
func (c *Claims) salvaged(corrupt *journal.CorruptError) (in journal.Intent, phases []journal.Phase, known bool) {
	l, err := lifeOf(corrupt.State, c.cfg.Boot)
	if err != nil || l.phase == none {
		return in, nil, false
	}
	l.body.Kept = l.body.Kept || l.phase == ready
	in = corrupt.State.Intents[len(corrupt.State.Intents)-1]
	if in.Body, err = json.Marshal(l.body); err != nil {
		return in, nil, false
	}
	last := map[int]journal.Phase{}
	for _, p := range corrupt.State.Phases {
		if p.Phase == journal.Done || p.Phase == journal.Undone {
			last[p.Item] = p
		}
	}
	for i := range l.body.Devices {
		p, said := last[i]
		if !said {
			p = journal.Phase{Phase: journal.Attempting, Item: i}
		}
		phases = append(phases, p)
	}
	if l.phase == releasing {
		phases = append(phases, journal.Phase{Phase: journal.Undoing, Item: journal.WholeCall})
	}
	return in, phases, true
}

// event tells users something about a claim, and about its pod when that is known.
func (c *Claims) event(name types.NamespacedName, uid types.UID, typ, reason, message string) {
	c.cfg.Events.Event(corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: name.Namespace, Name: name.Name, UID: uid,
	}, typ, reason, message)
}

// manager gives a device's manager, or one that can do nothing but say so.
func (c *Claims) manager(d record.Device) (device.Manager, error) {
	m, ok := c.cfg.Managers[device.ManagerType(d.Manager)]
	if !ok {
		return nil, fmt.Errorf("device %s: there is no device manager %q", d.Name, d.Manager)
	}
	return m, nil
}

// restore reads what a manager recorded of a device.
func (c *Claims) restore(d record.Device, data []byte) (device.Manager, device.Device, error) {
	m, err := c.manager(d)
	if err != nil {
		return nil, nil, err
	}
	dev, err := m.RestoreDevice(data)
	if err != nil {
		return nil, nil, fmt.Errorf("device %s: %w", d.Name, err)
	}
	return m, dev, nil
}

// host is the namespace of links that no pod has.
func host() kernel.Namespace { return kernel.Namespace{} }
