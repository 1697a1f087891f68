// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import "os"

// writeFile writes what only the lab's owner may read.
func writeFile(path string, content []byte) error { return os.WriteFile(path, content, 0o600) }
