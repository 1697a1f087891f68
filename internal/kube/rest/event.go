// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Event is something that happened to a pod (core/v1).
type Event struct {
	Namespace string // the pod's
	Name      string // the event's; one that exists already is told already
	PodName   string
	PodUID    string
	Type      string // Normal, Warning
	Reason    string // one word, for machines
	Message   string // for people; the server takes 1 KiB
	Component string
	Host      string // node
	Time      time.Time
}

// CreateEvent tells an event, with one try.
func (c *Client) CreateEvent(ctx context.Context, e Event) error {
	r := call{
		verb: "create", object: "event of pod " + e.Namespace + "/" + e.PodName, method: http.MethodPost,
		path: []string{"api", "v1", "namespaces", e.Namespace, "events"}, contentType: "application/json", once: true,
	}
	at := e.Time.UTC().Format(time.RFC3339)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"namespace": e.Namespace, "name": e.Name},
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": e.Namespace, "name": e.PodName, "uid": e.PodUID},
		"type":           e.Type, "reason": e.Reason, "message": e.Message,
		"source":         map[string]any{"component": e.Component, "host": e.Host},
		"firstTimestamp": at, "lastTimestamp": at, "count": 1,
	})
	if err != nil {
		return c.failed(r, nil, fmt.Errorf("encode event: %w", err))
	}
	r.body = body
	return c.do(ctx, r, nil)
}
