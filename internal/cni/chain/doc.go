// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chain runs the plugins of one network: ADD, DEL, CHECK, STATUS and GC.
//
// It owns a plugin's process from start to end, the configuration that the plugin
// reads, and the judgement of its answer. Invariants:
//
//   - A plugin's configuration differs from what the user wrote in the keys name,
//     cniVersion, prevResult, runtimeConfig and the list of valid attachments alone.
//   - A plugin inherits stdin, stdout, stderr, the descriptors of Call.Inherit and the
//     environment of a CNI plugin, nothing else of this process.
//   - A plugin runs in a process group of its own. At the deadline the whole group is
//     killed, and only while its leader has not been reaped, so that the number of the
//     group cannot have become another's.
//   - DEL and GC reach every plugin, whatever happens to the others: an absent binary, a
//     failure, a hang (each plugin has its share of the time that is left).
//   - ADD that fails at a plugin undoes nothing. The caller runs DEL for the whole
//     chain, as CNI asks: plugins after the failed one have nothing to undo and say so.
//
// What a plugin leaves running after it has answered is left alone, for some plugins
// mean it. Such a process has the descriptors of Call.Inherit open: whoever locked them
// with flock should unlock them rather than only close them. When the caller is killed
// with a plugin running, EndGroup ends what is left.
//
// The package knows nothing of plans, records and lanes. It implements CNI SPEC 1.1
// section 4 and spec/cni.md rules 2, 4, 5, 6 and 7.
package chain
