// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest starts a virtual machine of libvirt's with a real guest agent, in a place laid out
// like a virt-launcher's pod.
//
// It owns <repository>/.cache/lab/libvirt: a root directory of Debian packages (libvirtd, QEMU, the
// guest agent and all that they need), downloaded and unpacked, never installed. A pod is a box
// (package box) with that root, its processes in a cgroup that is named as the kubelet names a
// pod's; what it writes is in memory, and nothing is left of it when it ends.
//
// The guest is emulated. It boots a kernel of package vm; its root holds the agent, ip and busybox,
// and it does what it is told through a serial port of its own (Guest.Do), so that its agent can be
// stopped.
//
// It knows nothing of Weft.
//
// Implements: architecture 5 (VM).
package guest
