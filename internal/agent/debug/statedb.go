// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// StateDBAnswer answers /v1/statedb.
type StateDBAnswer struct {
	Head
	// Tables are the lists of rows, by the name of their table.
	Tables json.RawMessage `json:"tables"`
}

// ServeTables has the server answer /v1/statedb with what dump writes: a JSON object of tables.
// It is called before Run; without it the answer is that the network driver is off.
func (s *Server) ServeTables(dump func(io.Writer) error) { s.dump = dump }

func (s *Server) statedb(w http.ResponseWriter, _ *http.Request) {
	if s.dump == nil {
		s.refuse(w, http.StatusNotFound, "the network driver is off on this agent, so it has no tables")
		return
	}
	var tables bytes.Buffer
	if err := s.dump(&tables); err != nil {
		s.refuse(w, http.StatusInternalServerError, fmt.Sprintf("dump tables: %v", err))
		return
	}
	s.answer(w, StateDBAnswer{Head: s.head(s.view.Node().Name), Tables: tables.Bytes()})
}

// StateDB asks for the tables of the network driver.
func (c *Client) StateDB(ctx context.Context) (*StateDBAnswer, error) {
	var a StateDBAnswer
	return &a, c.get(ctx, "/v1/statedb", nil, &a, &a.Head)
}
