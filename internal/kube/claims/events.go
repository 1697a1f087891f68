// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// tellEvery is how often the same thing is told again: the kubelet tries again and again.
	tellEvery = 10 * time.Minute
	// maxWaiting and maxTold bound what is kept; beyond them the newest is dropped, or the memory
	// of what was told.
	maxWaiting = 256
	maxTold    = 4096

	eventsPerSecond = 5
	eventBurst      = 50

	maxName = 200 // of the object's in an event's name, in bytes: with the rest it stays within 253
	maxText = 1 << 10
)

// Events tells users of claims and pods, one event after the other.
type Events struct {
	api     kubernetes.Interface
	node    string
	log     *slog.Logger
	waiting chan *corev1.Event

	mu   sync.Mutex
	told map[string]bool // by name
	from time.Time       // when told was emptied
}

// NewEvents makes Events; nothing is sent before Run.
func NewEvents(api kubernetes.Interface, node string, log *slog.Logger) *Events {
	return &Events{api: api, node: node, log: log, waiting: make(chan *corev1.Event, maxWaiting), told: map[string]bool{}}
}

func (e *Events) String() string { return "events of claims" }

// Event tells users something about an object: soon, if it can, and once within ten minutes. typ is
// Normal or Warning. Nothing waits for it.
func (e *Events) Event(about corev1.ObjectReference, typ, reason, message string) {
	now := time.Now()
	ev := e.object(about, typ, reason, strings.ToValidUTF8(message[:min(len(message), maxText)], ""), now)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.told) >= maxTold || now.Sub(e.from) > 2*tellEvery {
		e.told, e.from = map[string]bool{}, now
	}
	if e.told[ev.Name] {
		return
	}
	select {
	case e.waiting <- ev:
		e.told[ev.Name] = true
	default:
		e.log.Debug("drop an event: too many wait", "object", about.Namespace+"/"+about.Name, "reason", reason)
	}
}

// object makes the event. Its name is the same for the same event within tellEvery, so that the API
// server keeps one of them, also when two agents tell it, one after the other.
func (e *Events) object(about corev1.ObjectReference, typ, reason, message string, now time.Time) *corev1.Event {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%d", about.UID, reason, message, now.Truncate(tellEvery).Unix())
	name := strings.TrimRight(about.Name[:min(len(about.Name), maxName)], "-.") + ".weft-" + hex.EncodeToString(h.Sum(nil))
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: name},
		InvolvedObject: about, Type: typ, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: "weft", Host: e.node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}

// Run sends until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst)
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-e.waiting:
			_ = limit.Wait(ctx) // an error is the end of ctx, and there are no limits in it
			e.send(ctx, ev)
		}
	}
}

// send tries once. What was not taken may be told again at the next occasion.
func (e *Events) send(ctx context.Context, ev *corev1.Event) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	_, err := e.api.CoreV1().Events(ev.Namespace).Create(ctx, ev, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) { // told already
		return
	}
	e.log.DebugContext(ctx, "cannot tell an event", "object", ev.Namespace+"/"+ev.InvolvedObject.Name, "reason", ev.Reason, "error", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.told, ev.Name)
}
