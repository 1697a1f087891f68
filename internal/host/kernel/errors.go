// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
)

// ErrNoLink says that there is no such link in the namespace.
var ErrNoLink = errors.New("no such link")

// ClashError says that a link's name is taken where it was to go.
type ClashError struct {
	Name    string // the name that is taken
	AltName bool   // as an alternative name of another link
}

func (e *ClashError) Error() string {
	if e.AltName {
		return fmt.Sprintf("another link has the alternative name %q", e.Name)
	}
	return fmt.Sprintf("another link has the name %q", e.Name)
}
