// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
)

// written are the slices of a cluster, by pool: how many devices each has. bad says what no pool
// of several slices may be.
func written(t *testing.T, client *fake.Clientset) (sizes map[string][]int, bad string) {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sizes = map[string][]int{}
	generations := map[string]int64{}
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range list.Items {
		pool := s.Spec.Pool
		if g, seen := generations[pool.Name]; seen && g != pool.Generation {
			bad = "generations differ in " + pool.Name
		}
		generations[pool.Name] = pool.Generation
		sizes[pool.Name] = append(sizes[pool.Name], len(s.Spec.Devices))
	}
	for _, s := range list.Items {
		if s.Spec.Pool.ResourceSliceCount != int64(len(sizes[s.Spec.Pool.Name])) {
			bad = "a slice of " + s.Spec.Pool.Name + " counts others"
		}
	}
	return sizes, bad
}

// writes counts the requests that change something.
func writes(client *fake.Clientset) int {
	n := 0
	for _, a := range client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			n++
		}
	}
	return n
}

// TestThroughTheController: what the framework's own controller makes of it in an API. T-11: pools
// of several slices are whole. What did not change is not written.
func TestThroughTheController(t *testing.T) {
	client := kubelettest.API("n1")
	store := newStore(t)
	store.Restored()
	report := store.OnDevices(device.Dummy)
	report(dummies(300))

	var controller *resourceslice.Controller
	handedOn := make(chan struct{}, 10)
	p := New(Options{
		Store: store, Log: slog.New(slog.DiscardHandler),
		Publish: func(ctx context.Context, r resourceslice.DriverResources) error { // as the plugin helper does
			defer func() { handedOn <- struct{}{} }()
			if controller != nil {
				controller.Update(&r)
				return nil
			}
			var err error
			controller, err = resourceslice.StartController(ctx, resourceslice.Options{
				DriverName: driver, KubeClient: client, Resources: &r,
				Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"},
				ErrorHandler: func(_ context.Context, err error, msg string) {
					if ctx.Err() == nil {
						t.Errorf("controller: %s: %v", msg, err)
					}
				},
			})
			return err
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		controller.Stop()
	}()

	expect := func(what string, want map[string][]int) {
		t.Helper()
		<-handedOn
		deadline := time.NewTimer(30 * time.Second)
		defer deadline.Stop()
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			got, bad := written(t, client)
			if bad == "" && maps.EqualFunc(want, got, slices.Equal) {
				return
			}
			select {
			case <-look.C:
			case <-deadline.C:
				t.Fatalf("%s: %s; slices (-want +got):\n%s", what, bad, cmp.Diff(want, got))
			}
		}
	}
	p.Set(Config{Driver: driver, Node: "n1", Pools: everything("fast")})
	expect("T-11", map[string][]int{"n1/fast": {128, 128, 44}})

	before := writes(client)
	report(dummies(300))
	p.Set(Config{Driver: driver, Node: "n1", Pools: everything("fast")})
	row := device.Allocation{DeviceName: "dummy7", Manager: device.Dummy, Pool: "fast", PreparedDevice: dummies(8)[7]}
	store.Put(row)
	store.Remove(row.Key())
	report(dummies(299)) // the one thing that changes: the last device of some slice is gone
	expect("one less", map[string][]int{"n1/fast": {128, 128, 43}})
	if n := writes(client) - before; n > 3 {
		t.Errorf("%d writes for one device less in three slices", n)
	}

	p.Set(Config{Driver: driver, Node: "n1", Pools: everything("other")})
	expect("another pool", map[string][]int{"n1/other": {128, 128, 43}})
	report(nil)
	expect("an empty pool", map[string][]int{"n1/other": {0}})
	p.Set(Config{Driver: driver, Node: "n1"})
	expect("withdrawn", map[string][]int{})
}

// T-13: the allocator tells devices apart by driver, pool and name. Two nodes with the same
// configuration and PCI addresses share none of those.
func TestTwoNodesShareNoDevice(t *testing.T) {
	type id struct{ pool, device string }
	seen := map[id]string{}
	for _, node := range []string{"n1", "n2", "n1.example.com"} {
		r, problems := Build(Config{Driver: driver, Node: node, Pools: everything("sriov-pool")}, many(8), nil)
		if len(problems) > 0 {
			t.Fatalf("problems: %q", problemTexts(problems))
		}
		for pool, p := range r.Pools {
			for _, s := range p.Slices {
				for _, d := range s.Devices {
					if other, twice := seen[id{pool, d.Name}]; twice {
						t.Errorf("%s/%s is of %s and %s", pool, d.Name, other, node)
					}
					seen[id{pool, d.Name}] = node
					if got := *d.Attributes[AttributePool].StringValue; got != "sriov-pool" {
						t.Errorf("attribute pool is %q, want what the user wrote", got)
					}
				}
			}
		}
	}
	if len(seen) != 24 {
		t.Errorf("%d devices, want 24", len(seen))
	}
}
