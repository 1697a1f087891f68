// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

const (
	podPath    = "/api/v1/namespaces/default/pods/client"
	nadPath    = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions/second"
	statusNote = "k8s.v1.cni.cncf.io/network-status"

	exchangeTimeout = 10 * time.Second
)

// api is the API server that one subject plans from. This process serves it on
// loopback as kubeconfigs of nodes have it: TLS with a CA of its own, a bearer token.
type api struct {
	server     *kubetest.Server
	kubeconfig string
	raw        *rest.Config // what the raw client connects with
	exchanges  [][]byte     // the raw client's requests, as they go over the wire
	ends       []func()
}

// startAPI serves the benchmark's pod and network; its kubeconfig is written to dir.
func startAPI(dir string) (a *api, err error) {
	a = &api{}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case hostError:
			err = fmt.Errorf("serve the API: %w", failure.error)
		default:
			panic(failure)
		}
		if err != nil {
			a.stop()
		}
	}()
	a.server = kubetest.New(&host{dir: dir, ends: &a.ends}, kubetest.WithTLS(), kubetest.WithToken("bench"))
	a.reset()
	a.kubeconfig = a.server.Kubeconfig(nil)
	a.raw, err = rest.Load(a.kubeconfig)
	return a, err
}

func (a *api) stop() {
	for _, end := range a.ends {
		end()
	}
}

// reset makes pod and network what they were before any ADD, and forgets the requests.
func (a *api) reset() {
	a.server.Apply(manifests)
	a.server.ResetRequests()
}

// learn takes over what the subject's ADD wrote: the raw client sends the same patch.
func (a *api) learn() error {
	patch := ""
	for _, r := range a.server.Requests() {
		if r.Verb == "patch" && r.Resource == "pods" && r.Subresource == "status" {
			patch = r.Body
		}
	}
	if patch == "" {
		return errors.New("read requests of an ADD: none patches pods/status")
	}
	a.exchanges = nil
	for _, r := range []struct{ method, path, body string }{
		{http.MethodGet, podPath, ""},
		{http.MethodGet, nadPath, ""},
		{http.MethodPatch, podPath + "/status", patch},
	} {
		req, err := http.NewRequest(r.method, a.server.URL()+r.path, strings.NewReader(r.body))
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "application/json")
		req.Header.Set("Authorization", "Bearer "+string(a.raw.Token))
		if r.body != "" {
			req.Header.Set("Content-Type", "application/json-patch+json")
		}
		var wire bytes.Buffer
		if err := req.Write(&wire); err != nil {
			return err
		}
		a.exchanges = append(a.exchanges, wire.Bytes())
	}
	return nil
}

// exchange sends the raw client's requests one after the other over one fresh
// connection, and gives the time from before it is opened until the last answer is
// read. Nothing is decoded: no client can do with less.
func (a *api) exchange(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	start := time.Now()
	conn, err := (&tls.Dialer{Config: a.raw.TLS}).DialContext(ctx, "tcp", a.raw.Server.Host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(start.Add(exchangeTimeout)); err != nil {
		return 0, err
	}
	answers := bufio.NewReader(conn)
	for _, wire := range a.exchanges {
		if _, err := conn.Write(wire); err != nil {
			return 0, err
		}
		if err := readAnswer(answers); err != nil {
			line, _, _ := bytes.Cut(wire, []byte("\r\n"))
			return 0, fmt.Errorf("%s: %w", line, err)
		}
	}
	return time.Since(start), nil
}

// readAnswer reads one answer to its end; any but 200 is an error.
func readAnswer(r *bufio.Reader) error {
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %d: %s", res.StatusCode, body)
	}
	return nil
}

// host is as much of a test as kubetest needs, for a program that is none.
type host struct {
	testing.TB // nil: no other method is called
	dir        string
	ends       *[]func()
}

// hostError is what a host panics with where a test would end.
type hostError struct{ error }

func (h *host) Helper()          {}
func (h *host) TempDir() string  { return h.dir }
func (h *host) Cleanup(f func()) { *h.ends = append(*h.ends, f) }

func (h *host) Fatal(args ...any) { panic(hostError{errors.New(fmt.Sprint(args...))}) }

func (h *host) Fatalf(format string, args ...any) {
	panic(hostError{fmt.Errorf(format, args...)})
}
