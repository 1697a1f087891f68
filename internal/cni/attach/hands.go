// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/lanes"
)

// Deadlines of the verbs (architecture 4.1); ADD's is the conf's timeout.
const (
	delTimeout    = 45 * time.Second
	checkTimeout  = 45 * time.Second
	gcTimeout     = 45 * time.Second
	statusTimeout = 1 * time.Second
	// undoTimeout is what undoing a failed ADD may take beyond the ADD's own deadline.
	undoTimeout = 45 * time.Second
	// undoShare is what undoing one attachment, or GC of one network, may take at least,
	// however many there are.
	undoShare = 5 * time.Second
	// busyProbe is how long a locked record is waited for before its holder is looked at.
	busyProbe = 100 * time.Millisecond
	// idleProbe is how long GC and the sweep wait for a record that others may be using.
	idleProbe = 3 * busyProbe
	// endTimeout is what ending an abandoned delegate may take.
	endTimeout = 5 * time.Second
)

// hands is one call of weft-cni.
type hands struct {
	proc Process
	req  request
	conf *netconf.Conf
	log  *logger

	store  *journal.Store
	sweep  *journal.Sweep
	runner *chain.Runner
	boot   string
	client *wire.Client  // the planner of this ADD, nil when there is none
	waited time.Duration // for the lane; told by the next phase that is written
}

func newHands(p Process, req request) *hands {
	return &hands{
		proc:   p,
		req:    req,
		log:    newLogger(p.Stderr, req),
		runner: chain.New(p.Stderr, p.Environ),
		boot:   journal.BootID(),
	}
}

func (h *hands) close() {
	if h.client != nil {
		_ = h.client.Close() // its answers are there, or their errors are
	}
	h.log.close()
}

// configure reads the conf. Its warnings are told, its faults returned.
func (h *hands) configure() error {
	conf, warnings, err := netconf.Parse(h.req.stdin)
	if conf != nil {
		h.conf = conf
		h.log.configure(conf.Log)
	}
	h.log.warnings(warnings)
	return err
}

// open opens the journal, making its directories.
func (h *hands) open() error {
	store, err := journal.Open(filepath.Join(h.conf.StateDir, "attachments"), record.Kind)
	if err != nil {
		return &fault.Fault{Code: fault.State, Object: "stateDir " + h.conf.StateDir, Text: err.Error(), Err: err}
	}
	h.store = store
	h.sweep = journal.OpenSweep(h.conf.StateDir)
	return nil
}

// key is the journal key of this call.
func (h *hands) key() journal.Key { return recordKey(h.req.sandbox.ContainerID, h.req.sandbox.IfName) }

func recordKey(containerID, ifName string) journal.Key {
	return journal.Key(containerID + "-" + ifName)
}

// path is where delegates are looked up: binDir first, the runtime's CNI_PATH next.
func (h *hands) path() string { return searchPath(h.conf.BinDir, h.req.sandbox.Path) }

