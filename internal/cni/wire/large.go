// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"github.com/weftnet/weft/internal/cni/plan"
)

const (
	// largePlan is from how many bytes of configurations on an answer is written in parts.
	largePlan = 256 << 10
	// otherBytes is more than what an attachment commonly has beside its configuration.
	otherBytes = 1 << 10
)

// writeResponse is Write of a response. encoding/json makes a value as a whole before it hands
// out any of it: a large plan would be in memory once for that, and again as the frame. It is
// encoded one attachment after the other, into a frame that need not grow.
func writeResponse(w io.Writer, res Response) error {
	if res.Plan == nil || res.Plan.ConfBytes() < largePlan {
		return Write(w, res)
	}
	whole := *res.Plan
	shell := whole
	shell.Attachments = []plan.Attachment{}
	res.Plan = &shell
	outer, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	// Inside a text the quotes would be escaped, and no raw JSON is left in the shell.
	before, after, ok := bytes.Cut(outer, []byte(`"attachments":[]`))
	if !ok {
		return fmt.Errorf("encode message: a plan has no attachments")
	}
	var buf bytes.Buffer
	buf.Grow(HeaderSize + len(outer) + base64.StdEncoding.EncodedLen(whole.ConfBytes()) + others(whole.Attachments))
	buf.Write(make([]byte, HeaderSize))
	buf.Write(before)
	buf.WriteString(`"attachments":[`)
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	for i := range whole.Attachments {
		if i > 0 {
			buf.WriteByte(',')
		}
		if err := enc.Encode(&whole.Attachments[i]); err != nil {
			return fmt.Errorf("encode message: %w", err)
		}
		if buf.Len() > HeaderSize+MaxMessage {
			break // it is refused
		}
	}
	buf.WriteByte(']')
	buf.Write(after)
	return writeFrame(w, buf.Bytes())
}

// others is about what attachments have beside their configurations.
func others(all []plan.Attachment) int {
	size := 0
	for i := range all {
		size += otherBytes + len(all[i].Args) + otherBytes*len(all[i].Conf.Plugins)/4
		for _, value := range all[i].RuntimeConfig {
			size += len(value)
		}
	}
	return size
}
