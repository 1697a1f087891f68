// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Pauses between two tries of a write, and how many claims are read at once.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
	atOnce     = 8
	page       = 500
)

// tryTime is what one request has, so that one that is never answered leaves time for another.
const tryTime = 5 * time.Second

// Client asks one cluster for one node.
type Client struct {
	api  kubernetes.Interface
	node string
}

// New makes a client. Nothing is sent yet.
func New(api kubernetes.Interface, node string) *Client { return &Client{api: api, node: node} }

// Claim reads one claim; apierrors.IsNotFound tells that there is none.
func (c *Client) Claim(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	claim, err := c.api.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim %s: %w", name, err)
	}
	return claim, nil
}

// WriteStatus has change applied to the claim's status by one write, first to claim as it is, and
// then to fresh copies for as long as others are quicker or the server is away. Nothing is written
// when change says that it changed nothing.
func (c *Client) WriteStatus(ctx context.Context, claim *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) bool) error {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	last := error(nil)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := c.write(ctx, claim.DeepCopy(), change)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			if last == nil {
				last = err
			}
			return fmt.Errorf("write the status of claim %s: %w", name, last)
		}
		if !passes(err) {
			return fmt.Errorf("write the status of claim %s: %w", name, err)
		}
		last = err
		if !apierrors.IsConflict(err) || pause > firstPause {
			rest(ctx, pause)
		}
		// The write may have been done although no answer came.
		fresh, err := c.Claim(ctx, name)
		switch {
		case err == nil:
			claim = fresh
		case !passes(err):
			return err
		}
	}
}

func (c *Client) write(ctx context.Context, claim *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) bool) error {
	if !change(claim) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	_, err := c.api.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}

// passes says that the same request may succeed later: another writer was quicker, the server has
// no time, or did not answer.
func passes(err error) bool {
	var status apierrors.APIStatus // no error by itself, which errors.AsType would ask for
	if !errors.As(err, &status) {
		return true // no answer
	}
	const serverError = 500
	return apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || status.Status().Code >= serverError
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// OfNode reads the claims of the node's pods, and says which pods there are. The error may join what
// could not be read of single claims: the others are there, and so are the pods, which are nil when
// they could not be listed.
func (c *Client) OfNode(ctx context.Context) ([]*resourceapi.ResourceClaim, map[types.UID]*corev1.Pod, error) {
	pods := map[types.UID]*corev1.Pod{}
	wanted := map[types.NamespacedName]bool{}
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.node).String(), Limit: page}
	for {
		list, err := c.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, nil, fmt.Errorf("list the pods of node %s: %w", c.node, err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			pods[pod.UID] = pod
			for _, name := range claimsOf(pod) {
				wanted[types.NamespacedName{Namespace: pod.Namespace, Name: name}] = true
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	claims, err := c.read(ctx, wanted)
	return claims, pods, err
}

// claimsOf are the names of a pod's claims: those that it names, and those that were made for it.
func claimsOf(pod *corev1.Pod) (names []string) {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName != nil {
			names = append(names, *ref.ResourceClaimName)
		}
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName != nil {
			names = append(names, *made.ResourceClaimName)
		}
	}
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil && made.ResourceClaimName != "" {
		names = append(names, made.ResourceClaimName)
	}
	return names
}

// read gets claims side by side. One that is gone is none.
func (c *Client) read(ctx context.Context, names map[types.NamespacedName]bool) ([]*resourceapi.ResourceClaim, error) {
	var mu sync.Mutex
	var claims []*resourceapi.ResourceClaim
	var faults []error
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for name := range names {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			claim, err := c.Claim(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				claims = append(claims, claim)
			case !apierrors.IsNotFound(err):
				faults = append(faults, err)
			}
		})
	}
	all.Wait()
	return claims, errors.Join(faults...)
}

// Elsewhere gives the devices of the node that claims have under a pool that does not name the node,
// as another driver's pools do not, and that pool. All claims are looked at, a page at a time; still
// looks again, at those alone that have such a device.
func (c *Client) Elsewhere(ctx context.Context, driver string) (
	found map[string]string, still func(context.Context) (map[string]string, error), err error,
) {
	found = map[string]string{}
	holders := map[types.NamespacedName]bool{}
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := c.api.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, nil, fmt.Errorf("list the claims: %w", err)
		}
		for i := range list.Items {
			claim := &list.Items[i]
			if c.elsewhere(claim, driver, found) {
				holders[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = true
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return found, func(ctx context.Context) (map[string]string, error) {
		left, err := c.read(ctx, holders)
		if err != nil {
			return nil, err
		}
		found := map[string]string{}
		for _, claim := range left {
			c.elsewhere(claim, driver, found)
		}
		return found, nil
	}, nil
}

// elsewhere adds the devices of a claim, and says whether it has any.
func (c *Client) elsewhere(claim *resourceapi.ResourceClaim, driver string, found map[string]string) (has bool) {
	a := claim.Status.Allocation
	if a == nil || !onNode(a.NodeSelector, c.node) {
		return false
	}
	for _, r := range a.Devices.Results {
		if r.Driver == driver && !strings.HasPrefix(r.Pool, c.node+"/") && (r.AdminAccess == nil || !*r.AdminAccess) {
			found[r.Device], has = r.Pool, true
		}
	}
	return has
}

// onNode says whether an allocation is for a node. The scheduler names the node of devices that
// belong to one.
func onNode(selector *corev1.NodeSelector, node string) bool {
	if selector == nil {
		return false
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 && f.Values[0] == node {
				return true
			}
		}
	}
	return false
}
