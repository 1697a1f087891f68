// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm boots a machine with a real SR-IOV NIC and runs programs in it: QEMU emulates an igb
// card, whose virtual functions are real ones to Debian's ordinary kernel and its drivers.
//
// It owns <repository>/.cache/lab/vm: kernels as Debian packages them, unpacked and never installed,
// and base images, each under the hash of what it is made of. The machine is emulated (no KVM), has
// no disk but the one that a caller gives it, and nothing is left of it when it ends. It ends with
// its program, at its time limit, or with the process that started it.
//
// The root is an initramfs: busybox, the modules that are asked for, and the caller's files. Its
// /init (guest) loads the modules, makes VFs, runs the commands and hands their status out through
// a port of QEMU's.
//
// The one flag that everything depends on is pci-hole64-size=0: above 4 GiB the registers of
// QEMU 10's virtual functions are dead.
//
// Implements: architecture 5 (SR-IOV).
package vm
