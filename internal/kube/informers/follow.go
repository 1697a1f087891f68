// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// Waiting between two tries to follow doubles from firstWait to lastWait, with jitter
	// up to twice of it: every node of a cluster does so at once.
	firstWait = 250 * time.Millisecond
	lastWait  = 10 * time.Second
	// steady is how long a watch has to hold for waits to begin anew.
	steady = time.Minute
	// listTimeout bounds one list; a watch has the bound that client-go asks for, minutes,
	// but to begin it has answerTimeout, a streamed list to its first event: whoever takes the
	// request and never answers, or not more than headers, as what stands before a lost API
	// server may, would keep the node from being ready.
	listTimeout   = time.Minute
	answerTimeout = 15 * time.Second
	// sayEvery is how often one and the same fault of following is logged as a warning.
	sayEvery = 5 * time.Minute
)

// follower keeps one table current.
type follower struct {
	what     string // for people
	resource string
	client   *clientrest.RESTClient
	fields   fields.Selector
	log      *slog.Logger
	failed   func(verb string, err error) error
	complete <-chan struct{} // of the table
	start    func(klog.Logger) *cache.Reflector
	patience time.Duration // answerTimeout, less in tests

	mu    sync.Mutex
	fault error  // of the last try, nil when it succeeded
	verb  string // of that try
	said  time.Time
}

func (c *Cluster) followPods(node string) *follower {
	f := &follower{
		what: "pods of this node", resource: "pods", client: c.core, log: c.log, complete: c.pods.complete, patience: answerTimeout,
		fields: fields.OneTermEqualSelector("spec.nodeName", node),
	}
	f.failed = func(verb string, err error) error { return c.failed(verb, f.what, err) }
	f.start = func(log klog.Logger) *cache.Reflector {
		return f.reflector(log, &corev1.Pod{}, c.pods, func() runtime.Object { return &corev1.PodList{} })
	}
	return f
}

func (c *Cluster) followNADs() *follower {
	f := &follower{
		what: "NetworkAttachmentDefinitions", resource: nadResource, client: c.nad, log: c.log,
		complete: c.nads.complete, patience: answerTimeout, fields: fields.Everything(),
	}
	f.failed = func(verb string, err error) error {
		if !served(err) {
			return fmt.Errorf("the API server does not serve %s (is the CustomResourceDefinition installed?): %w", nadV1, c.failed(verb, f.what, err))
		}
		return c.failed(verb, f.what, err)
	}
	f.start = func(log klog.Logger) *cache.Reflector {
		return f.reflector(log, &nadObject{}, c.nads, func() runtime.Object { return &nadList{} })
	}
	return f
}

// behind says why the table is not complete or not followed.
func (f *follower) behind() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return f.fault
	}
	select {
	case <-f.complete:
		return nil
	default:
		return fmt.Errorf("%s: are not listed yet", f.what)
	}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	r := f.start(klog.FromContext(ctx))
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, lastWait) {
		begun := time.Now()
		// An error is one of list or watch, and noted there. Without one the watch has
		// ended, such as by 410 Gone: then all is listed again.
		_ = r.ListAndWatchWithContext(ctx)
		if time.Since(begun) > steady {
			wait = firstWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait + rand.N(wait)):
		}
	}
}

func (f *follower) reflector(log klog.Logger, of runtime.Object, into cache.ReflectorStore, list func() runtime.Object) *cache.Reflector {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return f.list(ctx, o, list())
		},
		WatchFuncWithContext: f.watch,
	}
	return cache.NewReflectorWithOptions(lw, of, into, cache.ReflectorOptions{
		Logger: &log, Name: f.resource, TypeDescription: f.what,
		Backoff: &wait.Backoff{Duration: firstWait, Cap: lastWait, Steps: 10, Factor: 2, Jitter: 1},
	})
}

