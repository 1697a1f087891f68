// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"log/slog"
	"strings"
	"syscall"

	"github.com/weftnet/weft/internal/host/kernel"
)

type restorer interface {
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
}

// Restore gives a link of the host back what it was, as far as others let it: a name that is taken
// by now, and a MAC address that its PF no longer allows it, are told and not insisted on, since no
// trying again would help.
func Restore(k restorer, link kernel.Link, want kernel.LinkState, log *slog.Logger) error {
	host := kernel.Namespace{}
	_, err := k.Restore(host, link.Index, want)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		// The PF was given a MAC for the VF meanwhile, and that is the one to keep.
		log.Warn("the MAC address of a VF cannot be put back", "device", link.PCI, "mac", want.MAC.String(), "error", err)
		want.MAC = link.MAC
		_, err = k.Restore(host, link.Index, want)
	}
	if onlyClashes(err) {
		log.Warn("link is home under another name", "device", link.PCI, "name", want.Name, "error", err)
		return nil
	}
	return err //nolint:wrapcheck // the caller names the device
}

// onlyClashes says whether names that are taken are all that is wrong.
func onlyClashes(err error) bool {
	switch e := err.(type) { //nolint:errorlint // the tree of them is walked
	case *kernel.ClashError:
		return true
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if !onlyClashes(one) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		return onlyClashes(e.Unwrap())
	}
	return false
}

// Linkless says that a driver gives a function no link, or that it has none: what is bound so is for
// others than the kernel's network.
func Linkless(driver string) bool {
	switch d := strings.ReplaceAll(driver, "_", "-"); d {
	case "", "uio-pci-generic", "igb-uio", "pci-stub":
		return true
	default:
		return strings.Contains(d, "vfio")
	}
}
