// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/kube/rest"
)

const (
	// eventWait is how long an event may hold up the end of the planner: less than the
	// hands wait for that end (a second).
	eventWait = 800 * time.Millisecond
	// eventLife bounds one event, also while the ADD goes on.
	eventLife = 10 * time.Second
	// eventEvery is how often the same thing is told again: the kubelet tries again and again.
	eventEvery = 10 * time.Minute

	maxPodName = 200 // of an event's name, in bytes: with the rest it stays within 253
)

// Tell implements planner.Reporter.
func (s *Source) Tell(pod planner.PodRef, e planner.Event) {
	now := time.Now()
	s.events.Go(func() {
		ctx, cancel := context.WithTimeout(s.alive, eventLife)
		defer cancel()
		// Nobody waits for the outcome, and nobody could mend it: the fault itself is the
		// runtime's answer. 409 says that it is told already.
		_ = s.client.CreateEvent(ctx, rest.Event{
			Namespace: pod.Namespace, Name: eventName(pod, e, now), PodName: pod.Name, PodUID: pod.UID,
			Type: "Warning", Reason: e.Reason, Message: e.Message, Component: "weft", Time: now,
		})
	})
}

// eventName is the same for the same event within eventEvery, so that the API server
// keeps one of them.
func eventName(pod planner.PodRef, e planner.Event, at time.Time) string {
	h := fnv.New64a()
	for _, part := range []string{pod.UID, e.Reason, e.Message} {
		_, _ = h.Write([]byte(part + "\x00"))
	}
	_ = binary.Write(h, binary.BigEndian, at.Truncate(eventEvery).Unix())
	name := pod.Name[:min(len(pod.Name), maxPodName)]
	return strings.TrimRight(name, "-.") + ".weft-" + hex.EncodeToString(h.Sum(nil))
}

// drain waits for the events under way.
func (s *Source) drain() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.events.Wait()
	}()
	timer := time.AfterFunc(eventWait, s.stop)
	defer timer.Stop()
	<-done // stop ends what takes longer
}
