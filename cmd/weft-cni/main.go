// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-cni is Weft's CNI plugin. The container runtime runs it as root in
// the host's namespaces; internal/cni/attach has its verbs (CNI SPEC, architecture 4.1
// to 4.3). With the argument apply it does what the agent orders in the background (4.4). It also answers to the
// names multus and multus-shim, so that an existing configuration keeps working.
package main

import (
	"errors"
	"os"
	"syscall"

	"github.com/weftnet/weft/internal/cni/attach"
	"github.com/weftnet/weft/internal/host/brief"
	_ "github.com/weftnet/weft/internal/host/brief/start" // before the other packages
	"github.com/weftnet/weft/internal/host/version"
)

func main() {
	brief.Process()
	os.Exit(attach.Main(attach.Process{
		Args:    os.Args[1:],
		Version: version.String,
		Getenv:  os.Getenv,
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  stderr{},
	}))
}

// stderr is descriptor 2. os.Stderr ends the process when its reader is gone, as that of a
// runtime that is restarted: a warning would leave an ADD or a DEL in the middle.
type stderr struct{}

func (stderr) Write(b []byte) (n int, err error) {
	for n < len(b) {
		m, err := syscall.Write(syscall.Stderr, b[n:])
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return n, os.NewSyscallError("write stderr", err)
		}
		n += max(m, 0)
	}
	return n, nil
}
