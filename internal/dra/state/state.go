// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
)

// Store holds the tables. Its methods may be called from several goroutines.
type Store struct {
	tables
	log *slog.Logger

	// write is held by whoever changes a table; what is below it is read under it alone.
	write sync.Mutex
	// found is what each manager reported last, as it reported it.
	found   map[device.ManagerType]map[string]device.Device
	waiting map[string]func(statedb.WriteTxn) // initializers that are not done

	initialized chan struct{}

	notify  sync.Mutex
	changed chan struct{}
}

// restore is the initializer of the allocations.
const restore = "restore"

func initializer(t device.ManagerType) string { return "device-manager-" + string(t) }

// New makes empty tables. They are initialized once each of the managers has reported its devices
// and Restored was called.
func New(log *slog.Logger, managers ...device.ManagerType) (*Store, error) {
	t, err := newTables()
	if err != nil {
		return nil, err
	}
	s := &Store{
		tables: t, log: log,
		found:       map[device.ManagerType]map[string]device.Device{},
		waiting:     map[string]func(statedb.WriteTxn){},
		initialized: make(chan struct{}), changed: make(chan struct{}),
	}
	txn := s.db.WriteTxn(s.devices, s.allocations)
	s.waiting[restore] = s.allocations.RegisterInitializer(txn, restore)
	for _, m := range managers {
		if name := initializer(m); s.waiting[name] == nil {
			s.waiting[name] = s.devices.RegisterInitializer(txn, name)
		}
	}
	txn.Commit()
	return s, nil
}

// OnDevices gives the function that a manager of type t reports its whole inventory to: rows are
// inserted, replaced where they differ, and removed where they are missing.
func (s *Store) OnDevices(t device.ManagerType) func([]device.Device) {
	return func(devices []device.Device) {
		found := make(map[string]device.Device, len(devices))
		for _, d := range devices {
			if d == nil || d.Manager() != t {
				s.log.Error("device that is not its manager's is left out", "manager", t)
				continue
			}
			if _, twice := found[d.Name()]; twice {
				s.log.Error("device was reported twice, the first is taken", "manager", t, "device", d.Name())
				continue
			}
			found[d.Name()] = d
		}
		s.update(func(txn statedb.WriteTxn) bool {
			before := s.found[t]
			s.found[t] = found
			changed := false
			for name := range before {
				if _, still := found[name]; !still {
					changed = s.refresh(txn, name) || changed
				}
			}
			for name := range found {
				changed = s.refresh(txn, name) || changed
			}
			return s.done(txn, initializer(t)) || changed
		})
	}
}

// Restored says that the allocations of before this start are in their table.
func (s *Store) Restored() {
	s.update(func(txn statedb.WriteTxn) bool { return s.done(txn, restore) })
}

// Put inserts an allocation, or replaces the one with its key.
func (s *Store) Put(a device.Allocation) {
	s.update(func(txn statedb.WriteTxn) bool {
		old, _, had := s.allocations.Get(txn, s.byKey.Query(a.Key()))
		if had && reflect.DeepEqual(old, a) {
			return false
		}
		must(s.allocations.Insert(txn, a))
		s.refresh(txn, a.DeviceName)
		return true
	})
}

// Remove removes an allocation; that there is none is fine.
func (s *Store) Remove(key device.Key) {
	s.update(func(txn statedb.WriteTxn) bool {
		old, _, had := s.allocations.Get(txn, s.byKey.Query(key))
		if !had {
			return false
		}
		must(s.allocations.Delete(txn, old))
		s.refresh(txn, key.Name)
		return true
	})
}

// refresh makes the inventory row of a name what it is to be, and says whether it changed.
func (s *Store) refresh(txn statedb.WriteTxn, name string) bool {
	old, _, had := s.devices.Get(txn, s.byName.Query(name))
	row, has := s.row(txn, name)
	switch {
	case has && had && reflect.DeepEqual(old, row), !has && !had:
		return false
	case has:
		must(s.devices.Insert(txn, row))
	default:
		must(s.devices.Delete(txn, old))
	}
	return true
}

