// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
)

const (
	// maxAnswer bounds an answer, in bytes: what the kubelet's own clients allow.
	maxAnswer = 16 << 20
	// patience bounds all that is asked for one request, pauses and waiting for others included.
	// A kubelet answers 10 calls at once and 100 a second, so that is enough for some hundred
	// pods at the same time; and a kubelet that hangs costs an ADD of 90 s no more.
	patience = 5 * time.Second
	// callTime bounds one call.
	callTime = 3 * time.Second
	// The pauses after ResourceExhausted.
	firstPause, longestPause = 20 * time.Millisecond, 500 * time.Millisecond
	// kept is how long an answer of List may serve requests that came after it.
	kept = time.Second
	// remembered is how long a kubelet that does not serve Get is not asked for it. One that is
	// replaced is asked at once: it has another socket.
	remembered = 10 * time.Minute
)

// client asks the kubelet. A connection lives as long as a call: only pods with networks of
// device plugins are asked for, and no kubelet is mistaken for the one before it.
type client struct {
	socket  string
	observe func(Method, Outcome, time.Duration)
	listing chan struct{} // holds one while somebody lists
	now     func() time.Time
	// patience and callTime are the constants; tests on a busy machine have more.
	patience, callTime time.Duration

	mu    sync.Mutex
	noGet fs.FileInfo // the socket of a kubelet that does not serve Get
	until time.Time
	last  *listed
}

// listed is an answer of List.
type listed struct {
	begun, ended time.Time
	pods         map[podName]map[string][]string
	err          error
}

type podName struct{ namespace, name string }

func newClient(socket string, observe func(Method, Outcome, time.Duration)) *client {
	return &client{
		socket: socket, observe: observe, listing: make(chan struct{}, 1), now: time.Now, patience: patience, callTime: callTime,
	}
}

// pod asks for the devices of a pod; none for one that the kubelet does not know. Known says
// of an answer that is older than this request whether it is about this very pod. No socket:
// fs.ErrNotExist.
func (c *client) pod(ctx context.Context, pod Pod, known func(map[string][]string) bool) (map[string][]string, Method, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	begun := c.now()
	socket, err := os.Stat(c.socket)
	if err != nil {
		return nil, "", err
	}
	want := podName{pod.Namespace, pod.Name}
	served := c.servesGet(socket)
	if served {
		found, err := c.get(ctx, want)
		if !refused(err) {
			return found, Get, err
		}
		if status.Code(err) == codes.Unimplemented {
			c.forgetGet(socket)
		}
	}
	all, err := c.list(ctx, begun, func(old map[podName]map[string][]string) bool { return known(old[want]) })
	if err != nil {
		return nil, List, err
	}
	found, there := all[want]
	if served && there {
		// Where Get is switched off (until Kubernetes 1.34 by default), a kubelet says so with the code
		// that stands for a pod that it does not know as well. This one knows it.
		c.forgetGet(socket)
	}
	return found, List, nil
}

func (c *client) servesGet(socket fs.FileInfo) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noGet == nil || !os.SameFile(c.noGet, socket) || !c.noGet.ModTime().Equal(socket.ModTime()) || c.now().After(c.until)
}

func (c *client) forgetGet(socket fs.FileInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noGet, c.until = socket, c.now().Add(remembered)
}

// refused says whether a kubelet answered that it will not, to which List may be the way.
func refused(err error) bool {
	said, ok := status.FromError(err)
	if !ok {
		return false // it is none of the kubelet's
	}
	switch said.Code() {
	case codes.Unimplemented, codes.NotFound, codes.Unknown:
		return true
	default:
		return false
	}
}

