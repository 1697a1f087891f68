// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/weftnet/weft/internal/agent/debug"
)

// tables is an agent that gives its tables; *debug.Client is one.
type tables interface {
	StateDB(ctx context.Context) (*debug.StateDBAnswer, error)
}

// StateDB asks an agent for the tables of the network driver, and writes them as one JSON
// object: the name of each table, and the list of its rows.
func StateDB(ctx context.Context, a tables, w io.Writer) error {
	answer, err := a.StateDB(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, answer.Tables, "", "  "); err != nil {
		return fmt.Errorf("read the agent's tables: %w", err)
	}
	b.WriteByte('\n')
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
