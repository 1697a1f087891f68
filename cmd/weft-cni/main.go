// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-cni is Weft's CNI plugin. The container runtime runs it as root in
// the host's namespaces; internal/cni/attach has its verbs (CNI SPEC, architecture 4.1
// to 4.3). It also answers to the
// names multus and multus-shim, so that an existing configuration keeps working.
package main

import (
	"os"

	"github.com/weftnet/weft/internal/cni/attach"
	"github.com/weftnet/weft/internal/host/brief"
)

func main() {
	brief.Process()
	os.Exit(attach.Main(attach.Process{
		Getenv:  os.Getenv,
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	}))
}
