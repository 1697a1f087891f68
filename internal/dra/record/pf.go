// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record

// PFs is the kind, and the folder, of the records of physical functions whose virtual functions
// Weft made: <stateDir>/pfs/<PCI address>.jsonl. They are no calls and have no phases; one of
// another boot says nothing, since VFs do not outlive a boot.
const PFs = "pfs"

// PF is the body of such a record.
type PF struct {
	VFs int `json:"vfs"` // how many Weft made; another number is somebody else's
}
