// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informers is the agent's view of the cluster: the pods of its own node and the
// NetworkAttachmentDefinitions (NADs), trimmed to what is used and kept current by
// watches; beside it the few requests that an agent makes: live reads, the annotation
// patch, and events.
//
// It needs: get, list and watch on pods and on network-attachment-definitions
// (k8s.cni.cncf.io), patch on pods/status, create on events; and, for pods with claims,
// get on resourceclaims and list on resourceslices (resource.k8s.io).
//
// Invariants: a row of the caches is never changed, only replaced, so whoever holds one
// may read it for ever; the caches are written by the watches, and by the answer to an
// own patch where that is newer than the row of the same pod; what is neither read by
// a plan nor by network-status is dropped before it is kept, and of a NAD that is large, or
// that comes when all together are, no more than its size and outline; nothing that an API server
// does, or its absence, ends Run; every request is counted; every error of a request is
// a *rest.Error (of internal/kube/rest), which names object, server and answer.
//
// It does not know what annotations and configurations mean, and plans nothing.
//
// Implements: architecture 4.4 (the agent's caches, network-status).
package informers

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Config says which cluster is looked at, and from where.
type Config struct {
	NodeName   string // whose pods are followed
	Kubeconfig string // path; "" = the service account of the pod that this runs in
	UserAgent  string // "" = weft-agent
	// Outline says in a few words of its own what is to be known of a NAD's configuration that is
	// not kept; nil = nothing is.
	Outline func(config string) string
}

// Ref names one pod, and not a later one of the same name.
type Ref struct{ Namespace, Name, UID string }

func (r Ref) String() string { return "pod " + r.Namespace + "/" + r.Name }

// Cluster is one cluster, as one node's agent sees it. Its methods may be called by
// several goroutines, before Run as well: then the caches are empty.
type Cluster struct {
	log    *slog.Logger
	server string // for messages

	conn  *clientrest.Config
	http  *http.Client
	core  *clientrest.RESTClient // core/v1
	nad   *clientrest.RESTClient // k8s.cni.cncf.io/v1
	plain *clientrest.RESTClient // any group, JSON as it comes

	contact *contact
	pods    *table[Pod]
	nads    *table[NAD]
	follow  [2]*follower
	events  *events
	synced  chan struct{}
}

// New makes a Cluster; nothing is sent yet. The error joins every fault of cfg.
func New(cfg Config, log *slog.Logger) (*Cluster, error) {
	c := &Cluster{log: log, contact: &contact{requests: map[string]uint64{}}, synced: make(chan struct{})}
	conn, err := connection(cfg, c.contact)
	if err != nil {
		return nil, err
	}
	c.server, c.conn = conn.Host, conn
	if err := c.connect(conn); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	c.pods = newTable(trimPod, (*Pod).id, Pod.unversioned)
	t := trimmer{cfg.Outline}
	c.nads = newTable(t.trim, (*NAD).id, NAD.unversioned)
	c.nads.budget = t.budget()
	c.follow = [2]*follower{c.followPods(cfg.NodeName), c.followNADs()}
	c.events = newEvents(cfg.NodeName, c.createEvent, log)
	return c, nil
}

// Conn is how the API server is reached, for clients of other rooms. Their requests are counted with
// the Cluster's own.
func (c *Cluster) Conn() *clientrest.Config { return clientrest.CopyConfig(c.conn) }

// Run follows the cluster and sends events until ctx ends; then events that wait have
// flushWait. It is called once.
func (c *Cluster) Run(ctx context.Context) error {
	defer utilnet.CloseIdleConnectionsFor(c.http.Transport)
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(c.log.Handler())) // client-go's own words
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range c.follow {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Go(func() { c.events.run(ctx) })
	for _, complete := range []<-chan struct{}{c.pods.complete, c.nads.complete} {
		select {
		case <-ctx.Done():
			return nil
		case <-complete:
		}
	}
	c.log.Info("caches are complete", "pods", c.pods.len(), "networks", c.nads.len())
	close(c.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed once both caches hold a complete list. They stay usable, and age,
// while the API server is away: LastContact says since when.
func (c *Cluster) Synced() <-chan struct{} { return c.synced }

// Behind says why the caches are not complete, or are not being followed at the moment;
// nil when all is well. It is for people: readiness and inspection.
func (c *Cluster) Behind() error {
	for _, f := range c.follow {
		if err := f.behind(); err != nil {
			return err
		}
	}
	return nil
}

// Pod is a pod of the node, as the cache has it.
func (c *Cluster) Pod(namespace, name string) (*Pod, bool) { return c.pods.row(key{namespace, name}) }

// PodByUID is the pod of the node that has a UID, as the cache has it.
func (c *Cluster) PodByUID(uid string) (*Pod, bool) {
	return c.pods.find(func(p *Pod) bool { return p.UID == uid })
}

// Pods are the pods of the node, by namespace and name.
func (c *Cluster) Pods() []*Pod { return c.pods.all() }

// NAD is a NetworkAttachmentDefinition, as the cache has it.
func (c *Cluster) NAD(namespace, name string) (*NAD, bool) { return c.nads.row(key{namespace, name}) }

// NADs are all NetworkAttachmentDefinitions, by namespace and name.
func (c *Cluster) NADs() []*NAD { return c.nads.all() }

// NotifyPods has f called after a pod of the cache has come, changed in anything that is
// kept, or gone. It is called before Run; f must be quick, and not call back.
func (c *Cluster) NotifyPods(f func(Ref)) { c.pods.notify = append(c.pods.notify, f) }

// LastContact is the last time that the API server was heard of: an answer, or a byte of
// a watch, which has a bookmark about every minute. The zero time: never.
func (c *Cluster) LastContact() time.Time { return c.contact.last() }

// Requests are the requests so far by "verb resource": "patch pods/status".
func (c *Cluster) Requests() map[string]uint64 { return c.contact.counts() }
