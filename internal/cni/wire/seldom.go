// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
)

// encoding/json prepares for every type that a message may hold before it reads or writes the first
// one. For the bodies that most calls lack that took longer than all of the message that they
// have, so those have methods: what is behind them is prepared for by who comes to it.

// MarshalJSON gives the usual form.
func (r *HandoverRequest) MarshalJSON() ([]byte, error) {
	type usual HandoverRequest
	return marshal((*usual)(r))
}

// UnmarshalJSON reads the usual form.
func (r *HandoverRequest) UnmarshalJSON(b []byte) error {
	type usual HandoverRequest
	return json.Unmarshal(b, (*usual)(r))
}

// MarshalJSON gives the usual form.
func (r *ReportRequest) MarshalJSON() ([]byte, error) {
	type usual ReportRequest
	return marshal((*usual)(r))
}

// UnmarshalJSON reads the usual form.
func (r *ReportRequest) UnmarshalJSON(b []byte) error {
	type usual ReportRequest
	return json.Unmarshal(b, (*usual)(r))
}

// marshal leaves raw values as they were written.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	err := encode(&buf, v)
	return buf.Bytes(), err
}

func encode(to *bytes.Buffer, v any) error {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
