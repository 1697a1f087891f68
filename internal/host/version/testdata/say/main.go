// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command say says its version.
package main

import (
	"fmt"

	"github.com/weftnet/weft/internal/host/version"
)

func main() { fmt.Println(version.String()) }
