// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"os"
)

// Namespaces identifies the network and mount namespaces of a process, a folder of /proc:
// two processes of one boot with the same see the same links and the same mounts.
func Namespaces(process string) (string, error) {
	net, err := os.Readlink("/proc/" + process + "/ns/net")
	if err != nil {
		return "", fmt.Errorf("namespaces of process %s: %w", process, err)
	}
	mnt, err := os.Readlink("/proc/" + process + "/ns/mnt")
	if err != nil {
		return "", fmt.Errorf("namespaces of process %s: %w", process, err)
	}
	return net + " " + mnt, nil
}
