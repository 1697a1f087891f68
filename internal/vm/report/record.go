// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/bundle"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// Limits of a record, and of the guest agent's part of it.
const recordLimit, recordAgentLimit = 20 * time.Second, 8 * time.Second

// ErrNoVMI says that the machine is not one of this node.
var ErrNoVMI = errors.New("no such virtual machine on the agent's node") //nolint:gochecknoglobals // a sentinel

// Record reads everything of a machine anew and gives it as a replay bundle. A source that cannot
// be read is left out, as it is in a report.
func (r *Reporter) Record(ctx context.Context, namespace, name string) (json.RawMessage, error) {
	vmi := r.get(namespace + "/" + name)
	if vmi == nil {
		return nil, ErrNoVMI
	}
	whole := *vmi
	whole.TypeMeta = metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachineInstance"}
	b := bundle.Bundle{VMI: &whole, Policy: r.cfg.Policy, PodCache: map[string]bundle.PodFile{}}
	pod, ok := r.launcher(vmi)
	// What stands in for files that are not there belongs to it: a replay has to give what is reported.
	for network, read := range r.input(vmi, pod).PodCache {
		file := bundle.PodFile{PodIP: read.PodIP, PodIPs: read.PodIPs}
		if read.Err != nil {
			file.Error = read.Err.Error()
		}
		b.PodCache[network] = file
	}
	if pod.NetworkStatus != "" { // without it the status decides, here and in a replay
		b.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
			Annotations: map[string]string{vmistatus.NetworkStatusAnnotation: pod.NetworkStatus},
		}}
	}
	if ok {
		if err := r.recordDomain(ctx, vmi, pod, &b); err != nil {
			r.cfg.Log.DebugContext(ctx, "a record of a virtual machine lacks a source", "vmi", namespace+"/"+name, "error", err)
		}
	}
	return json.Marshal(&b)
}

func (r *Reporter) recordDomain(ctx context.Context, vmi *v1.VirtualMachineInstance, pod Pod, b *bundle.Bundle) (err error) {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	var c *source.Conn
	for _, uri := range uris() {
		conn, dialErr := r.dial(pod.UID)(ctx)
		if dialErr != nil {
			return dialErr
		}
		if c, err = source.Dial(ctx, conn, uri, nil); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it always succeeds
	d, err := c.Find(ctx, domainOf(vmi))
	if err != nil {
		return err
	}
	text, err := c.XML(ctx, d)
	if err != nil {
		return err
	}
	b.DomainXML = new(string(text))
	known := r.recordGuest(ctx, c, d, vmi)
	b.AgentConnected = new(known.Agent != vmistatus.AgentDisconnected)
	switch {
	case known.Guest != nil:
		b.GuestAgent, err = source.GuestJSON(known.Guest)
	case known.GuestErr != nil || known.Agent == vmistatus.AgentSilent:
		// As an agent says that it cannot answer: what the status has of the guest stands for it then.
		b.GuestAgent = json.RawMessage(`{"error": {"class": "GenericError", "desc": "the guest cannot be asked"}}`)
	}
	return err
}

// recordGuest is what the guest's agent says now; where it says nothing, as in a paused machine, what is
// known of it.
func (r *Reporter) recordGuest(ctx context.Context, c *source.Conn, d source.Domain, vmi *v1.VirtualMachineInstance) *vmistatus.Domain {
	if state, err := c.State(ctx, d); err == nil && state == source.Running {
		ctx, cancel := context.WithTimeout(ctx, recordAgentLimit)
		defer cancel()
		if guest, err := c.Guest(ctx, d); err == nil {
			return &vmistatus.Domain{Guest: guest, Agent: vmistatus.AgentConnected}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.machines[vmi.Namespace+"/"+vmi.Name]
	if w == nil || w.snapshot.Domain == nil {
		return &vmistatus.Domain{Agent: vmistatus.AgentDisconnected}
	}
	return asMigrating(vmi, w.snapshot).Domain
}
