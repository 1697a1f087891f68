// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/lanes"
)

// check runs the CHECK of every attachment of the sandbox and reads the default
// routes back. All that is wrong is told, not the first.
func (h *hands) check(ctx context.Context) ([]byte, error) {
	if err := h.configure(); err != nil {
		return nil, err
	}
	ctx = brief.WithTimeout(ctx, checkTimeout)
	if err := h.open(); err != nil {
		return nil, err
	}
	rec, _, err := h.find(ctx, h.key())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, h.unknownContainer()
	}
	if err != nil {
		return nil, err
	}
	defer rec.Close() //nolint:errcheck // nothing was written
	if len(rec.State().Intents) == 0 {
		return nil, h.unknownContainer()
	}
	s, err := decode(rec, h.boot)
	if err != nil {
		return nil, err
	}
	if !s.Finished {
		return nil, h.unknownContainer()
	}
	lane, err := h.lane(ctx, false)
	if err != nil {
		return nil, err
	}
	defer lanes.Release(lane)
	t := &task{hands: h, rec: rec, lane: lane}
	return nil, errors.Join(t.checkDelegates(ctx, s), h.checkRoutes(s))
}

func (h *hands) unknownContainer() error {
	return fault.New(fault.UnknownContainer, "sandbox "+string(h.key()), "", "no finished ADD of it is recorded")
}

func (t *task) checkDelegates(ctx context.Context, s *record.Sandbox) error {
	var faults []error
	for i, a := range s.Attachments {
		if !a.Present(s.Body.Plugged) {
			continue
		}
		call := t.call(i, a.Attachment, a.Result)
		call.Path, call.Started = searchPath(s.Body.Sandbox.Path, t.path()), nil
		if err := t.runner.Check(ctx, call); err != nil {
			faults = append(faults, fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err))
		}
	}
	return errors.Join(faults...)
}

// checkRoutes reads back the default routes that were asked for.
func (h *hands) checkRoutes(s *record.Sandbox) error {
	var faults []error
	for i, a := range s.Attachments {
		if !a.Present(s.Body.Plugged) {
			continue
		}
		for _, gw := range a.Gateways {
			if superseded(s, i, kernel.FamilyOf(gw)) {
				continue
			}
			if err := h.checkRoute(a.Attachment, gw); err != nil {
				faults = append(faults, &fault.Fault{
					Code: fault.Routes, Object: "network " + a.Network,
					Field: "default-route " + gw.String(), Text: err.Error(), Err: err,
				})
			}
		}
	}
	return errors.Join(faults...)
}

func (h *hands) checkRoute(a plan.Attachment, gw netip.Addr) error {
	ns, err := kernel.OpenNetns(h.req.sandbox.Netns)
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // sockets of a process about to end
	return ns.VerifyDefaultRoute(a.IfName, gw)
}

// status tells whether the node can attach pods. The runtime turns the whole node
// NotReady on an error, so only what stops every pod is one: the readiness file, the
// primary conf's file, and the cluster network itself. The agent being away is none.
func (h *hands) status(ctx context.Context) ([]byte, error) {
	if err := h.configure(); err != nil {
		return nil, err
	}
	ctx = brief.WithTimeout(ctx, statusTimeout)
	if file := h.conf.ReadinessIndicatorFile; file != "" {
		if _, err := os.Stat(file); err != nil {
			return nil, fault.New(fault.Unavailable, "readinessindicatorfile", "", "%s: the default network is not ready", fault.Quote(file))
		}
	}
	if err := h.checkPrimary(); err != nil {
		return nil, err
	}
	p, err := h.ownNetworks(ctx)
	if err != nil {
		return nil, &fault.Fault{Code: fault.Unavailable, Object: "cluster network", Text: err.Error(), Err: err}
	}
	if p == nil || len(p.Attachments) == 0 {
		return nil, nil
	}
	primary := p.Attachments[0]
	err = h.runner.Status(ctx, chain.Call{
		Network: primary.Conf, RuntimeConfig: primary.RuntimeConfig, Path: h.path(),
	})
	if err != nil && ctx.Err() != nil {
		return nil, fault.New(fault.Unavailable, "network "+primary.Network, "", "its STATUS did not answer within %s", statusTimeout)
	}
	if bad, ok := errors.AsType[*chain.Error](err); ok && bad.Code >= uint(fault.Internal) {
		return nil, &fault.Fault{Code: fault.Unavailable, Object: "network " + primary.Network, Text: bad.Error()}
	}
	return nil, err
}