func (f *follower) list(ctx context.Context, o metav1.ListOptions, into runtime.Object) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	o.FieldSelector = f.fields.String()
	err := f.client.Get().Resource(f.resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, coreV1).
		MaxRetries(0).Do(ctx).Into(into)
	f.note(ctx, "list", err)
	return into, err
}

func (f *follower) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector, o.Watch = f.fields.String(), true
	req := f.client.Get().Resource(f.resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, coreV1).MaxRetries(0)
	if o.TimeoutSeconds != nil { // the server's bound, kept on this side as well
		req.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	streamed := o.SendInitialEvents != nil
	w, err := begin(ctx, f.patience, streamed, req.Watch)
	if err == nil || !streamed {
		f.note(ctx, "watch", err)
		return w, err
	}
	// A server that streams no lists says 400 or 422, and is asked for a list then. And a
	// Reflector would wait for one that is away without looking at ctx: run does it better.
	return nil, opaqueError{err, errors.Is(ctx.Err(), context.Canceled) || !retriable(err)}
}

// begin begins a watch, and gives that up when no answer has begun after so long; nor, of a
// streamed list, its first event, which is a bookmark where there is no object.
func begin(ctx context.Context, patience time.Duration, streamed bool, watching func(context.Context) (watch.Interface, error)) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(patience, cancel)
	w, err := watching(ctx)
	var first *watch.Event
	if err == nil && streamed {
		if e, ok := <-w.ResultChan(); ok { // it is closed when ctx ends
			first = &e
		}
	}
	late := !timer.Stop()
	switch {
	case err == nil && !late && first == nil:
		return begun{w, cancel}, nil
	case err == nil && !late:
		return resume(begun{w, cancel}, *first), nil
	case err == nil:
		w.Stop()
	}
	cancel()
	if late {
		err = fmt.Errorf("no answer has begun after %s: %w", patience, context.DeadlineExceeded)
	}
	return nil, err
}

// begun is a watch whose request ends with it.
type begun struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (b begun) Stop() {
	b.Interface.Stop()
	b.cancel()
}

// resumed is a watch whose first event was looked at.
type resumed struct {
	begun
	events  chan watch.Event
	stopped chan struct{}
	stop    func()
}

func resume(w begun, first watch.Event) watch.Interface {
	r := &resumed{begun: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	r.stop = sync.OnceFunc(func() { close(r.stopped) })
	go func() {
		defer close(r.events)
		for e, ok := first, true; ok; e, ok = <-w.ResultChan() {
			select {
			case r.events <- e:
			case <-r.stopped:
				return
			}
		}
	}()
	return r
}

// ResultChan has all events, the first one too.
func (r *resumed) ResultChan() <-chan watch.Event { return r.events }

// Stop ends the watch.
func (r *resumed) Stop() {
	r.stop()
	r.begun.Stop()
}

// opaqueError hides from a Reflector that it may try again.
type opaqueError struct {
	err  error
	open bool
}

func (e opaqueError) Error() string { return e.err.Error() }

// Unwrap gives the cause, unless that one is hidden.
func (e opaqueError) Unwrap() error {
	if e.open {
		return e.err
	}
	return nil
}

// retriable is what a Reflector waits for on its own.
func retriable(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// note keeps what became of a try, and says it when it is news.
func (f *follower) note(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return // the end
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.fault
	if err == nil && before != nil && verb == "list" && f.verb == "watch" {
		return // who may list and not watch follows nothing
	}
	if err == nil {
		f.fault = nil
		if before != nil {
			f.log.InfoContext(ctx, "following again", "what", f.what)
		}
		return
	}
	f.fault, f.verb = f.failed(verb, err), verb
	level := slog.LevelWarn
	if before != nil && before.Error() == f.fault.Error() && time.Since(f.said) < sayEvery {
		level = slog.LevelDebug
	} else {
		f.said = time.Now()
	}
	f.log.Log(ctx, level, "cannot follow, and tries again", "what", f.what, "error", f.fault)
}
