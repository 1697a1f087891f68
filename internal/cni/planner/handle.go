// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/wire"
)

// Handle answers one request of any verb; open gives the source that a conf names, the
// same one for every request of one ADD. The hands' deadline is kept: a plan has half of
// what is left of it, since the delegates are still to run, a report nearly all. An
// answer that says what is wrong is worth more than none in time.
func Handle(ctx context.Context, req wire.Request, open func(*netconf.Conf) (Source, error)) wire.Response {
	left := time.Duration(req.TimeoutMS) * time.Millisecond
	if left <= 0 {
		left = netconf.DefaultTimeout
	}
	if req.Verb == wire.VerbReport {
		ctx, cancel := context.WithTimeout(ctx, left-left/20)
		defer cancel()
		return Report(ctx, *req.Report, open)
	}
	ctx, cancel := context.WithTimeout(ctx, left/2)
	defer cancel()
	return Answer(ctx, *req.Plan, open)
}