// searchPath joins lists of directories, each directory once.
func searchPath(lists ...string) string {
	var dirs []string
	for _, list := range lists {
		for _, dir := range filepath.SplitList(list) {
			if dir != "" && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// acquire locks the record of a key, an empty one when there is none.
func (h *hands) acquire(ctx context.Context, key journal.Key) (rec *journal.Record, corrupt bool, err error) {
	return h.lock(ctx, key, h.store.Acquire)
}

// find locks the record of a key; fs.ErrNotExist when there is none.
func (h *hands) find(ctx context.Context, key journal.Key) (rec *journal.Record, corrupt bool, err error) {
	return h.lock(ctx, key, func(ctx context.Context, key journal.Key) (*journal.Record, error) {
		rec, err := h.store.TryAcquire(key)
		if errors.Is(err, journal.ErrBusy) {
			_ = brief.Sleep(ctx, busyProbe)
		}
		return rec, err
	})
}

// lock takes a record's lock. When a delegate whose weft-cni was killed holds it, that
// delegate is ended first. A corrupt record is told and was moved to quarantine: what
// its good lines plan becomes the new record, all of it attempted; with no good lines
// the record is empty and corrupt is true.
func (h *hands) lock(ctx context.Context, key journal.Key,
	take func(context.Context, journal.Key) (*journal.Record, error),
) (rec *journal.Record, corrupt bool, err error) {
	for late := false; ; {
		rec, err = take(brief.WithTimeout(ctx, busyProbe), key)
		if bad, ok := errors.AsType[*journal.CorruptError](err); ok && rec != nil {
			h.log.warn(bad.Error())
			corrupt, err = h.restore(rec, bad.State)
			return rec, corrupt, err
		}
		if !errors.Is(err, journal.ErrBusy) {
			return rec, false, stateFault(key, err)
		}
		if late {
			return nil, false, &fault.Fault{
				Code: fault.TryLater, Object: "sandbox " + string(key),
				Text: "another call on it is still running", Err: journal.ErrBusy,
			}
		}
		// The holder is looked at, and the lock tried once more, also when the time is over:
		// on a machine under load one probe may have taken all of it.
		late = ctx.Err() != nil
		if err := h.endAbandoned(ctx, key); err != nil {
			return nil, false, err
		}
	}
}

// unknownBoot is the boot of a record that was restored.
const unknownBoot = "unknown"

// restore begins a record anew with what is known of a corrupt one.
func (h *hands) restore(rec *journal.Record, st journal.State) (corrupt bool, err error) {
	if len(st.Intents) == 0 {
		return true, nil
	}
	in := st.Intents[len(st.Intents)-1]
	in.Boot = unknownBoot // no boot of ours, so that everything planned counts as attempted
	if err := rec.Begin(in); err != nil {
		return false, errors.Join(stateFault(rec.Key(), err), rec.Close())
	}
	for _, p := range st.Phases {
		if err := rec.Append(p); err != nil {
			return false, errors.Join(stateFault(rec.Key(), err), rec.Close())
		}
	}
	return false, nil
}

func stateFault(key journal.Key, err error) error {
	if err == nil {
		return nil
	}
	return &fault.Fault{Code: fault.State, Object: "record " + string(key), Text: err.Error(), Err: err}
}

// endAbandoned ends what holds a record's lock when none of it is Weft itself.
func (h *hands) endAbandoned(ctx context.Context, key journal.Key) error {
	file, st, err := h.store.Peek(key)
	if file == nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return stateFault(key, err)
	}
	defer file.Close() //nolint:errcheck // opened for reading
	holders, err := journal.Holders(file)
	if err != nil {
		return stateFault(key, err)
	}
	if len(holders) == 0 || slices.ContainsFunc(holders, func(p journal.Holder) bool { return !p.Inherited && !h.yields(p) }) {
		return nil
	}
	h.log.warn(fmt.Sprintf("sandbox %s: ending %d process(es) that a killed weft-cni left behind, or that work in the background", key, len(holders)))
	var group chain.Group
	if p, ok := st.LastStarted(); ok {
		group = chain.Group{ID: p.Group, Start: p.Start}
	}
	ctx = brief.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	return stateFault(key, chain.EndGroup(ctx, group, file))
}

// lane waits for the right to run delegates.
func (h *hands) lane(ctx context.Context, urgent bool) (*os.File, error) {
	start := time.Now()
	file, err := h.takeLane(ctx, urgent)
	h.waited += time.Since(start)
	switch {
	case err == nil:
		return file, nil
	case errors.Is(err, lanes.ErrBusy):
		return nil, fault.New(fault.TryLater, "delegateLimit", "", "no lane became free in time: %v", err)
	case urgent:
		// A full disk must not keep a pod from being deleted: then there is no limit.
		h.log.warn("delegateLimit: " + err.Error())
		return brief.OpenFile(os.DevNull, os.O_RDONLY, 0)
	}
	return nil, &fault.Fault{Code: fault.State, Object: "stateDir " + h.conf.StateDir, Text: err.Error(), Err: err}
}

func (h *hands) takeLane(ctx context.Context, urgent bool) (*os.File, error) {
	l, err := lanes.Open(h.conf.StateDir, h.conf.DelegateLimit)
	if err != nil {
		return nil, err
	}
	return l.Take(ctx, urgent)
}
