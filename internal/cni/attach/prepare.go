// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"encoding/json"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/journal"
)

// What an ADD reads or writes the first time, in a process as short as this one, takes several
// times what it takes after: encoding/json looks at each type, and the code's pages come in. Where another
// process works for it and the time is lost anyway, an ADD does that beforehand, on nothing.
// On a machine with one processor that is neither won nor lost.

// prepareRecord is done while the planner works: its answer, and what is written of it.
func prepareRecord() {
	_ = json.Unmarshal([]byte("{}"), new(wire.Response))
	for _, v := range []any{journal.Intent{}, record.Body{}, journal.Phase{}} {
		_, _ = json.Marshal(v)
	}
}

// prepareResult is done while the first plugins work: a result, and what is reported of it.
func (h *hands) prepareResult(version string) {
	if r, err := results.Parse(results.Empty(version), version); err == nil {
		_, _ = r.Bytes()
	}
	if h.reports() {
		_, _ = json.Marshal(new(wire.ReportRequest))
	}
}
