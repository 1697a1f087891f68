// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
)

const (
	// tellEvery is how often the same thing may be told again.
	tellEvery = 10 * time.Minute

	maxName = 200 // of the node's in an event's name, in bytes: with the rest it stays within 253
	maxText = 1 << 10
	// namespace is where events of objects without a namespace are.
	namespace = metav1.NamespaceDefault
)

// tell tells events of conditions that are news.
func (f *Follower) tell(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, conditions []metav1.Condition) {
	for _, c := range conditions {
		old := meta.FindStatusCondition(f.told, c.Type)
		same := old != nil && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message
		switch {
		case c.Status == metav1.ConditionFalse && !same:
			f.event(ctx, of, corev1.EventTypeWarning, c)
		case c.Status == metav1.ConditionTrue && old != nil && old.Status == metav1.ConditionFalse:
			f.event(ctx, of, corev1.EventTypeNormal, c)
		}
	}
}

// event tries once, since the condition says it as well.
func (f *Follower) event(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, typ string, c metav1.Condition) {
	if !f.events.TryAccept() {
		f.cfg.Log.DebugContext(ctx, "drop an event: there are too many", "reason", c.Reason)
		return
	}
	at := metav1.Now()
	text := strings.ToValidUTF8(c.Message[:min(len(c.Message), maxText)], "")
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%d", of.UID, c.Type, c.Reason, c.Message, at.Truncate(tellEvery).Unix())
	body, err := json.Marshal(&corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: strings.TrimRight(of.Name[:min(len(of.Name), maxName)], "-.") + ".weft-" + hex.EncodeToString(h.Sum(nil)),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: v2alpha1.GroupVersion().String(), Kind: v2alpha1.NodeConfigKind, Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion,
		},
		Type: typ, Reason: c.Reason, Message: text,
		Source: corev1.EventSource{Component: "weft", Host: f.cfg.Node}, FirstTimestamp: at, LastTimestamp: at, Count: 1,
	})
	if err == nil {
		err = f.client.Post().AbsPath("/api/v1/namespaces", namespace, "events").Body(body).MaxRetries(0).Do(ctx).Error()
	}
	if err != nil && codeOf(err) != http.StatusConflict { // told already
		f.cfg.Log.DebugContext(ctx, "cannot tell an event", "reason", c.Reason, "error", err)
	}
}
