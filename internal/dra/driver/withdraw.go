// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withdrawTime is how long an API server that is away may hold up what is registered next. The kubelet
// deletes the slices of a driver that has gone as well, half a minute later.
const withdrawTime = 3 * time.Second

// withdraw deletes the slices of a driver that is registered no more, and will not be: until they are
// gone, its devices are allocated to pods that nobody can prepare them for.
func (d *Driver) withdraw(ctx context.Context, driver string) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTime)
	defer cancel()
	all := d.cfg.Client.ResourceV1().ResourceSlices()
	own, err := d.slicesOf(ctx, driver)
	for _, s := range own {
		gone := all.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if !apierrors.IsNotFound(gone) {
			err = errors.Join(err, gone)
		}
	}
	if err != nil && ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		d.cfg.Log.WarnContext(ctx, "devices of a driver's former name are offered until the kubelet withdraws them", "driver", driver, "error", err)
	}
}
