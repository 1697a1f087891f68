// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package confpub publishes the node's CNI conf: a file in the runtime's directory that
// sorts first and sends every pod to weft-cni, with the pod network's own conf (the
// primary) inside it as its first delegate.
//
// It owns <confDir>/<confName> and its temporary files. Find, Render and Read are pure:
// files' bytes in, a choice or bytes out. The Publisher is the only part that touches
// the disk.
//
// Invariants:
//   - The file is at every moment absent or a conf that the hands accept (Render has
//     netconf.Parse read it); once there, nothing here removes it (internal/cni/install does).
//   - The primary is found by content. What Weft or Multus published is never taken for it,
//     whatever it is called and wherever it was copied.
//   - The primary's bytes are embedded as they stand, whatever its version, so the last good
//     one goes on while its file is broken or gone. They survive a restart, and a kill at any
//     point, inside the published file itself: there is no second store.
//   - A file that is broken does not make another one the primary, nor does one that is gone
//     before another has stood in its place for a while (settle).
//   - Nothing is published for the first time, or changed, before Allow. What stood at the
//     start is put back even so when another tool takes it away.
//   - Equal bytes are not written.
//
// Two publishers on one directory end in the same file when their options are the same;
// when they are not, each restores its own ever more rarely (restoreMost).
//
// It must not know pods, networks of pods, Kubernetes or how a plugin is run.
//
// Implements: spec/cni.md rule 11, cases B64, B65 and B68; architecture 4.1, 4.4.
package confpub
