// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/dra/kubelet"
)

type deaf struct{ kubeletplugin.DRAPlugin }

func (deaf) HandleError(context.Context, error, string) {}

// Slices that somebody deletes, long after they were published, and that the API server then refuses show
// too, and no more once they are there again. How often the helper tells of it puts nothing off.
func TestDeletedSlicesShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := "networkdriver.cilium.io"
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: name, NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1/fast"},
				Devices: []resourceapi.Device{{Name: "dummy0"}},
			},
		}
		client := fake.NewClientset(slice)
		all := client.ResourceV1().ResourceSlices()
		d := New(Config{Node: "n1", Client: client, Log: slog.New(slog.DiscardHandler)})
		d.registered(name, kubelet.Status{Registered: true})
		shows := func() string {
			d.mu.Lock()
			defer d.mu.Unlock()
			if err := d.problems[slicesAre(name)]; err != nil {
				return err.Error()
			}
			return ""
		}
		a := newAsked(deaf{})
		a.set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1/fast": {Slices: []resourceslice.Slice{{Devices: slice.Spec.Devices}}}}})
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		looking.Go(func() { d.agree(ctx, name, a) })
		defer looking.Wait()
		defer cancel()
		time.Sleep(time.Hour) //nolint:forbidigo // of the bubble's clock
		if text := shows(); text != "" {
			t.Fatalf("all is there, and it says %q", text)
		}
		if err := all.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 8 { // spaced by less than the look after a publication
			a.HandleError(t.Context(), errors.New("admission says no"), "processing ResourceSlice objects")
			time.Sleep(agreeFirst / 4) //nolint:forbidigo // of the bubble's clock
		}
		if text := shows(); !strings.Contains(text, "does not have 1 of 1 devices, as n1/fast/dummy0") || !strings.Contains(text, "admission says no") {
			t.Errorf("it says %q", text)
		}
		if _, err := all.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * agreeLast) //nolint:forbidigo // of the bubble's clock
		if text := shows(); text != "" {
			t.Errorf("it is there again, and it says %q", text)
		}
	})
}
