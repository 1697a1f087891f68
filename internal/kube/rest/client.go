// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody    = 32 << 20
	maxMessage = 1 << 10 // of a Status, in bytes
	// Waiting between two tries doubles from firstWait to lastWait, with jitter.
	firstWait = 50 * time.Millisecond
	lastWait  = 2 * time.Second
)

// Client talks to one API server. It may be used by several goroutines.
type Client struct {
	cfg  *Config
	http *http.Client
}

// New makes a client. Nothing is sent yet.
func New(cfg *Config) *Client {
	return &Client{cfg: cfg, http: &http.Client{
		// HTTP/1.1 on connections of our own: no environment proxy, no compression.
		Transport: &http.Transport{
			TLSClientConfig:     cfg.TLS,
			DisableCompression:  true,
			MaxIdleConnsPerHost: 2,
			IdleConnTimeout:     90 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request with its tries.
type call struct {
	verb, object string // for messages
	method       string
	path         []string // segments; checked and escaped
	query        url.Values
	contentType  string
	body         []byte
	once         bool // an answer of "later" is an answer
}

// do sends the request until it is answered, for out (a pointer; nil discards the body).
func (c *Client) do(ctx context.Context, r call, out any) error {
	u, err := c.url(r)
	if err != nil {
		return c.failed(r, nil, err)
	}
	var last *Error
	renewed := false
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := c.try(ctx, u, r, out)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			if last == nil {
				last = err
			}
			last.Late = true
			return last
		}
		last = err
		pause, again := c.again(r, err, wait, &renewed)
		if !again {
			return err
		}
		if d, ok := ctx.Deadline(); ok && time.Until(d) < pause {
			err.Late = true // waiting would only hide the answer
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// again says whether, and after which pause, r may be sent again.
func (c *Client) again(r call, err *Error, wait time.Duration, renewed *bool) (time.Duration, bool) {
	pause := wait + rand.N(wait/4)
	if err.Status != nil {
		pause = max(pause, err.Status.RetryAfter)
	}
	if Code(err) == http.StatusUnauthorized && c.cfg.TokenFile != "" && !*renewed {
		*renewed = true // the next try reads the file again
		return pause, true
	}
	return pause, !r.once && transient(err)
}

// transient says that the same request may succeed a little later.
func transient(e *Error) bool {
	if e.Status != nil {
		return e.Status.Code == http.StatusTooManyRequests || e.Status.Code >= 500 && e.Status.Code != http.StatusNotImplemented
	}
	for _, final := range []error{ErrRedirect, ErrGarbage, ErrTooLarge, ErrName, ErrCredentials} {
		if errors.Is(e.Err, final) {
			return false
		}
	}
	return !Untrusted(e.Err)
}

// try sends the request once.
func (c *Client) try(ctx context.Context, u string, r call, out any) *Error {
	req, err := http.NewRequestWithContext(ctx, r.method, u, bytes.NewReader(r.body))
	if err != nil {
		return c.failed(r, nil, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "weft")
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	token, err := c.token()
	if err != nil {
		return c.failed(r, nil, err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // the rest repeats the URL
		}
		return c.failed(r, nil, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return c.failed(r, nil, fmt.Errorf("%w: %d to %.200q", ErrRedirect, res.StatusCode, res.Header.Get("Location")))
	case res.StatusCode >= 400:
		return c.failed(r, status(res, body), nil)
	case err != nil:
		return c.failed(r, nil, fmt.Errorf("read answer: %w", err))
	case len(body) > maxBody:
		return c.failed(r, nil, ErrTooLarge)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return c.failed(r, nil, fmt.Errorf("%w: %w", ErrGarbage, err))
	}
	return nil
}

func (c *Client) failed(r call, s *Status, err error) *Error {
	return &Error{Verb: r.verb, Object: r.object, Server: c.cfg.Server.Scheme + "://" + c.cfg.Server.Host, Status: s, Err: err}
}

// token is the bearer token of this moment, "" when there is none.
func (c *Client) token() (string, error) {
	if c.cfg.TokenFile == "" {
		return string(c.cfg.Token), nil
	}
	b, err := readFile(c.cfg.TokenFile)
	token := strings.TrimSpace(string(b))
	switch {
	case err == nil && token != "":
	case c.cfg.Token != "":
		return string(c.cfg.Token), nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrCredentials, err)
	default:
		return "", fmt.Errorf("%w: token file %s is empty", ErrCredentials, c.cfg.TokenFile)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", fmt.Errorf("%w: token file %s holds no token", ErrCredentials, c.cfg.TokenFile)
	}
	return token, nil
}

// url puts the request's path below the server's.
func (c *Client) url(r call) (string, error) {
	for _, s := range r.path {
		if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/%") {
			return "", fmt.Errorf("%w: %.64q", ErrName, s)
		}
	}
	u := *c.cfg.Server
	u = *u.JoinPath(r.path...)
	u.RawQuery = r.query.Encode()
	return u.String(), nil
}

// status reads an answer of 4xx or 5xx.
func status(res *http.Response, body []byte) *Status {
	s := &Status{Code: res.StatusCode}
	var parsed struct {
		Kind, Reason, Message string
		Details               struct{ RetryAfterSeconds int }
	}
	if json.Unmarshal(body, &parsed) == nil && parsed.Kind == "Status" {
		s.Reason, s.Message = parsed.Reason, parsed.Message
		s.RetryAfter = time.Duration(parsed.Details.RetryAfterSeconds) * time.Second
		if s.Reason == "" {
			s.Reason = "Unknown"
		}
	} else {
		s.Message = strings.TrimSpace(string(body[:min(len(body), maxMessage)]))
	}
	s.Message = strings.ToValidUTF8(s.Message[:min(len(s.Message), maxMessage)], "")
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds >= 0 && seconds < 1<<20 {
		s.RetryAfter = time.Duration(seconds) * time.Second
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
