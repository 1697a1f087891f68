// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/weftnet/weft/api/v2alpha1"
)

// waits are pauses and bounds; tests have shorter ones.
type waits struct {
	// Between two tries to follow: doubling from first to last, with jitter up to twice of it,
	// since every node of a cluster does so at once.
	first, last time.Duration
	absent      time.Duration // between two looks for a resource that is not served
	answer      time.Duration // for a list, and for the beginning of a watch
	steady      time.Duration // how long a watch holds for waits to begin anew
}

func usualWaits() waits {
	return waits{
		first: 250 * time.Millisecond, last: 10 * time.Second, absent: 10 * time.Second,
		answer: 15 * time.Second, steady: time.Minute,
	}
}

const (
	// sayEvery is how often one and the same fault of following is logged as a warning.
	sayEvery = 5 * time.Minute
	// minWatch and maxWatch bound a watch; the server ends it in between, and the next one begins.
	minWatch, maxWatch = 5 * time.Minute, 10 * time.Minute
	// believe is how often in a row a resource must not be served for there to be no
	// configuration: what stands before a starting API server may say so as well.
	believe = 2
)

// errEnded: a watch has ended without a fault, too soon for the next one to begin at once.
var errEnded = errors.New("watch ended at once") //nolint:gochecknoglobals // a sentinel

func (f *Follower) run(ctx context.Context) {
	for wait := f.waits.first; ctx.Err() == nil; wait = min(2*wait, f.waits.last) {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := wait + rand.N(wait)
		switch {
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			// All is listed again.
		case apierrors.IsNotFound(err):
			pause = f.waits.absent + rand.N(f.waits.absent/2)
			f.notServed(ctx)
		default:
			f.note(ctx, err)
		}
		if time.Since(begun) > f.waits.steady {
			wait = f.waits.first
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// follow lists, and watches from there until something is wrong.
func (f *Follower) follow(ctx context.Context) error {
	version, err := f.list(ctx)
	for err == nil && ctx.Err() == nil {
		begun := time.Now()
		version, err = f.watch(ctx, version)
		if err == nil && time.Since(begun) < f.waits.first {
			err = errEnded
		}
	}
	return err
}

// options ask for the one object, which need not be there.
func (f *Follower) options() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", f.cfg.Node).String()}
}

func (f *Follower) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.waits.answer)
	defer cancel()
	opts, got := f.options(), &v2alpha1.CiliumNetworkDriverNodeConfigList{}
	err := f.client.Get().Resource(v2alpha1.NodeConfigResource).SpecificallyVersionedParams(&opts, metav1.ParameterCodec, coreV1()).
		MaxRetries(0).Do(ctx).Into(got)
	if err != nil {
		return "", fmt.Errorf("list %s: %w", f.object(), err)
	}
	var found *v2alpha1.CiliumNetworkDriverNodeConfig
	for i := range got.Items {
		if got.Items[i].Name == f.cfg.Node {
			found = &got.Items[i]
		}
	}
	f.mu.Lock()
	f.absent, f.narrow = 0, false // a definition may be another one now
	f.mu.Unlock()
	f.set(found)
	return got.ResourceVersion, nil
}

// watch takes changes from a version on, and gives that of the last one.
func (f *Follower) watch(ctx context.Context, version string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := minWatch + rand.N(maxWatch-minWatch)
	opts := f.options()
	opts.Watch, opts.AllowWatchBookmarks, opts.ResourceVersion = true, true, version
	opts.TimeoutSeconds = new(int64(timeout / time.Second))
	// Whoever takes the request and never answers must not be waited for.
	late := time.AfterFunc(f.waits.answer, cancel)
	w, err := f.client.Get().Resource(v2alpha1.NodeConfigResource).SpecificallyVersionedParams(&opts, metav1.ParameterCodec, coreV1()).
		MaxRetries(0).Watch(ctx)
	if !late.Stop() && err == nil {
		w.Stop()
		err = fmt.Errorf("no answer has begun after %s: %w", f.waits.answer, context.DeadlineExceeded)
	}
	if err != nil {
		return version, fmt.Errorf("watch %s: %w", f.object(), err)
	}
	defer w.Stop()
	f.note(ctx, nil)                            // not before: who may list and not watch follows nothing
	end := time.After(timeout + f.waits.answer) // the server's own bound, with time to keep it
	for {
		select {
		case <-ctx.Done():
			return version, nil
		case <-end:
			return version, nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}
			if version, err = f.take(e, version); err != nil {
				return version, err
			}
		}
	}
}

// take takes one event in.
func (f *Follower) take(e watch.Event, version string) (string, error) {
	if e.Type == watch.Error {
		return version, fmt.Errorf("watch %s: %w", f.object(), apierrors.FromObject(e.Object))
	}
	c, ok := e.Object.(*v2alpha1.CiliumNetworkDriverNodeConfig)
	if !ok {
		return version, fmt.Errorf("watch %s: the API server sends a %T", f.object(), e.Object)
	}
	switch {
	case e.Type == watch.Bookmark || c.Name != f.cfg.Node:
	case e.Type == watch.Deleted:
		f.set(nil)
	default:
		f.set(c)
	}
	return c.ResourceVersion, nil
}

// notServed is told that the API server does not know the resource.
func (f *Follower) notServed(ctx context.Context) {
	f.mu.Lock()
	f.absent++
	times := f.absent
	f.fault = nil
	f.mu.Unlock()
	if times == 1 {
		f.cfg.Log.InfoContext(ctx, "waiting for the definition of the network driver's configuration", "resource", v2alpha1.NodeConfigResource+"."+v2alpha1.Group)
	}
	if times >= believe {
		f.set(nil)
	}
}

// note keeps what became of a try, and says it when it is news.
func (f *Follower) note(ctx context.Context, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.fault
	f.fault = err
	switch {
	case err == nil && before != nil:
		f.cfg.Log.InfoContext(ctx, "following again", "what", f.object())
	case err != nil:
		level := slog.LevelWarn
		if before != nil && before.Error() == err.Error() && time.Since(f.said) < sayEvery {
			level = slog.LevelDebug
		} else {
			f.said = time.Now()
		}
		f.cfg.Log.Log(ctx, level, "cannot follow, and tries again", "what", f.object(), "error", err)
	}
}
