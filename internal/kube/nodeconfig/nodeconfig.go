// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/weftnet/weft/api/v2alpha1"
)

// Config says whose configuration is followed, and who is told of it.
type Config struct {
	Node string             // its name, which the CiliumNode and the Node have
	Conn *clientrest.Config // how to reach the API server
	// Changed is told the configuration, which is not to be changed, as soon as it is known and
	// after each change of its spec; nil: there is none. It must be quick.
	Changed func(*v2alpha1.CiliumNetworkDriverNodeConfig)
	// Manager owns the conditions as a field manager; "" = weft-agent.
	Manager string
	Log     *slog.Logger
}

// Follower follows the configuration of one node.
type Follower struct {
	cfg    Config
	http   *http.Client
	client *clientrest.RESTClient // cilium.io/v2alpha1
	events flowcontrol.RateLimiter
	waits  waits

	mu      sync.Mutex
	known   bool // Changed was called
	current *v2alpha1.CiliumNetworkDriverNodeConfig
	fault   error // of the last try to follow
	said    time.Time
	absent  int  // how often in a row the resource was not served
	narrow  bool // the definition cannot hold conditions

	writing sync.Mutex // one status at a time
	told    []metav1.Condition
	toldOf  string // UID
}

// An event is told at most this often, and then dropped: a device that comes and goes all the time
// must not keep the API server busy.
const (
	eventsPerSecond = 0.2
	eventBurst      = 10
)

// New makes a Follower; nothing is sent yet. The error joins every fault of cfg.
func New(cfg Config) (*Follower, error) {
	var faults []error
	if cfg.Node == "" {
		faults = append(faults, errors.New("node: is missing"))
	}
	if cfg.Conn == nil {
		faults = append(faults, errors.New("conn: is missing"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if cfg.Changed == nil {
		cfg.Changed = func(*v2alpha1.CiliumNetworkDriverNodeConfig) {}
	}
	if cfg.Manager == "" {
		cfg.Manager = "weft-agent"
	}
	f := &Follower{cfg: cfg, events: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst), waits: usualWaits()}
	scheme := runtime.NewScheme()
	if err := v2alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	metav1.AddToGroupVersion(scheme, coreV1())
	conn := clientrest.CopyConfig(cfg.Conn)
	gv := v2alpha1.GroupVersion()
	conn.APIPath, conn.GroupVersion = "/apis", &gv
	conn.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	conn.AcceptContentTypes, conn.ContentType = typeJSON, typeJSON
	conn.QPS = -1 // few requests, each of which somebody waits for
	var err error
	if f.http, err = clientrest.HTTPClientFor(conn); err == nil {
		f.client, err = clientrest.RESTClientForConfigAndClient(conn, f.http)
	}
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return f, nil
}

const typeJSON = "application/json"

func coreV1() schema.GroupVersion { return schema.GroupVersion{Version: "v1"} }

func (f *Follower) String() string { return "configuration of node " + f.cfg.Node }

// object names the configuration in messages.
func (f *Follower) object() string { return v2alpha1.NodeConfigKind + " " + f.cfg.Node }

// Current is the configuration, nil when there is none, and whether that is known at all. It is
// not to be changed.
func (f *Follower) Current() (*v2alpha1.CiliumNetworkDriverNodeConfig, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.known
}

// Behind says why the configuration is not known, or not being followed at the moment; nil when
// all is well, also without any.
func (f *Follower) Behind() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fault != nil:
		return f.fault
	case !f.known:
		return fmt.Errorf("%s is not asked for yet", f.object())
	}
	return nil
}

// Run follows the configuration until ctx ends. It is called once.
func (f *Follower) Run(ctx context.Context) error {
	defer utilnet.CloseIdleConnectionsFor(f.http.Transport)
	f.run(klog.NewContext(ctx, logr.FromSlogHandler(f.cfg.Log.Handler()))) // client-go's own words
	return nil
}

// set takes a configuration, and tells of it when it is news. It is called by Run alone.
func (f *Follower) set(c *v2alpha1.CiliumNetworkDriverNodeConfig) {
	f.mu.Lock()
	news := !f.known || different(f.current, c)
	f.known, f.current = true, c
	f.mu.Unlock()
	if !news {
		return
	}
	if c == nil {
		f.cfg.Log.Info("node has no configuration of the network driver", "node", f.cfg.Node)
	} else {
		f.cfg.Log.Info("configuration of the network driver", "node", f.cfg.Node, "generation", c.Generation)
	}
	f.cfg.Changed(c)
}

// different is about what a driver goes by: its own status is none of it.
func different(a, b *v2alpha1.CiliumNetworkDriverNodeConfig) bool {
	if a == nil || b == nil {
		return a != b
	}
	return a.UID != b.UID || a.Generation != b.Generation || !equality.Semantic.DeepEqual(a.Spec, b.Spec)
}
