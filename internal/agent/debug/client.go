// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// ErrAway says that no agent listens: the socket is not there, or nobody is behind it.
var ErrAway = errors.New("no agent listens there")

// Client asks one agent.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client of the socket path. Nothing is sent yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	// The socket is on this machine: no proxy, and no redirect that would lead elsewhere.
	return &Client{path: path, http: &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) String() string { return "agent at " + c.path }

// Node asks for the state of the agent. Errors of all methods wrap ErrAway, or
// fs.ErrPermission, where that is the cause.
func (c *Client) Node(ctx context.Context) (*NodeAnswer, error) {
	var a NodeAnswer
	return &a, c.get(ctx, "/v1/node", nil, &a, &a.Head)
}

// Pods asks for the pods of a namespace ("" = all) and of a name ("" = any).
func (c *Client) Pods(ctx context.Context, namespace, name string) (*PodsAnswer, error) {
	var a PodsAnswer
	return &a, c.get(ctx, "/v1/pods", url.Values{"namespace": {namespace}, "name": {name}}, &a, &a.Head)
}

// Networks asks for the networks of a namespace ("" = all).
func (c *Client) Networks(ctx context.Context, namespace string) (*NetworksAnswer, error) {
	var a NetworksAnswer
	return &a, c.get(ctx, "/v1/networks", url.Values{"namespace": {namespace}}, &a, &a.Head)
}

// Explain asks for the plan of a pod. The error wraps ErrNoPod when the agent's node does
// not have it.
func (c *Client) Explain(ctx context.Context, namespace, name string) (*PlanAnswer, error) {
	body, err := json.Marshal(explainRequest{Namespace: namespace, Name: name})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c, err)
	}
	var a PlanAnswer
	return &a, c.do(ctx, http.MethodPost, "/v1/explain", body, &a, &a.Head)
}

func (c *Client) get(ctx context.Context, path string, query url.Values, out any, head *Head) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, nil, out, head)
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, out any, head *Head) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://weft-agent"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask %s: %w", c, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if cause, ok := errors.AsType[*url.Error](err); ok {
			err = cause.Err // the rest is a made-up URL
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("ask %s: %w: %w", c, ErrAway, err)
		}
		return fmt.Errorf("ask %s: %w", c, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("ask %s: read answer: %w", c, err)
	case len(b) > MaxAnswer:
		return fmt.Errorf("ask %s: answer is larger than %d bytes", c, MaxAnswer)
	}
	if err := parseAnswer(res.StatusCode, b, out, head); err != nil {
		return fmt.Errorf("ask %s: %w", c, err)
	}
	return nil
}

// parseAnswer reads the body b of an answer of any code into out, whose head is head.
func parseAnswer(code int, b []byte, out any, head *Head) error {
	if code != http.StatusOK {
		var f failure
		if json.Unmarshal(b, &f) != nil || f.Error == "" {
			return fmt.Errorf("answer %d %s of something that is no agent", code, http.StatusText(code))
		}
		switch {
		case f.NoPod:
			return ErrNoPod
		case code == http.StatusForbidden:
			return fmt.Errorf("%w: %.512q", fs.ErrPermission, f.Error)
		}
		return fmt.Errorf("answer %d: %.512q", code, f.Error)
	}
	// The version comes first: the rest of another one may not even parse.
	var v struct{ Version int }
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("answer is no JSON of an agent: %w", err)
	}
	if v.Version != Version {
		return fmt.Errorf("agent speaks version %d, this program version %d: use the weft of the agent's release", v.Version, Version)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("answer is no JSON of an agent: %w", err)
	}
	if head.Now.IsZero() {
		return errors.New("answer of something that is no agent: it has no time")
	}
	return nil
}
