// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/plan"
)

// TestSeldomBodies: they go and come as any other, and what is raw in them keeps its characters.
func TestSeldomBodies(t *testing.T) {
	const raw = `{"a":"<&>"}`
	want := Request{
		Version:  1,
		Handover: &HandoverRequest{Conf: []byte("{}"), Sandbox: plan.Sandbox{Args: "a<b"}, IfNames: []string{"x<y"}},
		Report:   &ReportRequest{PodUID: "<", Attachments: []ReportAttachment{{Network: "a&b", DeviceInfo: json.RawMessage(raw)}}},
	}
	var frame bytes.Buffer
	if err := Write(&frame, want); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(frame.String(), raw) || strings.Contains(frame.String(), `\u00`) {
		t.Errorf("written as %s", &frame)
	}
	var got Request
	if err := Read(&frame, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
