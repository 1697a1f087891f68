// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"log/slog"

	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// Pod is a launcher's pod of this node.
type Pod struct {
	Namespace, Name, UID string
	// NetworkStatus is the annotation.
	NetworkStatus string
	// Ended says that nothing runs in it any more; Ending that it is being deleted.
	Ended, Ending bool
}

// Config says what is reported.
type Config struct {
	Node    string
	Conn    *rest.Config
	Publish bool // else it is only observed
	Policy  vmistatus.Policy
	// Cache is KubeVirt's pod interface cache.
	Cache vmistatus.PodCache
	// Proc is where the node's processes are.
	Proc string
	// Pods gives a pod of this node by its UID.
	Pods  func(uid string) (Pod, bool)
	Times source.Times
	// Written is told of every attempt to write a status.
	Written func(err error)
	Log     *slog.Logger
}