// row is the inventory row of a name: what was found of it, and what is known of it because it
// was prepared. Should two managers have a device of one name, the first of them in the alphabet
// has the row.
func (s *Store) row(txn statedb.ReadTxn, name string) (Row, bool) {
	for _, t := range slices.Sorted(maps.Keys(s.found)) {
		dev, ok := s.found[t][name]
		if !ok {
			continue
		}
		for a := range s.allocations.List(txn, s.byDevice.Query(name)) {
			if a.Manager == t && a.PreparedDevice != nil {
				dev = dev.Merge(a.PreparedDevice)
			}
		}
		return Row{Name: name, Manager: t, Dev: dev}, true
	}
	return Row{}, false
}

// done ends an initializer, and says whether it was waited for.
func (s *Store) done(txn statedb.WriteTxn, name string) bool {
	mark, ok := s.waiting[name]
	if !ok {
		return false
	}
	mark(txn)
	delete(s.waiting, name)
	return true
}

// update changes the tables in one transaction. change says whether there is anything to tell;
// when not, nothing is kept of what it did to the tables.
func (s *Store) update(change func(statedb.WriteTxn) bool) {
	s.write.Lock()
	defer s.write.Unlock()
	txn := s.db.WriteTxn(s.devices, s.allocations)
	defer txn.Abort() // what panics leaves the tables as they were; after Commit it does nothing
	complete := len(s.waiting) == 0
	if !change(txn) {
		return
	}
	txn.Commit()
	if !complete && len(s.waiting) == 0 {
		close(s.initialized)
	}
	s.notify.Lock()
	defer s.notify.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// must takes the results of a table's write, which fails only when its table was not locked for
// the transaction.
func must[T any](_ T, _ bool, err error) {
	if err != nil {
		panic(fmt.Sprintf("write of a locked table: %v", err))
	}
}

// Changed gives a channel that is closed at the next change of either table. Get it first, then
// read: no change is missed.
func (s *Store) Changed() <-chan struct{} {
	s.notify.Lock()
	defer s.notify.Unlock()
	return s.changed
}

// Initialized gives a channel that is closed once both tables are initialized.
func (s *Store) Initialized() <-chan struct{} { return s.initialized }

// Pending names what the tables wait for, sorted.
func (s *Store) Pending() []string {
	s.write.Lock()
	defer s.write.Unlock()
	return slices.Sorted(maps.Keys(s.waiting))
}

// Device gives a device of the inventory.
func (s *Store) Device(name string) (device.Device, bool) {
	row, _, ok := s.devices.Get(s.db.ReadTxn(), s.byName.Query(name))
	return row.Dev, ok
}

// Allocation gives the allocation with a key.
func (s *Store) Allocation(key device.Key) (device.Allocation, bool) {
	a, _, ok := s.allocations.Get(s.db.ReadTxn(), s.byKey.Query(key))
	return a, ok
}

// Devices gives the inventory, by name.
func (s *Store) Devices() []Row { return rows(s.devices.All(s.db.ReadTxn())) }

// Allocations gives all allocations, in the order of their keys.
func (s *Store) Allocations() []device.Allocation { return rows(s.allocations.All(s.db.ReadTxn())) }

// Snapshot gives both tables as they were at one moment.
func (s *Store) Snapshot() ([]Row, []device.Allocation) {
	txn := s.db.ReadTxn()
	return rows(s.devices.All(txn)), rows(s.allocations.All(txn))
}

// OfClaim gives the allocations of a claim, in the order of their keys, as OfPod and OfDevice do.
func (s *Store) OfClaim(uid types.UID) []device.Allocation {
	return rows(s.allocations.List(s.db.ReadTxn(), s.byClaim.Query(uid)))
}

// OfPod gives the allocations of a pod.
func (s *Store) OfPod(uid types.UID) []device.Allocation {
	return rows(s.allocations.List(s.db.ReadTxn(), s.byPod.Query(uid)))
}

// OfDevice gives the allocations of a device, which are several when it is shared.
func (s *Store) OfDevice(name string) []device.Allocation {
	return rows(s.allocations.List(s.db.ReadTxn(), s.byDevice.Query(name)))
}

func rows[T any](all iter.Seq2[T, statedb.Revision]) []T {
	return statedb.Collect(all)
}

// Dump writes both tables as a JSON object: the name of a table, and the list of its rows.
func (s *Store) Dump(w io.Writer) error {
	if err := s.db.ReadTxn().WriteJSON(w, DevicesTable, AllocationsTable); err != nil {
		return fmt.Errorf("write tables: %w", err)
	}
	return nil
}
