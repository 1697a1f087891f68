// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package journal keeps durable records of what Weft is about to do and has done:
// one file of checksummed JSON lines a key, whose flock is also the lock of that key.
//
// It owns <stateDir>/<kind folder>/<key>.jsonl, <stateDir>/quarantine, <stateDir>/sweep
// and <stateDir>/boot. It knows nothing of CNI, devices or the kernel's network: an
// intent's body and a phase's result are opaque JSON.
//
// How law 2 (journal before act) is kept: Begin returns only when the whole intent is on
// the disk under its name (temporary file, fsync, rename, fsync of the folder). Phases are
// appended by one write and not waited for: a killed process loses none of them, a power
// loss may, so the records of another boot count as attempted in full.
//
// Invariants:
//   - A path is created, replaced or removed only by who holds the flock of the file that
//     the path names; a lock got on any other file is let go and taken again.
//   - The lock is on a read-only descriptor that delegates inherit; the descriptor that
//     writes is close-on-exec. Close unlocks; without it, when Weft is killed, the lock lasts
//     as long as a delegate that has the descriptor.
//   - What is no file at such a path is moved to quarantine by who holds the folder's lock.
//   - A temporary file <key>.jsonl.tmp exists only while <key>.jsonl does.
//   - The file is a sequence of whole lines and at most one torn line, which is the last and
//     was not recorded.
//   - The frame of a first line and its fields version, kind, key and podUID are frozen.
//
// What a kill leaves, and who clears it:
//
//	after the placeholder was created     an empty file; the next Acquire uses it, its Close removes it
//	while the temporary file is written   that file as well; the next holder removes it
//	after the rename                      a whole record of which nothing was attempted
//	in the middle of an append            a torn last line; the next append cuts it off
//	between unlink and anything else      nothing
//	while a record is quarantined         the record in both places; the next holder repeats it
//
// Implements: architecture 1 (law 2) and 4.3; spec/cni.md rules 2 and 5.
package journal
