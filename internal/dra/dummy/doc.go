// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dummy is the device manager of dummy links: dummy0 to dummy<n-1>, of which none exists
// until a claim has it prepared.
//
// It owns: the links that bear a mark of its own, an alternative name weft-<8 hex digits>-dummy. The mark
// of a claim's link is in what Inspect answers, and so in the journal before the link is made.
//
// Invariants: a link without that very mark (nor the MAC address that was made with it) is never
// adopted, renamed or removed, whatever it is called and whatever kind it is; a name that such a
// link has is not offered. A link is made under the mark as its name and gets its real one last, so
// a crash leaves no link that nobody knows. After a reboot, or with its sandbox, it is gone, and
// Setup makes it again with the same MAC address.
//
// It must not know claims, pods, sandboxes or the API server.
//
// Implements: architecture 4.5; spec/dra.md 1.4, 1.10 and 2.4, decisions 3 and 6, I6 and I8.
package dummy
