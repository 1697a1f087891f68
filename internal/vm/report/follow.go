// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
)

const (
	resource = "virtualmachineinstances"
	// absent is the pause between two looks for a resource that is not served.
	absent = 30 * time.Second
	// retry is the pause before following begins anew.
	retry = 5 * time.Second
)

// newClient speaks of VirtualMachineInstances.
func newClient(conn *rest.Config) (rest.Interface, *runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	metav1.AddToGroupVersion(scheme, v1.GroupVersion)
	cfg := rest.CopyConfig(conn)
	cfg.GroupVersion, cfg.APIPath = &v1.GroupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(cfg)
	return client, scheme, err
}

// follow keeps the machines of this node in the store, as long as the resource is served.
func (r *Reporter) follow(ctx context.Context) {
	for ctx.Err() == nil {
		pause := retry
		if served, err := r.served(ctx); err != nil || !served {
			if err != nil {
				r.log(ctx, "virtual machines cannot be listed", err)
			}
			pause = absent
		} else {
			r.run(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause + rand.N(pause)):
		}
	}
}

// run keeps the store current until ctx ends, or the resource is not served any more: then nothing is
// known of any machine.
func (r *Reporter) run(ctx context.Context) {
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	r.informer(gone).RunWithContext(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store == nil {
		return
	}
	keys := r.store.ListKeys()
	r.store = nil
	for _, key := range keys {
		r.queue.Add(key) // which is looked at once this is left
	}
}

// served says whether the API server knows the resource at all.
func (r *Reporter) served(ctx context.Context) (bool, error) {
	const limit = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := r.list(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

func (r *Reporter) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	var all v1.VirtualMachineInstanceList
	o.LabelSelector = r.selector()
	err := r.client.Get().Resource(resource).VersionedParams(&o, r.params).Do(ctx).Into(&all)
	return &all, err
}

// selector is that of KubeVirt for what runs on a node.
func (r *Reporter) selector() string {
	return labels.Set{v1.NodeNameLabel: r.cfg.Node}.String()
}

// informer calls gone when the resource is not served.
func (r *Reporter) informer(gone func()) cache.Controller {
	changed := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			r.queue.Add(key)
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			all, err := r.list(ctx, o)
			if apierrors.IsNotFound(err) {
				gone()
			}
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.Watch = r.selector(), true
			return r.client.Get().Resource(resource).VersionedParams(&o, r.params).Watch(ctx)
		},
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: &v1.VirtualMachineInstance{}, Transform: trim,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed},
	})
	r.mu.Lock()
	r.store = store
	r.mu.Unlock()
	return controller
}

// trim keeps what a merge looks at: a node may have hundreds of machines with large objects.
func trim(obj any) (any, error) {
	vmi, ok := obj.(*v1.VirtualMachineInstance)
	if !ok {
		if _, err := meta.Accessor(obj); err != nil { // a tombstone
			return obj, nil //nolint:nilerr // it is handed on
		}
		return nil, fmt.Errorf("%T is no virtual machine", obj)
	}
	kept := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: vmi.Name, UID: vmi.UID, ResourceVersion: vmi.ResourceVersion,
		},
	}
	kept.Spec.Networks = vmi.Spec.Networks
	kept.Spec.Domain.Devices.Interfaces = vmi.Spec.Domain.Devices.Interfaces
	kept.Status.Interfaces = vmi.Status.Interfaces
	kept.Status.Phase = vmi.Status.Phase
	kept.Status.ActivePods = vmi.Status.ActivePods
	if m := vmi.Status.MigrationState; m != nil {
		kept.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Completed: m.Completed, Failed: m.Failed, StartTimestamp: m.StartTimestamp}
	}
	return kept, nil
}
