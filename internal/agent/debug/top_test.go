// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// happening is what an agent says of what happens.
type happening Top

func (h happening) Top() Top { return Top(h) }

func TestTop(t *testing.T) {
	client, _, _ := serve(t, &view{node: Node{Name: "n1"}}, func(s *Server) {
		s.ServeTop(happening{Moving: make([]Moving, MaxMoving+7), Lanes: Lanes{Limit: 4}})
	})
	a, err := client.Top(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.Node != "n1" || a.State.Name != "n1" || a.Now.IsZero() || a.Top.Lanes.Limit != 4 {
		t.Errorf("answer %+v", a)
	}
	if len(a.Top.Moving) != MaxMoving || a.Top.LeftOut != 7 {
		t.Errorf("%d attachments, %d left out", len(a.Top.Moving), a.Top.LeftOut)
	}
	if raw, err := json.Marshal(a); err != nil || bytes.Contains(raw, []byte("null")) {
		t.Errorf("a list is null: %s %v", raw, err)
	}

	client, _, _ = serve(t, &view{}, nil)
	if _, err := client.Top(t.Context()); err == nil || !strings.Contains(err.Error(), "does not keep what happened lately") {
		t.Errorf("of an agent that keeps nothing: %v", err)
	}
}
