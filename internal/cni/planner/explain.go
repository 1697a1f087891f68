// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"maps"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Explain plans as Answer does, for people: in is what is known from the start (Conf,
// Sandbox, Pod), src has the objects and file the host's files. The Output has its
// Decisions also beside an error.
func Explain(ctx context.Context, in plan.Input, src Source, file func(plan.Need) plan.File) (plan.Output, error) {
	in.Explain = true
	in.NADs, in.Files = map[plan.NADRef]plan.NAD{}, maps.Clone(in.Files)
	if in.Files == nil {
		in.Files = map[plan.Need]plan.File{}
	}
	a := &answer{src: src, in: in}
	defer a.free()
	for {
		out, err := plan.Make(a.in)
		switch {
		case len(out.NeedNADs) > 0 || out.NeedDevices:
			if missed := a.resolve(ctx, out); missed != nil {
				return plan.Output{}, together(err, missed)
			}
		case len(out.NeedFiles) > 0:
		case err != nil || out.Plan != nil:
			return out, err
		default:
			return plan.Output{}, fault.New(fault.Internal, "plan", "", "is neither made nor lacks anything")
		}
		for _, need := range out.NeedFiles {
			if _, asked := a.in.Files[need]; asked {
				return plan.Output{}, fault.New(fault.Internal, "plan", "", "asks for %s again", need)
			}
			a.in.Files[need] = file(need)
		}
	}
}
