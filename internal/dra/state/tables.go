// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
)

// Names of the tables.
const (
	DevicesTable     = "networkdriver-dra-devices"
	AllocationsTable = "networkdriver-dra-allocations"
)

// Row is a device of the inventory.
type Row struct {
	Name    string
	Manager device.ManagerType
	Dev     device.Device
}

// tables are the tables of one database, with their indexes.
type tables struct {
	db          *statedb.DB
	devices     statedb.RWTable[Row]
	allocations statedb.RWTable[device.Allocation]

	byName   statedb.Index[Row, string]
	byKey    statedb.Index[device.Allocation, device.Key]
	byClaim  statedb.Index[device.Allocation, types.UID]
	byDevice statedb.Index[device.Allocation, string]
	byPod    statedb.Index[device.Allocation, types.UID]
}

func newTables() (tables, error) {
	t := tables{
		db: statedb.New(),
		byName: statedb.Index[Row, string]{
			Name: "id", Unique: true,
			FromObject: func(r Row) index.KeySet { return index.NewKeySet(index.String(r.Name)) },
			FromKey:    index.String, FromString: index.FromString,
		},
		byKey: statedb.Index[device.Allocation, device.Key]{
			Name: "id", Unique: true,
			FromObject: func(a device.Allocation) index.KeySet { return index.NewKeySet(keyOf(a.Key())) },
			FromKey:    keyOf, FromString: index.FromString,
		},
		byClaim:  uidIndex("claim-uid", func(a device.Allocation) types.UID { return a.ClaimUID }),
		byPod:    uidIndex("pod-uid", func(a device.Allocation) types.UID { return a.PodUID }),
		byDevice: secondary("device-name", func(a device.Allocation) string { return a.DeviceName }),
	}
	var err error
	if t.devices, err = statedb.NewTableAny(t.db, DevicesTable, deviceHeader, deviceCells, t.byName); err != nil {
		return t, fmt.Errorf("make table: %w", err)
	}
	if t.allocations, err = statedb.NewTableAny(t.db, AllocationsTable, allocationHeader, allocationCells,
		t.byKey, t.byClaim, t.byDevice, t.byPod); err != nil {
		return t, fmt.Errorf("make table: %w", err)
	}
	return t, nil
}

// keyOf is Pool/DeviceName, and /ShareID where there is one. Neither device names nor share IDs
// hold a slash.
func keyOf(k device.Key) index.Key {
	text := k.Pool + "/" + k.Name
	if k.ShareID != "" {
		text += "/" + k.ShareID
	}
	return index.String(text)
}

func uidIndex(name string, of func(device.Allocation) types.UID) statedb.Index[device.Allocation, types.UID] {
	return secondary(name, of)
}

func secondary[K ~string](name string, of func(device.Allocation) K) statedb.Index[device.Allocation, K] {
	return statedb.Index[device.Allocation, K]{
		Name:       name,
		FromObject: func(a device.Allocation) index.KeySet { return index.NewKeySet(index.String(string(of(a)))) },
		FromKey:    func(k K) index.Key { return index.String(string(k)) },
		FromString: index.FromString,
	}
}

func deviceHeader() []string     { return []string{"Name", "Manager"} }
func deviceCells(r Row) []string { return []string{r.Name, string(r.Manager)} }

func allocationHeader() []string {
	return []string{"Device", "Manager", "Pool", "PodUID", "ClaimUID", "PodIfName"}
}

func allocationCells(a device.Allocation) []string {
	return []string{a.DeviceName, string(a.Manager), a.Pool, string(a.PodUID), string(a.ClaimUID), a.Config.PodIfName}
}
