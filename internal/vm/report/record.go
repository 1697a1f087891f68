// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/bundle"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

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
	if ok {
		b.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
			Annotations: map[string]string{vmistatus.NetworkStatusAnnotation: pod.NetworkStatus},
		}}
		if err := r.recordDomain(ctx, vmi, pod, &b); err != nil {
			return nil, fmt.Errorf("record %s/%s: %w", namespace, name, err)
		}
	}
	return json.Marshal(&b)
}

func (r *Reporter) recordDomain(ctx context.Context, vmi *v1.VirtualMachineInstance, pod Pod, b *bundle.Bundle) (err error) {
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
	guest, err := c.Guest(ctx, d)
	b.AgentConnected = new(err == nil)
	if err != nil {
		return nil //nolint:nilerr // that it does not answer is what is recorded
	}
	b.GuestAgent, err = source.GuestJSON(guest)
	return err
}
