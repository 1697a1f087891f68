// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// T-38 on a kernel that has dummy links, the module of which makes a dummy0 of its own.
func TestRealLife(t *testing.T) {
	if os.Getenv("WEFT_VM") != "1" {
		t.Skip("needs a kernel with dummy links: make vm-test runs it in one")
	}
	machine, err := kernel.Open("/sys")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	m := New(Config{
		Spec: v2alpha1.DummyConfig{Enabled: true, Count: 3}, Kernel: machine, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	published := make(chan []device.Device, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, func(d []device.Device) { published <- d }) }()
	defer func() {
		cancel()
		<-done
	}()
	var dev device.Device
	select {
	case devices := <-published:
		if len(devices) == 0 {
			t.Fatal("nothing is offered")
		}
		dev = devices[len(devices)-1]
	case <-time.After(time.Minute):
		t.Fatal("nothing was published")
	}
	saved, err := m.Inspect(dev, v2alpha1.DeviceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var first device.Device
	for range 2 {
		prepared, err := m.Setup(t.Context(), dev, v2alpha1.DeviceConfig{}, saved)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && prepared != first {
			t.Errorf("%+v, then %+v", first, prepared)
		}
		first = prepared
	}
	link, err := m.Link(kernel.Namespace{}, dev, saved)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Home(dev, saved), kernel.StateOf(link)); diff != "" {
		t.Error(diff)
	}
	if err := m.Free(t.Context(), dev, v2alpha1.DeviceConfig{}, saved); err != nil {
		t.Fatal(err)
	}
	if link, err := m.Link(kernel.Namespace{}, dev, saved); !errors.Is(err, kernel.ErrNoLink) {
		t.Errorf("still there: %v, %v", link, err)
	}
	// One that somebody else made.
	foreign, err := machine.AddDummy(kernel.Namespace{}, dev.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Remove(kernel.Namespace{}, foreign.Index)
	if _, err := m.Setup(t.Context(), dev, v2alpha1.DeviceConfig{}, saved); err == nil {
		t.Error("set up over a foreign link")
	}
	if err := m.Free(t.Context(), dev, v2alpha1.DeviceConfig{}, saved); err != nil {
		t.Error(err)
	}
	if _, err := machine.LinkByIndex(kernel.Namespace{}, foreign.Index); err != nil {
		t.Errorf("the foreign link: %v", err)
	}
}