func (c *client) get(ctx context.Context, want podName) (map[string][]string, error) {
	req := &podresourcesv1.GetPodResourcesRequest{PodNamespace: want.namespace, PodName: want.name}
	res, err := ask(ctx, c, Get, func(ctx context.Context, to podresourcesv1.PodResourcesListerClient) (*podresourcesv1.GetPodResourcesResponse, error) {
		return to.Get(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	got := res.GetPodResources()
	if got.GetNamespace() != want.namespace || got.GetName() != want.name {
		return nil, fmt.Errorf("get: the answer is about pod %s", fault.Quote(got.GetNamespace()+"/"+got.GetName()))
	}
	return given(got)
}

// list gives an answer of List that was asked for after begun, or one that is not much older
// and known. Of requests that come together the first asks, and one more for all others.
func (c *client) list(ctx context.Context, begun time.Time, known func(map[podName]map[string][]string) bool) (map[podName]map[string][]string, error) {
	usable := func() (*listed, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		l := c.last
		return l, l != nil && (!l.begun.Before(begun) || l.err == nil && c.now().Sub(l.ended) < kept && known(l.pods))
	}
	if l, ok := usable(); ok {
		return l.pods, l.err
	}
	select {
	case c.listing <- struct{}{}:
		defer func() { <-c.listing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("list: wait for another one: %w", ctx.Err())
	}
	if l, ok := usable(); ok {
		return l.pods, l.err
	}
	l := c.listNow(ctx)
	if ctx.Err() == nil { // a request that was given up says nothing to others
		c.mu.Lock()
		c.last = l
		c.mu.Unlock()
	}
	return l.pods, l.err
}

func (c *client) listNow(ctx context.Context) *listed {
	l := &listed{begun: c.now(), pods: map[podName]map[string][]string{}}
	res, err := ask(ctx, c, List, func(ctx context.Context, to podresourcesv1.PodResourcesListerClient) (*podresourcesv1.ListPodResourcesResponse, error) {
		return to.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	})
	for _, p := range res.GetPodResources() {
		found, e := given(p)
		if e != nil {
			err = e
			break
		}
		name := podName{p.GetNamespace(), p.GetName()}
		l.pods[name] = devices.Merge(l.pods[name], found)
	}
	l.ended, l.err = c.now(), err
	return l
}

// ask makes one call, again and again as long as the kubelet says that it is asked too often.
func ask[T any](ctx context.Context, c *client, method Method, call func(context.Context, podresourcesv1.PodResourcesListerClient) (T, error)) (answer T, err error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		begun := time.Now()
		answer, err = connected(ctx, c, call)
		outcome := outcomeOf(err)
		c.observe(method, outcome, time.Since(begun))
		if err == nil {
			return answer, nil
		}
		err = fmt.Errorf("%s: %w", method, err)
		if outcome != Exhausted {
			return answer, err
		}
		// Requests that were turned away together shall not come back together.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return answer, err
		}
	}
}

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case status.Code(err) == codes.ResourceExhausted:
		return Exhausted
	case refused(err):
		return Refused
	}
	return Failed
}

// connected makes a call on a connection of its own.
func connected[T any](ctx context.Context, c *client, call func(context.Context, podresourcesv1.PodResourcesListerClient) (T, error)) (none T, err error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", c.socket)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return none, err
	}
	defer conn.Close() //nolint:errcheck // what was to be said was said
	ctx, cancel := context.WithTimeout(ctx, c.callTime)
	defer cancel()
	return call(ctx, podresourcesv1.NewPodResourcesListerClient(conn))
}

var errNameless = errors.New("an answer has a device without a name, or of no resource")

// given are the devices of all containers of a pod, whatever NUMA nodes they are on.
func given(p *podresourcesv1.PodResources) (map[string][]string, error) {
	found := map[string][]string{}
	for _, container := range p.GetContainers() {
		for _, d := range container.GetDevices() {
			for _, id := range d.GetDeviceIds() {
				if id == "" || d.GetResourceName() == "" {
					return nil, errNameless
				}
				found[d.GetResourceName()] = append(found[d.GetResourceName()], id)
			}
		}
	}
	return devices.Merge(found), nil
}
