// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientrest "k8s.io/client-go/rest"

	"github.com/weftnet/weft/internal/kube/rest"
)

// liveTimeout bounds one request that a pod waits for.
const liveTimeout = 5 * time.Second

const (
	nadResource = "network-attachment-definitions"
	pageSize    = "500"
	maxPages    = 100
	maxMessage  = 1 << 10
)

// ErrNotFound says that there is no such object.
var ErrNotFound = errors.New("object does not exist") //nolint:gochecknoglobals // a sentinel

// LivePod reads a pod from the API server, with one request of at most liveTimeout. The
// error is ErrNotFound when there is none, and rest.ErrGarbage when something else came.
func (c *Cluster) LivePod(ctx context.Context, namespace, name string) (*Pod, error) {
	p := &corev1.Pod{}
	if err := c.get(ctx, c.core, "pods", "pod", key{namespace, name}, p); err != nil {
		return nil, err
	}
	row, err := trimPod(p)
	if err != nil {
		return nil, err
	}
	c.pods.refresh(row)
	return row, nil
}

// LiveNAD reads a NetworkAttachmentDefinition as LivePod does; false when there is none.
func (c *Cluster) LiveNAD(ctx context.Context, namespace, name string) (*NAD, bool, error) {
	n := &nadObject{}
	err := c.get(ctx, c.nad, nadResource, "NetworkAttachmentDefinition", key{namespace, name}, n)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	row, err := trimNAD(n)
	return row, err == nil, err
}

func (c *Cluster) get(ctx context.Context, client *clientrest.RESTClient, resource, kind string, k key, into object) error {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	what := kind + " " + k.namespace + "/" + k.name
	if k.namespace == "" || k.name == "" {
		return c.failed("get", what, rest.ErrName)
	}
	err := client.Get().Namespace(k.namespace).Resource(resource).Name(k.name).MaxRetries(0).Do(ctx).Into(into)
	switch {
	case runtime.IsNotRegisteredError(err):
		err = fmt.Errorf("%w: %w", rest.ErrGarbage, err)
	case err == nil && (into.GetNamespace() != k.namespace || into.GetName() != k.name || into.GetUID() == ""):
		// Another kind of object is decoded into nothing.
		err = fmt.Errorf("%w: it is %.64q of UID %.64q", rest.ErrGarbage, into.GetNamespace()+"/"+into.GetName(), into.GetUID())
	}
	return c.failed("get", what, err)
}

// object is one whose metadata can be read.
type object interface {
	runtime.Object
	metav1.Object
}

// ResourceClaim is the JSON of a ResourceClaim, read as LivePod does.
func (c *Cluster) ResourceClaim(ctx context.Context, namespace, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	b, err := raw(c.plain.Get().Namespace(namespace).Resource("resourceclaims").Name(name).MaxRetries(0).Do(ctx))
	return b, c.failed("get", "ResourceClaim "+namespace+"/"+name, err)
}

// ResourceSlices are the JSON of the slices of a driver on a node; "" stands for every
// driver, or every node.
func (c *Cluster) ResourceSlices(ctx context.Context, driver, node string) ([]json.RawMessage, error) {
	object := "ResourceSlices of node " + node
	var selectors []string
	if driver != "" {
		selectors = append(selectors, "spec.driver="+driver)
	}
	if node != "" {
		selectors = append(selectors, "spec.nodeName="+node)
	}
	var all []json.RawMessage
	more := ""
	for range maxPages {
		page, next, err := c.slices(ctx, strings.Join(selectors, ","), more)
		if err != nil {
			return nil, c.failed("list", object, err)
		}
		all = append(all, page...)
		if next == "" {
			return all, nil
		}
		more = next
	}
	return nil, c.failed("list", object, rest.ErrTooLarge)
}

// slices is one page of a list, and where the next one is.
func (c *Cluster) slices(ctx context.Context, selector, more string) ([]json.RawMessage, string, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	req := c.plain.Get().Resource("resourceslices").MaxRetries(0).Param("limit", pageSize)
	if selector != "" {
		req.Param("fieldSelector", selector)
	}
	if more != "" {
		req.Param("continue", more)
	}
	b, err := raw(req.Do(ctx))
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Metadata struct{ Continue string }
		Items    []json.RawMessage
	}
	if err := json.Unmarshal(b, &page); err != nil {
		return nil, "", fmt.Errorf("%w: %w", rest.ErrGarbage, err)
	}
	return page.Items, page.Metadata.Continue, nil
}

// raw is an answer's bytes. Unlike Raw, Error reads what a refusal says.
func raw(answer clientrest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// failed is err as a *rest.Error that names the request; nil for nil.
func (c *Cluster) failed(verb, object string, err error) error {
	if err == nil {
		return nil
	}
	e := &rest.Error{Verb: verb, Object: object, Server: c.server, Err: err}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		e.Err = inner.Err // the rest repeats the URL
	}
	e.Late = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	answer, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return e
	}
	s := answer.Status()
	e.Status = &rest.Status{Code: int(s.Code), Reason: string(s.Reason), Message: s.Message[:min(len(s.Message), maxMessage)]}
	if s.Details != nil {
		e.Status.RetryAfter = time.Duration(s.Details.RetryAfterSeconds) * time.Second
	}
	if !served(err) {
		e.Status.Reason = "" // so rest.NotFound tells the two apart
	} else if apierrors.IsNotFound(err) {
		e.Err = ErrNotFound
	}
	return e
}

// served is false for the 404 of a server that does not know the resource, which is no
// Status object.
func served(err error) bool {
	return !apierrors.IsNotFound(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Lasting says that no waiting mends the error of a request: somebody has to change
// something, such as a permission. The agent's own token is renewed, and no such case.
func Lasting(err error) bool {
	if errors.Is(err, rest.ErrName) || errors.Is(err, rest.ErrTooLarge) || rest.Untrusted(err) {
		return true
	}
	switch rest.Code(err) {
	case http.StatusNotFound:
		return !rest.NotFound(err) // the resource's definition is not installed
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
