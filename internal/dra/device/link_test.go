// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// refusing says no to every MAC address but the link's own, and joins what else it is told to.
type refusing struct {
	mac  net.HardwareAddr
	also error
	got  []kernel.LinkState
}

func (r *refusing) Restore(_ kernel.Namespace, _ int, want kernel.LinkState) (kernel.Link, error) {
	r.got = append(r.got, want)
	var mac error
	if want.MAC.String() != r.mac.String() {
		mac = fmt.Errorf("set address: %w", syscall.EADDRNOTAVAIL)
	}
	if err := errors.Join(r.also, mac); err != nil {
		return kernel.Link{}, fmt.Errorf("restore link 7: %w", err)
	}
	return kernel.Link{}, nil
}

func TestRestore(t *testing.T) {
	own, other := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	clash := fmt.Errorf("rename: %w", &kernel.ClashError{Name: "a"})
	for name, c := range map[string]struct {
		mac   net.HardwareAddr
		also  error
		calls int
		fails bool
	}{
		"all of it":             {own, nil, 1, false},
		"a MAC that is refused": {other, nil, 2, false},
		"a name that is taken":  {own, clash, 1, false},
		"both":                  {other, clash, 2, false},
		"more than a clash":     {own, errors.Join(clash, syscall.EIO), 1, true},
		"something else":        {own, syscall.EIO, 1, true},
	} {
		k := &refusing{mac: own, also: c.also}
		err := device.Restore(k, kernel.Link{Index: 7, MAC: own}, kernel.LinkState{Name: "a", MAC: c.mac}, slog.New(slog.DiscardHandler))
		if (err != nil) != c.fails || len(k.got) != c.calls {
			t.Errorf("%s: %v after %d calls", name, err, len(k.got))
		}
	}
}
