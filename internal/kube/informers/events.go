// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weftnet/weft/internal/kube/rest"
)

const (
	// tellEvery is how often the same thing is told again: the kubelet tries again and
	// again. What comes in between is dropped, not counted: no request is less than one.
	tellEvery = 10 * time.Minute
	// maxWaiting and maxTold bound what is kept; beyond them the newest is dropped, or
	// the memory of what was told.
	maxWaiting = 256
	maxTold    = 4096
	// eventsPerSecond and eventBurst bound what is asked of the API server.
	eventsPerSecond = 5
	eventBurst      = 50
	// flushWait is what waiting events have when Run ends.
	flushWait = 2 * time.Second

	maxPodName = 200 // of an event's name, in bytes: with the rest it stays within 253
	maxText    = 1 << 10
)

// event is one that waits to be sent.
type event struct {
	ref                  Ref
	typ, reason, message string
	at                   time.Time
}

// name is the same for the same event within tellEvery, so that the API server keeps one
// of them, also when two agents tell it, one after the other.
func (e event) name() string {
	h := fnv.New64a()
	for _, part := range []string{e.ref.UID, e.reason, e.message} {
		_, _ = h.Write([]byte(part + "\x00"))
	}
	_ = binary.Write(h, binary.BigEndian, e.at.Truncate(tellEvery).Unix())
	name := e.ref.Name[:min(len(e.ref.Name), maxPodName)]
	return strings.TrimRight(name, "-.") + ".weft-" + hex.EncodeToString(h.Sum(nil))
}

// events sends events one after the other.
type events struct {
	node    string
	create  func(context.Context, *corev1.Event) error
	log     *slog.Logger
	waiting chan event

	mu   sync.Mutex
	told map[string]bool // by name
	from time.Time       // when told was emptied
}

func newEvents(node string, create func(context.Context, *corev1.Event) error, log *slog.Logger) *events {
	return &events{node: node, create: create, log: log, waiting: make(chan event, maxWaiting), told: map[string]bool{}}
}

// Event tells users something about a pod: soon, if it can, and once within ten minutes.
// typ is Normal or Warning. Nothing waits for it.
func (c *Cluster) Event(ref Ref, typ, reason, message string) {
	message = strings.ToValidUTF8(message[:min(len(message), maxText)], "")
	c.events.add(event{ref, typ, reason, message, time.Now()})
}

func (e *events) add(ev event) {
	name := ev.name()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.told) >= maxTold || ev.at.Sub(e.from) > 2*tellEvery {
		e.told, e.from = map[string]bool{}, ev.at
	}
	if e.told[name] {
		return
	}
	select {
	case e.waiting <- ev:
		e.told[name] = true
	default:
		e.log.Debug("drop an event: too many wait", "pod", ev.ref.Namespace+"/"+ev.ref.Name, "reason", ev.reason)
	}
}

// run sends until ctx ends, and then what waits, for flushWait.
func (e *events) run(ctx context.Context) {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst)
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(flushWait, cancel) })
	defer stop()
	for {
		select {
		case <-ctx.Done():
			e.flush(last)
			return
		case ev := <-e.waiting:
			_ = limit.Wait(ctx) // an error is the end, and there are no limits in it
			e.send(last, ev)
		}
	}
}

func (e *events) flush(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case ev := <-e.waiting:
			e.send(ctx, ev)
		default:
			return
		}
	}
}

// send tries once. What was not taken may be told again at the next occasion.
func (e *events) send(ctx context.Context, ev event) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	err := e.create(ctx, ev.object(e.node))
	if err == nil || rest.Code(err) == http.StatusConflict { // told already
		return
	}
	e.log.DebugContext(ctx, "cannot tell an event", "pod", ev.ref.Namespace+"/"+ev.ref.Name, "reason", ev.reason, "error", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.told, ev.name())
}

func (e event) object(node string) *corev1.Event {
	at := metav1.NewTime(e.at)
	return &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: e.ref.Namespace, Name: e.name()},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.ref.Namespace, Name: e.ref.Name, UID: types.UID(e.ref.UID)},
		Type:           e.typ, Reason: e.reason, Message: e.message,
		Source:         corev1.EventSource{Component: "weft", Host: node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}

func (c *Cluster) createEvent(ctx context.Context, e *corev1.Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	err = c.core.Post().Namespace(e.Namespace).Resource("events").Body(body).SetHeader("Content-Type", typeJSON).
		MaxRetries(0).Do(ctx).Error()
	return c.failed("create", "event of pod "+e.Namespace+"/"+e.InvolvedObject.Name, err)
}
