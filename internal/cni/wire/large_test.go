// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// largeResponse has n networks with a configuration of so many bytes, which they share.
func largeResponse(n, size int) Response {
	conf := bytes.Repeat([]byte("x"), size)
	p := &plan.Plan{PodName: `"attachments":[]`, Warnings: []fault.Warning{{Text: `a "<b>" "attachments":[]`}}}
	for i := range n {
		p.Attachments = append(p.Attachments, plan.Attachment{
			Network: fmt.Sprint("net", i), Args: "K=<&>", RuntimeConfig: map[string]json.RawMessage{"a": json.RawMessage(`{"attachments":[]}`)},
			Conf: netconf.Network{Name: "n", Plugins: []netconf.Plugin{{Type: "pb", Conf: conf}}},
		})
	}
	return Response{Version: 1, RequestID: "r", Plan: p, Report: true}
}

// TestLargeResponse: what is written in parts reads as what is written at once, is one call of
// Write, and is in memory about once.
func TestLargeResponse(t *testing.T) {
	for _, size := range []int{1 << 10, 1 << 20} {
		res := largeResponse(4, size)
		var buf, whole bytes.Buffer
		calls := 0
		if err := writeResponse(writer(func(p []byte) (int, error) { calls++; return buf.Write(p) }), res); err != nil || calls != 1 {
			t.Fatal(err, calls)
		}
		if err := Write(&whole, res); err != nil {
			t.Fatal(err)
		}
		var got, want Response
		if err := Read(&buf, &got); err != nil || buf.Len() != 0 {
			t.Fatal(err)
		}
		if err := Read(&whole, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) { // cmp takes minutes for a MiB
			t.Errorf("of %d bytes each: they differ", size)
		}
	}
	// The frame was large enough from the beginning: a buffer that grows is there twice.
	_ = writeResponse(writer(func(p []byte) (int, error) {
		if cap(p) > len(p)+len(p)/8 {
			t.Errorf("a frame of %d bytes is in a buffer of %d", len(p), cap(p))
		}
		return len(p), nil
	}), largeResponse(4, 1<<20))
}

// TestWritten: it is told once, whether or not the answer could be written.
func TestWritten(t *testing.T) {
	for name, fails := range map[string]bool{"written": false, "broken": true} {
		told := 0
		out := writer(func(p []byte) (int, error) {
			if told > 0 {
				t.Errorf("%s: told before", name)
			}
			if fails {
				return 0, io.ErrClosedPipe
			}
			return len(p), nil
		})
		in := frames(`{"version":1,"requestID":"r","verb":"plan","plan":{}}`)
		err := Serve(bytes.NewReader([]byte(in)), out, func(Request) Response {
			return Response{Plan: &plan.Plan{}, Written: func() { told++ }}
		})
		if told != 1 || (err != nil) != fails {
			t.Errorf("%s: told %d times, %v", name, told, err)
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
