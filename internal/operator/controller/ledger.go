// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

type (
	nodeConfig    = v2alpha1.CiliumNetworkDriverNodeConfig
	clusterConfig = v2alpha1.CiliumNetworkDriverClusterConfig
)

// key is something to look at: a node, or a cluster configuration.
type key struct {
	config bool
	name   string
}

func (k key) kind() string {
	if k.config {
		return "config"
	}
	return "node"
}

type queue = workqueue.TypedRateLimitingInterface[key]

// ledger is what is known, all of it of the same moment: what the table says of an object is about
// the version that stands beside it. Its objects are the caches', and not to be changed.
type ledger struct {
	log *slog.Logger

	mu      sync.Mutex
	table   *assign.Table
	labels  map[string]map[string]string // of nodes
	have    map[string]*nodeConfig
	configs map[string]*clusterConfig
	queue   queue             // nil: nobody works
	since   map[key]time.Time // when what is in the queue was put there
	moved   time.Time         // when a node came or went last
}

func newLedger(log *slog.Logger) *ledger {
	return &ledger{
		log: log, table: assign.New(), labels: map[string]map[string]string{}, have: map[string]*nodeConfig{},
		configs: map[string]*clusterConfig{}, since: map[key]time.Time{},
		moved: time.Now(),
	}
}

// begin has everything looked at, and whatever changes from now on.
func (l *ledger) begin(q queue) {
	l.mu.Lock()
	l.table.Changed()
	l.queue = q
	l.mu.Unlock()
	l.all()
}

// all has everything looked at.
func (l *ledger) all() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.labels {
		l.add(key{name: name})
	}
	for name := range l.have {
		l.add(key{name: name})
	}
	for name := range l.configs {
		l.add(key{config: true, name: name})
	}
}

// statusDelay lets one writing of a status tell of many nodes.
const statusDelay = 250 * time.Millisecond

func (l *ledger) add(k key) {
	if _, waits := l.since[k]; !waits {
		l.since[k] = time.Now()
	}
	if k.config {
		l.queue.AddAfter(k, statusDelay)
	} else {
		l.queue.Add(k)
	}
}

// changed puts into the queue what the table says anew.
func (l *ledger) changed() {
	if l.queue == nil {
		return // begin looks at everything
	}
	nodes, configs := l.table.Changed()
	for _, name := range nodes {
		l.add(key{name: name})
	}
	for _, name := range configs {
		l.add(key{config: true, name: name})
	}
}

// took says how long something has been waiting.
func (l *ledger) took(k key) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.since[k]
	if !ok {
		return 0
	}
	delete(l.since, k)
	return time.Since(at)
}

// node is what is decided about a node, the configuration that governs it, and its own.
func (l *ledger) node(name string) (assign.Decision, *clusterConfig, *nodeConfig) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.table.Node(name)
	return d, l.configs[d.Config], l.have[name]
}

// config is what became of a cluster configuration, nil when there is none.
func (l *ledger) config(name string) (assign.Summary, *clusterConfig) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, _ := l.table.Config(name)
	return s, l.configs[name]
}

// Summaries are those of all cluster configurations, and how much waits to be looked at.
func (l *ledger) Summaries() (all []assign.Summary, pending int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.configs {
		if s, ok := l.table.Config(name); ok {
			all = append(all, s)
		}
	}
	if l.queue != nil {
		pending = l.queue.Len()
	}
	return all, pending
}

// handler has what was told about objects of a kind written down.
func handler[T client.Object](l *ledger, set func(T), remove func(name string)) toolscache.ResourceEventHandler {
	told := func(in any) {
		if o, ok := in.(T); ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			set(o)
			l.changed()
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    told,
		UpdateFunc: func(_, in any) { told(in) },
		DeleteFunc: func(in any) {
			if last, ok := in.(toolscache.DeletedFinalStateUnknown); ok {
				in = last.Obj
			}
			if o, ok := in.(T); ok {
				l.mu.Lock()
				defer l.mu.Unlock()
				remove(o.GetName())
				l.changed()
			}
		},
	}
}

func (l *ledger) nodes() toolscache.ResourceEventHandler {
	return handler(l, func(o *metav1.PartialObjectMetadata) {
		old, ok := l.labels[o.Name]
		switch {
		case !ok:
			l.moved = time.Now()
		case maps.Equal(old, o.Labels):
			return // a heartbeat
		}
		l.labels[o.Name] = o.Labels
		l.table.SetNode(o.Name, o.Labels)
	}, func(name string) {
		l.moved = time.Now()
		delete(l.labels, name)
		l.table.DeleteNode(name)
	})
}

// calm is for how long no node has come or gone.
func (l *ledger) calm() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.moved)
}

func (l *ledger) nodeConfigs() toolscache.ResourceEventHandler {
	return handler(l, func(o *nodeConfig) {
		l.have[o.Name] = o
		l.table.SetOwner(o.Name, own.Owner(o))
	}, func(name string) {
		delete(l.have, name)
		l.table.SetOwner(name, "")
	})
}

func (l *ledger) clusterConfigs() toolscache.ResourceEventHandler {
	return handler(l, func(o *clusterConfig) {
		old := l.configs[o.Name]
		l.configs[o.Name] = o
		if old != nil && old.UID == o.UID && old.Generation == o.Generation {
			if l.queue != nil {
				l.add(key{config: true, name: o.Name}) // somebody wrote the status
			}
			return
		}
		l.table.SetConfig(assign.Config{
			Name: o.Name, Created: o.CreationTimestamp.Time, Selector: o.Spec.NodeSelector, Invalid: o.Spec.Validate(),
		})
	}, func(name string) {
		delete(l.configs, name)
		l.table.DeleteConfig(name)
	})
}
